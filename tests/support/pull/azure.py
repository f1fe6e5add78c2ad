"""The two calls of Azure Blob Storage that a pull makes: list a container, read a blob."""

from contextlib import AbstractContextManager
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.servers.http_handlers import QuietHandler, handlers_served

MODIFIED = "Fri, 26 Jun 2026 23:39:12 GMT"


class _Handler(QuietHandler):
    blobs: dict[str, bytes]

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if query.get("comp") == ["list"]:
            [prefix] = query.get("prefix", [""])
            # Without quotes around the ETag, as Azure sends lists.
            blobs = "".join(
                f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{MODIFIED}</Last-Modified>"
                f"<Etag>0x{len(content)}</Etag><Content-Length>{len(content)}</Content-Length>"
                f"<Content-Type>x/y</Content-Type></Properties></Blob>"
                for name, content in self.blobs.items()
                if name.startswith(prefix)
            )
            text = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>"
            self._answer(200, text.encode(), {})
            return
        content = self.blobs.get(unquote(parts.path).split("/", 2)[2])
        if content is None:
            self._answer(404, b"", {})
            return
        tag = f'"0x{len(content)}"'
        if self.headers.get("If-Match", tag) != tag:
            self._answer(412, b"", {})
            return
        self._answer(200, content, {"ETag": tag, "Last-Modified": MODIFIED})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def azure_server(blobs: dict[str, bytes]) -> AbstractContextManager[str]:
    """Serve the blobs of a container; yield the endpoint."""
    return handlers_served(_Handler, blobs=blobs)
