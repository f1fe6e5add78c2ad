"""The calls over gRPC that change the server, with a record of each in the audit log."""

from collections.abc import Callable
from typing import Any

from ksrv._native.grpc.grpc_call import Call
from ksrv.errors import KsrvError
from ksrv.server.audit import write
from ksrv.server.http.callers import TrustedProxies


def audited(
    name: str, function: Callable[..., Any], proxies: TrustedProxies, *, writes_success: bool
) -> Callable[..., Any]:
    """Return the check or the behavior of a control call, with a record of its outcome.

    The record of a refused caller names no model, because a check gets no message.

    Args:
        function: Gets the call last, after the message if it is a behavior.
    """

    def recorded(*given: Any) -> Any:
        call: Call = given[-1]
        subject = getattr(given[0], "model_name", "") or getattr(given[0], "name", "")
        outcome = "OK"
        try:
            return function(*given)
        except Exception as error:
            outcome = error.grpc_code if isinstance(error, KsrvError) else "INTERNAL"
            raise
        finally:
            if writes_success or outcome != "OK":
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

    return recorded
