"""`Expect: 100-continue`: the interim response is sent when the body is first read.

gunicorn would send `100 Continue` as soon as it has parsed a head, before the application has seen
it. Here it is deferred until the body is first read, which is after the checks of the caller, of the
model and of the announced length. A client that got no `100 Continue` may send its body or not, so its
connection cannot carry another message.
"""

from typing import Any

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class DeferredContinueBody:
    """gunicorn's body of a message whose sender waits for `100 Continue`.

    Args:
        message: gunicorn's parsed message; this takes the place of its body.
    """

    def __init__(self, message: Any) -> None:
        self._message = message
        self._body = message.body
        self._sock = message.unreader.sock
        self._should_close = message.should_close
        self._begun = False
        message.body = self
        message.should_close = self.should_close

    def should_close(self) -> bool:
        """Whether the connection ends with this message's answer."""
        return not self._begun or bool(self._should_close())

    def begin(self) -> Any:
        """Send `100 Continue`, once, and return the body."""
        if not self._begun:
            self._begun = True
            self._message.body = self._body
            self._sock.sendall(CONTINUE)
        return self._body

    def read(self, size: int | None = None) -> bytes:
        """See WSGI."""
        return bytes(self.begin().read(size))

    def readline(self, size: int | None = None) -> bytes:
        """See WSGI."""
        return bytes(self.begin().readline(size))

    def readlines(self, size: int | None = None) -> list[bytes]:
        """See WSGI."""
        return list(self.begin().readlines(size))

    def __iter__(self) -> Any:
        return iter(self.begin())


def defer_continue(worker: Any, message: Any) -> None:
    """Keep gunicorn from sending `100 Continue` by itself; its `pre_request` hook."""
    worker.log.debug("%s %s", message.method, message.path)
    if message._expected_100_continue:
        message._expected_100_continue = False
        DeferredContinueBody(message)


def body_stream(environ: dict[str, Any]) -> Any:
    """Return the WSGI input to read from; a client that waits for `100 Continue` gets it."""
    stream = environ["wsgi.input"]
    return stream.begin() if isinstance(stream, DeferredContinueBody) else stream
