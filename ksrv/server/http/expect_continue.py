"""`Expect: 100-continue`: a client is asked for its body only when somebody wants to read it.

gunicorn would send `100 Continue` as soon as it has parsed a head, before the application has seen
it. Here the body is asked for when it is first read, which is after the checks of who calls, of the
model and of the announced length. A client that was never asked may send its body or not, so such a
connection cannot carry another message.
"""

from typing import Any

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class InvitedBody:
    """gunicorn's body of a message whose sender waits to be asked.

    Args:
        message: gunicorn's parsed message; this takes the place of its body.
    """

    def __init__(self, message: Any) -> None:
        self._message = message
        self._body = message.body
        self._sock = message.unreader.sock
        self._should_close = message.should_close
        self._asked = False
        message.body = self
        message.should_close = self.should_close

    def should_close(self) -> bool:
        """Whether the connection ends with this message's answer."""
        return not self._asked or bool(self._should_close())

    def ask(self) -> Any:
        """Ask the client for the body, once, and return it."""
        if not self._asked:
            self._asked = True
            self._message.body = self._body
            self._sock.sendall(CONTINUE)
        return self._body

    def read(self, size: int | None = None) -> bytes:
        """See WSGI."""
        return bytes(self.ask().read(size))

    def readline(self, size: int | None = None) -> bytes:
        """See WSGI."""
        return bytes(self.ask().readline(size))

    def readlines(self, size: int | None = None) -> list[bytes]:
        """See WSGI."""
        return list(self.ask().readlines(size))

    def __iter__(self) -> Any:
        return iter(self.ask())


def invite_late(worker: Any, message: Any) -> None:
    """Keep gunicorn from asking for a body by itself; its `pre_request` hook.

    Args:
        worker: gunicorn's worker.
        message: Its parsed message.
    """
    worker.log.debug("%s %s", message.method, message.path)
    if message._expected_100_continue:
        message._expected_100_continue = False
        InvitedBody(message)


def invited(environ: dict[str, Any]) -> Any:
    """Return the WSGI input to read from; a client that waits to be asked is asked.

    Args:
        environ: The WSGI environment.
    """
    stream = environ["wsgi.input"]
    return stream.ask() if isinstance(stream, InvitedBody) else stream
