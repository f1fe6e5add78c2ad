"""The calls over gRPC that change the server, with a record of each in the audit log."""

import functools
from typing import Any

from ksrv._native.grpc.grpc_call import Call
from ksrv.errors import KsrvError
from ksrv.server.audit import write
from ksrv.server.grpc.calls import Behavior, Check
from ksrv.server.http.callers import TrustedProxies


def _write_call(name: str, subject: str, outcome: str, call: Call, proxies: TrustedProxies) -> None:
    write(
        name,
        subject,
        outcome,
        good=outcome == "OK",
        caller=proxies.caller(call.peer_address(), call.metadata()),
        authorization=call.authorization,
        request_id=call.request_id,
        protocol="gRPC",
    )


def audited_check(name: str, check: Check, proxies: TrustedProxies) -> Check:
    """Return a check of a control call that writes a record where it refuses the caller.

    The record names no model: nothing of a caller's message is read before he may call.
    """

    @functools.wraps(check)
    def checked(call: Call) -> None:
        try:
            check(call)
        except KsrvError as error:
            _write_call(name, "", error.grpc_code, call, proxies)
            raise

    return checked


def audited(name: str, behavior: Behavior, proxies: TrustedProxies) -> Behavior:
    """Return a control call that writes a record of what came of it."""

    def carried_out(request: Any, call: Call) -> Any:
        subject = getattr(request, "model_name", "") or getattr(request, "name", "")
        try:
            answer = behavior(request, call)
        except Exception as error:
            code = error.grpc_code if isinstance(error, KsrvError) else "INTERNAL"
            _write_call(name, subject, code, call, proxies)
            raise
        _write_call(name, subject, "OK", call, proxies)
        return answer

    return carried_out
