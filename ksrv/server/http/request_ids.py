"""The id of a request in the Falcon app, by the rules of `native/base/request_id.hpp`.

The id is in the answer, in the log, and in the headers that a handler sees.
"""

from typing import Any

import falcon

from ksrv._native.server.exchange import choose_request_id
from ksrv.server.http.received_body import MESSAGE

REQUEST_ID = "ksrv.request_id"
"""The request's id in the WSGI environment."""


class RequestIds:
    """Falcon middleware: chooses each request's id, and adds it to the answer."""

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Choose the id."""
        environ: dict[str, Any] = req.env
        # The native HTTP server has chosen it already, and adds it to the answer itself.
        if MESSAGE in environ:
            environ[REQUEST_ID] = environ[MESSAGE].request_id
            return
        chosen = choose_request_id(
            environ.get("HTTP_X_REQUEST_ID", "").strip(" \t"),
            environ.get("HTTP_TRACEPARENT", "").strip(" \t"),
        )
        environ[REQUEST_ID] = chosen
        resp.set_header("x-request-id", chosen)
