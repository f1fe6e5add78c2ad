"""Runs handlers of `http.server` on a free port of this machine."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    """Keeps connections open, and logs nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def handlers_served(
    handler: type[BaseHTTPRequestHandler],
    context: ssl.SSLContext | None = None,
    **attributes: object,
) -> Iterator[str]:
    """Serve requests; yield the address.

    Args:
        context: For https. Errors of connections are ignored then, because clients end them in handshakes.
        attributes: The attributes of every handler.
    """
    served = type("Handler", (handler,), attributes)
    with ThreadingHTTPServer(("127.0.0.1", 0), served) as server:
        if context is not None:
            server.handle_error = lambda *_: None  # type: ignore[method-assign]
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            scheme = "http" if context is None else "https"
            yield f"{scheme}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
