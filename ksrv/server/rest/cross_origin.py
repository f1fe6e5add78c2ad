"""Cross-origin resource sharing: which web pages may read answers, as the setting `allowed_origins` says.

A browser asks first (a preflight: OPTIONS without credentials) whether a page may send a request, and shows
a page the answer only where the answer names the page's origin. Requests with an `Origin` are left to the
app by the native HTTP server where origins are configured, so the answers of every route come by here.
"""

import re
from collections.abc import Sequence

import falcon

ANY = "*"
METHODS = "GET, HEAD, POST"
EXPOSED = "Inference-Header-Content-Length, Server-Timing, Retry-After, X-Request-Id"
PREFLIGHT_SECONDS = 600
_FIELD_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")


class CrossOrigin:
    """Falcon middleware: answers preflights, and tells pages of allowed origins that they may read.

    Args:
        origins: The setting `allowed_origins`; with "*" every page may call what needs no credentials, or
            for which it has them. The routes that change things ask for an origin by name.
    """

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)

    def _allowed(self, req: falcon.Request) -> str | None:
        origin = req.get_header("Origin")
        if origin is None:
            return None
        if origin.lower() in self._origins:
            return origin
        return ANY if ANY in self._origins else None

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer a preflight, for which no credentials are needed; routing ends there."""
        if req.method != "OPTIONS" or not req.get_header("Access-Control-Request-Method"):
            return
        if self._allowed(req) is None:
            return
        resp.status = falcon.HTTP_204
        resp.set_header("Access-Control-Allow-Methods", METHODS)
        fields = req.get_header("Access-Control-Request-Headers") or ""
        if _FIELD_NAMES.fullmatch(fields):
            resp.set_header("Access-Control-Allow-Headers", fields)
        if req.get_header("Access-Control-Request-Private-Network") == "true":
            resp.set_header("Access-Control-Allow-Private-Network", "true")
        resp.set_header("Access-Control-Max-Age", str(PREFLIGHT_SECONDS))
        resp.complete = True

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, resource: object, req_succeeded: bool
    ) -> None:
        """Name the origin that may read the answer."""
        resp.append_header("Vary", "Origin")
        allowed = self._allowed(req)
        if allowed is not None:
            resp.set_header("Access-Control-Allow-Origin", allowed)
            resp.set_header("Access-Control-Expose-Headers", EXPOSED)
