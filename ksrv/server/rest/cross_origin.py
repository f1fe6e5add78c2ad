"""Cross-origin resource sharing: which web pages may read answers, as the setting `allowed_origins` says.

Before a page sends a request, its browser asks whether it may (a preflight: OPTIONS without credentials). The page sees
the answer only if the answer names the page's origin. If origins are configured, the native HTTP server leaves every
request with an `Origin` to the app, so that this middleware sees the answers of all routes.
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
        origins: The setting `allowed_origins`. With "*", every page may call a route that needs no credentials,
            or for which it has them. Control calls from pages still need an origin that the setting names, or the server's
            own page (`Access`).
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
        """Answer a preflight, which needs no credentials, and skip the routing."""
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
