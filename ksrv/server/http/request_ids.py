"""The id of a request in the Falcon app; the native servers choose theirs in `native/base/request_id.hpp`.

The rules are the same: a client's `X-Request-ID` if its characters may be used in a log and in a header, else the
trace id of its `traceparent`, else a UUID. The id is in the answer, in the log, and in the headers that a
handler sees.
"""

import re
import uuid
from typing import Any

import falcon

from ksrv.server.http.received_body import MESSAGE

REQUEST_ID = "ksrv.request_id"
"""The request's id in the WSGI environment."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9\-._~:/+=@]{1,128}")
_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?P<more>-.*)?"
)


def choose_request_id(given: str, traceparent: str) -> str:
    """Return the id of a request.

    Args:
        given: Its `X-Request-ID`; fields that occur twice are joined by a comma, which no id has.
        traceparent: Its `traceparent`.
    """
    if _REQUEST_ID.fullmatch(given):
        return given
    trace = _TRACEPARENT.fullmatch(traceparent)
    if trace is not None and not (trace["version"] == "00" and trace["more"]):
        return trace["trace"]
    return str(uuid.uuid4())


class RequestIds:
    """Falcon middleware: chooses each request's id, and names it in the answer."""

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Choose the id; the native HTTP server has chosen it, and names it itself."""
        environ: dict[str, Any] = req.env
        if MESSAGE in environ:
            environ[REQUEST_ID] = environ[MESSAGE].request_id
            return
        chosen = choose_request_id(
            environ.get("HTTP_X_REQUEST_ID", "").strip(" \t"),
            environ.get("HTTP_TRACEPARENT", "").strip(" \t"),
        )
        environ[REQUEST_ID] = chosen
        resp.set_header("x-request-id", chosen)
