"""Writes the audit record of gRPC calls that change the server."""

from collections.abc import Callable
from typing import Any

from ksrv._native.grpc.grpc_call import Call
from ksrv.errors import KsrvError
from ksrv.server.audit import write
from ksrv.server.http.callers import TrustedProxies


def audited(
    name: str, function: Callable[..., Any], proxies: TrustedProxies, *, writes_success: bool
) -> Callable[..., Any]:
    """Wrap the check or the behavior of a control call, so that its outcome is recorded.

    A check refuses callers before the message arrives, so the record of a refused caller names no model.

    Args:
        name: The name of the call.
        function: A check, which gets the call, or a behavior, which gets the message and the call.
        writes_success: Whether a success is recorded: for the behavior, because the call is not over after the check.
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
