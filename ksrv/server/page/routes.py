"""The files of the page at `/`, and the headers that keep a browser from running anything else.

The page is HTML, CSS and JavaScript in files, without a build step. It needs no credentials, since it
holds nothing of the server's: what it shows it asks of the v2 routes, with the token that its user
types. Its URLs are relative, so it works behind a proxy that serves ksrv under a path of its own.
"""

import hashlib
from pathlib import Path
from typing import Any

import falcon

from ksrv.server.http.answers import send_json
from ksrv.server.rest.route_guard import Needs

FOLDER = Path(__file__).parent / "static"

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

SECURITY_HEADERS = {
    # Scripts and styles come from files of this server only; nothing is loaded from elsewhere, no
    # text becomes markup (Trusted Types), and no other site may frame the page.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class PageFile:
    """GET of one file of the page.

    Args:
        path: The file; it is read once.
    """

    def __init__(self, path: Path) -> None:
        self._content = path.read_bytes()
        self._type = CONTENT_TYPES[path.suffix]
        self._tag = hashlib.sha256(self._content).hexdigest()[:32]

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer the file, or 304 to a browser that has it."""
        resp.set_headers(SECURITY_HEADERS)
        resp.cache_control = ["no-cache"]
        resp.etag = self._tag
        tags = req.if_none_match or []
        if any(tag == "*" or tag == self._tag for tag in tags):
            resp.status = falcon.HTTP_304
            return
        resp.content_type = self._type
        resp.data = self._content


class RootResource:
    """GET /: the page for browsers, which name `text/html`, and for other clients the liveness of KServe's v1.

    Args:
        page: The page, or None where it is not served.
    """

    def __init__(self, page: PageFile | None) -> None:
        self._page = page

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer the page, or that the server lives."""
        resp.append_header("Vary", "Accept")
        if self._page is not None and "text/html" in req.accept.lower():
            self._page.on_get(req, resp)
        else:
            send_json(resp, {"status": "alive"})


def add_page(app: "falcon.App[Any, Any]", *, shown: bool) -> None:
    """Add the routes of the page.

    Args:
        shown: Whether the page is served, rather than what answers beside it alone.
    """
    root = RootResource(PageFile(FOLDER / "index.html") if shown else None)
    app.add_route("/", root, needs=Needs.NOTHING)
    if not shown:
        return
    for path in sorted(FOLDER.iterdir()):
        if path.name != "index.html":
            app.add_route(f"/ui/{path.name}", PageFile(path), needs=Needs.NOTHING)
