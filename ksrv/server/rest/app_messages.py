"""Calls the Falcon app for requests that the native HTTP server has received, and gives it the answers to send.

The server gives such a request, an `AppMessage`, to a thread that `start_threads` started. The thread calls the app by
WSGI, and the server sends the finished answer, so the thread does not wait for the client. Only a stream, an answer
whose length is not known, gets a separate thread, which waits for its client.

The app is called once for a message. A body that is long, or whose sender waits for `100 Continue`, has not arrived
when a thread first gets the message. Then `wanted_body` asks the app whether it wants the body (judged by the caller,
the route, the model and the announced length). If so, the server gets the message again to receive the body, and then a
thread gets it with the body. If not, the app is called at once, and refuses the message.
"""

import io
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol
from wsgiref.util import is_hop_by_hop

from gunicorn.config import Config

from ksrv._native.server.app_message import AppMessage
from ksrv.errors import HEADER_NAME, HEADER_VALUE, KsrvError, NotFound, Overloaded
from ksrv.limits import Limits
from ksrv.server.http.answers import report_http
from ksrv.server.http.environ import Address, Environ, Environs
from ksrv.server.http.head_faults import head_error
from ksrv.server.http.received_body import MESSAGE, body_too_large, received_body
from ksrv.server.rest.fast_path import render_error
from ksrv.server.shared.idle_threads import IdleThreads

log = logging.getLogger(__name__)

STREAMS = 128
"""The most streams that are sent at the same time. Each has a thread."""

_SERVER_METHODS = b"Allow: GET, HEAD, POST, PUT, DELETE, OPTIONS\r\n"


class App(Protocol):
    """The WSGI app, which also decides about a message whose body has not arrived yet."""

    def __call__(self, environ: Environ, start_response: Callable[..., Any], /) -> Iterable[bytes]:
        """Answer a message."""

    def wanted_body(self, environ: Environ) -> int | None:
        """Return the most bytes of body that the app will read; None if it answers without the body."""


class BodyInput(io.RawIOBase):
    """`wsgi.input` of a message in memory.

    Args:
        message: The message.
        max_bytes: The most bytes of a body.
    """

    def __init__(self, message: AppMessage, max_bytes: int) -> None:
        self._message = message
        self._max_bytes = max_bytes
        self._left: memoryview | None = None

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`."""
        if self._left is None:
            if self._message.announced > self._max_bytes:
                raise body_too_large(self._message.announced, self._max_bytes)
            self._left = received_body(self._message, self._max_bytes)
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._left))
        target[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


def start_threads(
    name: str,
    count: int,
    next_message: Callable[[], AppMessage | None],
    serve: Callable[[AppMessage], None],
) -> list[threading.Thread]:
    """Start threads that answer messages, and return them. Each waits for a message and answers it, in turn.

    Args:
        name: The prefix of their names.
        next_message: Waits for a message; None once no further message will arrive.
        serve: Answers a message, and raises nothing.

    Raises:
        RuntimeError: The system has no thread.
    """

    def work() -> None:
        while True:
            try:
                message = next_message()
            except Exception:
                log.exception("a message could not be given to the app")
                continue
            if message is None:
                return
            serve(message)
            del message  # do not keep it while the thread waits for the next message

    threads = [
        threading.Thread(target=work, name=f"{name}-{index}", daemon=True) for index in range(count)
    ]
    for thread in threads:
        thread.start()
    return threads


class AppMessages:
    """Calls the app with messages of the native HTTP server.

    Args:
        app: The WSGI app.
        cfg: gunicorn's configuration.
        servers: The address of each listener.
        limits: The limits on heads and bodies.
        mount: The prefix of all paths, or "".
    """

    def __init__(
        self, app: App, cfg: Config, servers: Sequence[Address], *, limits: Limits, mount: str = ""
    ) -> None:
        self._app = app
        self._environs = Environs(cfg, servers, mount)
        self._limits = limits
        # The environments of messages whose bodies are being received, by the ids of the connections.
        self._kept: dict[int, Environ] = {}
        self._most_kept = cfg.worker_connections
        self._streams = threading.Semaphore(STREAMS)
        self._stream_threads = IdleThreads(STREAMS, "ksrv-stream")

    def serve(self, message: AppMessage) -> None:
        """Answer a message, or give it back until its body has come.

        Args:
            message: The message; whatever happens it is answered, given back or closed.
        """
        try:
            environ = self._kept.pop(message.connection_id, None) if message.asked else None
            environ = self._environ_of(message, environ)
            if environ is None:
                return
            if message.state == "unread" and not message.asked:
                wanted = self._app.wanted_body(environ)
                if wanted is not None:
                    self._keep(message, environ)
                    message.receive(wanted)
                    return
            self._call(message, environ)
        except BaseException:
            log.exception("a message for the app failed")
            # A begun stream is broken off. Any other message that has no answer yet gets 500.
            message.break_stream()
            message.fail()

    def _keep(self, message: AppMessage, environ: Environ) -> None:
        """Keep the environment of a message until its body is received."""
        if len(self._kept) >= self._most_kept:  # connections have closed meanwhile: drop the oldest
            self._kept.pop(next(iter(self._kept)), None)
        del environ[MESSAGE], environ["wsgi.input"]
        self._kept[message.connection_id] = environ

    def _environ_of(self, message: AppMessage, environ: Environ | None) -> Environ | None:
        """Return the environment of a message, or answer with the error of its head and return None.

        Args:
            environ: The environment that was kept while the body was received; None at the first call.
        """
        try:
            if message.head_fault is not None:
                raise head_error(*message.head_fault, self._limits)
            environ = self._environs.make(message) if environ is None else environ
        except KsrvError as error:
            refusal = error
        else:
            environ[MESSAGE] = message
            environ["wsgi.input"] = io.BufferedReader(BodyInput(message, self._limits.body))
            return environ
        if not isinstance(refusal, NotFound):
            peer = message.peer if isinstance(message.peer, str) else message.peer[0]
            log.warning(
                "the head of a message from %s is refused: %s",
                peer or "a unix socket",
                refusal.message,
            )
        # After a faulty head, nobody knows where the next message of the connection begins.
        message.set_close(message.closes or not isinstance(refusal, NotFound))
        status, line, fields, body = render_error(refusal)
        is_head = message.head.lstrip(b"\r\n").startswith(b"HEAD ")
        message.answer(status, line, fields, [] if is_head else [body])
        return None

    def _call(self, message: AppMessage, environ: Environ) -> None:
        if environ["RAW_URI"] == "*":  # OPTIONS of the whole server (RFC 9110 9.3.7)
            message.set_close(message.closes)
            message.answer(204, b"204 No Content", _SERVER_METHODS, [])
            return
        answer = Answer(message, environ)
        answer.pieces = self._app(environ, answer.start)
        if not answer.is_stream:
            answer.send()
        elif self._streams.acquire(blocking=False):
            # A separate thread waits for the stream's client, because other messages need this thread.
            try:
                self._stream_threads.submit(self._finish_stream, answer)
            except RuntimeError as error:
                self._streams.release()
                answer.refuse(f"the answer cannot be streamed now: {error}")
        else:
            answer.refuse(f"{STREAMS} answers are being streamed, which is the most")

    def _finish_stream(self, answer: "Answer") -> None:
        try:
            answer.send()
        except BaseException:
            log.exception("a streamed answer failed")
            answer.message.break_stream()
            answer.message.fail()
        finally:
            self._streams.release()


class Answer:
    """The app's answer to a message: the head that the app sets, its body, and how both are sent.

    Args:
        message: The message.
        environ: Its WSGI environment.

    Attributes:
        pieces: The body. A stream's pieces may have the attributes `head_fields` and `probe` of `StreamedAnswer`
            (`streams.py`).
    """

    pieces: Iterable[bytes] = ()

    def __init__(self, message: AppMessage, environ: Environ) -> None:
        self.message = message
        self._environ = environ
        self._status = 0
        self._line = b""
        self._fields: list[tuple[str, str]] = []
        self._length: int | None = None
        self._omits_body = False

    def start(
        self, status: str, headers: Sequence[tuple[str, str]], exc_info: object = None
    ) -> None:
        """Take the status and the header fields: WSGI's `start_response`.

        Fields that the native server sends itself are left out (RFC 9110 7.6.1).

        Raises:
            ValueError: A field has no valid form.
        """
        self._line, self._status = status.encode("latin-1"), int(status[:3])
        for name, value in headers:
            if not HEADER_NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value):
                raise ValueError(f"invalid header field {name!r}")
            lower_name = name.lower()
            if lower_name == "content-length":
                self._length = int(value)
            if not (is_hop_by_hop(lower_name) or lower_name in ("server", "date")):
                self._fields.append((name, value.strip(" \t")))
        if self._status < 200 or self._status == 204:  # RFC 9110 8.6
            self._fields = [pair for pair in self._fields if pair[0].lower() != "content-length"]
            self._length = None
        bodiless = self._status < 200 or self._status in (204, 304)
        self._omits_body = bodiless or self._environ["REQUEST_METHOD"] == "HEAD"  # RFC 9110 6.4.1

    @property
    def is_stream(self) -> bool:
        """Whether the body's length is unknown, because the app makes its pieces while they are sent."""
        return not self._omits_body and self._length is None

    def send(self) -> None:
        """Give the answer to the server. For a stream, return when the last piece is sent or the client has left."""
        message = self.message
        message.set_close(message.closes or (self.is_stream and message.http_1_0))
        try:
            if self.is_stream:
                self._stream(chunked=not message.http_1_0)
                return
            body: list[bytes | memoryview] = []
            if self._length is not None and not self._omits_body:
                body += _exactly(self.pieces, self._length)
            message.answer(self._status, self._line, self._head_fields(), body)
        finally:
            self._close()

    def _head_fields(self, chosen: Sequence[tuple[str, str]] = ()) -> bytes:
        """Return the header fields; `chosen`, the fields of a stream's first piece, replace fields of the same names."""
        names = {name.lower() for name, _ in chosen}
        given = [(name, value) for name, value in self._fields if name.lower() not in names]
        return "".join(f"{name}: {value}\r\n" for name, value in (*given, *chosen)).encode(
            "latin-1"
        )

    def refuse(self, why: str) -> None:
        """Answer 503 instead of the app's answer."""
        try:
            self._refuse(Overloaded(f"{why}; try again later"))
        finally:
            self._close()

    def _refuse(self, error: Exception) -> None:
        failure = report_http(error, self._environ)
        status, line, fields, body = render_error(failure)
        self.message.answer(status, line, fields, [body])

    def _close(self) -> None:
        close = getattr(self.pieces, "close", None)
        if close is not None:
            close()

    def _stream(self, *, chunked: bool) -> None:
        """Send the pieces, in chunks unless the client speaks HTTP/1.0."""
        message = self.message
        pieces = iter(self.pieces)
        try:
            first = next(pieces, b"")
        except Exception as error:  # noqa: BLE001  (becomes the answer, because no byte is sent yet)
            self._refuse(error)
            return
        fields = self._head_fields(getattr(self.pieces, "head_fields", ()))
        if chunked:
            fields = b"Transfer-Encoding: chunked\r\n" + fields
        if not message.begin_stream(self._status, self._line, fields, first, chunked=chunked):
            return
        for piece in pieces:
            # An empty piece: the handler makes nothing at the moment. `send` sends nothing for it.
            if not piece and not self._client_listens(chunked=chunked):
                return
            if not message.send(piece, chunked=chunked):
                return
        message.end_stream(chunked=chunked)

    def _client_listens(self, *, chunked: bool) -> bool:
        """Tell whether the client still listens; asked when a stream has nothing to send for a while."""
        state = self.message.peer_state()
        if state == "half-closed":
            # The client has shut down its sending side: it may have left, or read on. Send a byte: if the client
            # has left, its system answers with a reset.
            return self.message.send(getattr(self.pieces, "probe", b""), chunked=chunked)
        return state == "open"


def _exactly(pieces: Iterable[bytes], length: int) -> Iterator[memoryview]:
    """Yield the first `length` bytes of the pieces.

    Raises:
        ValueError: The pieces have fewer bytes.
    """
    left = length
    for piece in pieces:
        view = memoryview(piece).cast("B")[:left]
        left -= len(view)
        if view:
            yield view
    if left:
        raise ValueError(
            f"the answer holds {length - left} bytes, not the {length} that it announced"
        )
