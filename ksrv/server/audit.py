"""The audit log: a record for each call that changes the server, with the caller and the outcome.

`AuditLog` records the calls over REST, `ksrv/server/grpc/audited_calls.py` the calls over gRPC. The logger is
`ksrv.audit`; the level is info for calls that succeeded, and warning for refused or failed calls. Of a token only the
beginning of its digest is logged.
"""

import logging
from collections.abc import Mapping
from typing import NamedTuple

import falcon

from ksrv.errors import quote
from ksrv.server.http.callers import TrustedProxies, token_digest
from ksrv.server.http.request_ids import REQUEST_ID

log = logging.getLogger("ksrv.audit")

CONTROL_CALL = "ksrv.control_call"
"""The key of the WSGI environment for the `ControlCall` of a call that needs the control rights."""


class ControlCall(NamedTuple):
    """A call that needs the control rights.

    Attributes:
        action: The verb: "load", "unload".
        subject: The model or region; "" for the whole server.
    """

    action: str
    subject: str


def control_call(template: str, path: str) -> ControlCall:
    """Return the control call for a path: the last segment of the route's template, and the first variable's value."""
    *before, action = template.strip("/").split("/")
    given = path.strip("/").split("/")
    named = (part for name, part in zip(before, given, strict=False) if name.startswith("{"))
    return ControlCall(action, next(named, ""))


def write(
    action: str,
    subject: str,
    outcome: str,
    *,
    good: bool,
    caller: Mapping[str, str],
    authorization: str | None,
    request_id: str,
    protocol: str,
) -> None:
    """Write one record.

    Args:
        action: The verb: "load", "unload".
        subject: The model or region; "" for the whole server.
        outcome: The HTTP status or gRPC code.
        good: Whether the call succeeded.
        caller: The caller's address as `TrustedProxies.caller` returns it.
        authorization: The caller's `Authorization`.
        protocol: "HTTP" or "gRPC".
    """
    digest = token_digest(authorization)
    shown = f"{action} {quote(subject)}" if subject else action
    who = (caller["peer"] or "a unix socket") + (f" with the token {digest}..." if digest else "")
    fields = {
        "action": action,
        "subject": subject[:128],
        "outcome": outcome,
        **caller,
        "token_digest": digest,
        "request_id": request_id,
        "protocol": protocol,
    }
    level = logging.INFO if good else logging.WARNING
    log.log(level, "%s by %s over %s: %s", shown, who, protocol, outcome, extra=fields)


class AuditLog:
    """Falcon middleware: writes a record of each call that needed the control rights.

    Args:
        proxies: The proxies whose headers about their callers are believed.
    """

    def __init__(self, proxies: TrustedProxies) -> None:
        self._proxies = proxies

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, resource: object, req_succeeded: bool
    ) -> None:
        """Write the record, once the answer is known."""
        asked: ControlCall | None = req.env.get(CONTROL_CALL)
        if asked is None or req.method in ("GET", "HEAD"):
            return
        write(
            *asked,
            str(resp.status_code),
            good=resp.status_code < 400,
            caller=self._proxies.caller_of(req.env),
            authorization=req.env.get("HTTP_AUTHORIZATION"),
            request_id=req.env.get(REQUEST_ID, ""),
            protocol="HTTP",
        )
