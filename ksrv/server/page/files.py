"""Serves one file of the pages for browsers, with headers that allow no script from elsewhere."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import falcon

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
    "img-src 'self' blob:; media-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
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
        headers: Restrict what the browser may do with it.
        without: A line that contains this text is left out.
        content: The content, if no file has it.
    """

    def __init__(
        self,
        path: Path,
        headers: Mapping[str, str] = SECURITY_HEADERS,
        *,
        without: str = "",
        content: str | None = None,
    ) -> None:
        self._headers = dict(headers)
        text = path.read_bytes() if content is None else content.encode()
        lines = text.splitlines(keepends=True)
        left_out = without.encode()
        self._content = b"".join(line for line in lines if not left_out or left_out not in line)
        self._type = CONTENT_TYPES[path.suffix]
        self._tag = hashlib.sha256(self._content).hexdigest()[:32]

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer the file, or 304 to a browser that has it."""
        resp.set_headers(self._headers)
        resp.cache_control = ["no-cache"]
        resp.etag = self._tag
        tags = req.if_none_match or []
        if any(tag == "*" or tag == self._tag for tag in tags):
            resp.status = falcon.HTTP_304
            return
        resp.content_type = self._type
        resp.data = self._content
