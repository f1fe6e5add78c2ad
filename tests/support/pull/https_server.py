"""A server of files over https that breaks transfers on purpose."""

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.servers.http_handlers import QuietHandler, handlers_served

STALL_S = 60


@dataclass
class Files:
    """The files of the server, and its misbehaviour.

    Attributes:
        contents: The bytes of each path.
        etag: The ETag of every file; "" for none.
        cut_after: Bytes of a body after which the connection is closed; 0 for never.
        cuts: How many bodies are cut.
        ranges: Whether Range is heeded.
        length_error: Added to each Content-Length.
        stalls: Whether the connection stays open for `STALL_S` seconds after the last byte of a cut body.
        redirect: An address that every request is sent to.
        status: A status for every request; 0 for none.
        pause_s: The pause after each 64 KiB.
        etag_after_cut: The ETag from the first cut on.
        chunked: Whether the answer has no Content-Length.
        seen: Method, path and Range of each request.
        url: The address of the server.
        authority: The certificate to trust.
    """

    contents: dict[str, bytes] = field(default_factory=dict)
    etag: str = '"one"'
    cut_after: int = 0
    cuts: int = 1
    ranges: bool = True
    length_error: int = 0
    stalls: bool = False
    redirect: str = ""
    status: int = 0
    pause_s: float = 0.0
    etag_after_cut: str = ""
    chunked: bool = False
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""
    authority: Path = Path()

    def first_bytes(self) -> list[int]:
        """Return the offset at which each request began."""
        return [int(text[6:].partition("-")[0]) if text else 0 for _, _, text in self.seen]


class _Handler(QuietHandler):
    files: Files

    def do_GET(self) -> None:
        files, wanted = self.files, self.headers.get("Range")
        files.seen.append((self.command, self.path, wanted))
        content = files.contents.get(self.path.partition("?")[0])
        status = files.status or (404 if content is None else 200)
        match = self.headers.get("If-Match")
        if files.redirect:
            status = 302
        elif status == 200 and match and files.etag and match != files.etag:
            status = 412
        if status != 200 or content is None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            if files.redirect:
                self.send_header("Location", files.redirect)
            self.end_headers()
            return
        start = 0
        if wanted and files.ranges:
            start, status = int(wanted[6:].partition("-")[0]), 206
        body = content[start:]
        self.send_response(status)
        if files.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(body) + files.length_error))
        if files.etag:
            self.send_header("ETag", files.etag)
        if status == 206:
            self.send_header(
                "Content-Range",
                f"bytes {start}-{len(content) - 1}/{len(content) + files.length_error}",
            )
        self.end_headers()
        self._send(body)

    def _send(self, body: bytes) -> None:
        files = self.files
        is_cut = bool(files.cut_after) and files.cuts > 0 and len(body) > files.cut_after
        sent = body[: files.cut_after] if is_cut else body
        try:
            for at in range(0, len(sent), 65536):
                self.wfile.write(sent[at : at + 65536])
                time.sleep(files.pause_s)
        except OSError:
            self.close_connection = True
            return
        if is_cut:
            files.cuts -= 1
            files.etag = files.etag_after_cut or files.etag
            if files.stalls:
                time.sleep(STALL_S)
        self.close_connection = is_cut or files.length_error != 0


@contextmanager
def https_server(key: Path, authority: Path) -> Iterator[Files]:
    """Serve files over https.

    Args:
        key: The key of the certificate.
        authority: The certificate, which clients are to trust.
    """
    files = Files(authority=authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, key)
    with handlers_served(_Handler, context, files=files) as files.url:
        yield files
