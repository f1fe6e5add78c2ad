"""Messages of the Falcon app: from memory into WSGI, and the answer back into memory.

The native HTTP server has received a message before a thread gets it here, and sends the answer by itself,
so that no thread waits for a client; an answer in pieces has a thread of its own, which does. gunicorn's parser
reads the head, and gunicorn's functions make the environment of WSGI, as they do under all its workers.

The app is called with the body in memory. A body that is long, or whose sender waits for `100 Continue`,
has not come yet: `BodyWanted` is raised where the app reads it, the native server receives it, and the
app is called anew. What the app looks at before (the caller, the route, the model, the announced length) it
looks at twice.
"""

import io
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gunicorn import http
from gunicorn.config import Config
from gunicorn.http import wsgi
from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.message import Request
from gunicorn.http.unreader import IterUnreader

from ksrv._native.server.app_message import AppMessage
from ksrv.errors import HeadTooLarge, KsrvError, Overloaded
from ksrv.limits import show_limit
from ksrv.observe.traffic import count_refusal
from ksrv.server.http.gunicorn_errors import refusal_of, render_refusal
from ksrv.server.http.head_rules import check_head
from ksrv.server.http.received_body import MESSAGE, BodyWanted, body_too_large, received_body
from ksrv.server.rest.fast_path import render_error

log = logging.getLogger(__name__)

STREAMS = 128
"""Answers whose length is not known that are sent at the same time."""

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class BodyInput(io.RawIOBase):
    """`wsgi.input` of a message in memory.

    Args:
        max_bytes: Bytes that a body may have.
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


class AppThreads:
    """Threads that answer messages. One waits for the next message; there are more while more are busy.

    Args:
        name: What they are called.
        next_message: Waits for a message; None once there is none any more.
    """

    def __init__(
        self,
        name: str,
        most: int,
        next_message: Callable[[], AppMessage | None],
        serve: Callable[[AppMessage], None],
    ) -> None:
        self._name = name
        self._most = most
        self._next_message = next_message
        self._serve = serve
        self._lock = threading.Lock()
        self._waiting = 0
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the first one.

        Raises:
            RuntimeError: The system has no thread.
        """
        with self._lock:
            self._start_another()

    def join(self, timeout: float) -> None:
        """Wait for those that have no message to answer, which end as `next_message` returns None."""
        deadline = time.monotonic() + timeout
        for thread in list(self._threads):  # a handler that hangs keeps its own
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    def _start_another(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._live, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
        self._waiting += 1

    def _live(self) -> None:
        while True:
            try:
                message = self._next_message()
            except Exception:
                log.exception("a message could not be given to the app")
                continue
            if message is None:
                return
            self._leave_to_others()
            self._serve(message)
            del message  # while the next one is waited for
            with self._lock:
                self._waiting += 1

    def _leave_to_others(self) -> None:
        """Have one of the others wait for the next message while this one is answered."""
        with self._lock:
            self._waiting -= 1
            if self._waiting or len(self._threads) == self._most:
                return
            try:
                self._start_another()
            except RuntimeError as error:  # the messages wait for the threads that there are
                log.warning("no thread for messages beside %d: %s", len(self._threads), error)


class AppMessages:
    """Calls the app with messages of the native HTTP server.

    Args:
        servers: The address of each listener.
        body_limit: Bytes that a body may have.
        head_limit: Bytes that a head may have.
    """

    def __init__(
        self, app: App, cfg: Config, servers: Sequence[Any], *, body_limit: int, head_limit: int
    ) -> None:
        self._app = app
        self._cfg = cfg
        self._servers = servers
        self._body_limit = body_limit
        self._head_limit = head_limit
        self._streams = threading.Semaphore(STREAMS)

    def serve(self, message: AppMessage) -> None:
        """Answer a message, or give it back until its body has come.

        Args:
            message: The message; whatever happens it is answered, given back or closed.
        """
        try:
            request = self._parse(message)
            if request is not None:
                self._call(message, request)
        except BaseException:
            log.exception("a message for the app failed")
            message.break_stream()
            message.fail()

    def _parse(self, message: AppMessage) -> Request | None:
        """Return gunicorn's request, or None where its head was refused."""
        try:
            request = Request(self._cfg, IterUnreader([message.head]), message.peer)
            check_head(request)
        except (http.errors.ParseException, http.errors.NoMoreData, StopIteration) as error:
            status, text = refusal_of(error)
            peer = message.peer if isinstance(message.peer, str) else message.peer[0]
            log.warning("a message from %s is not HTTP: %s", peer or "a unix socket", text)
            message.set_close(True)
            if status == 400 and len(message.head) >= self._head_limit:
                status, line, fields, body = self._render_long_head()
            else:
                status, line, fields, body = render_refusal(status, text)
            message.answer(status, line, fields, [] if message.head.startswith(b"HEAD ") else body)
            return None
        reader = request.body.reader
        has_body = type(reader) is ChunkedReader or getattr(reader, "length", 0) > 0
        if message.state == "unread":
            message.set_head(
                http_1_0=request.version < (1, 1),
                body=has_body,
                expects_continue=request._expected_100_continue,
            )
        request._expected_100_continue = False  # the native server sends it with `receive`
        message.set_close(bool(request.should_close()))
        return request

    def _render_long_head(self) -> tuple[int, bytes, bytes, list[bytes | memoryview]]:
        error = HeadTooLarge(
            f"the request's head is longer than the {show_limit('head', self._head_limit)}"
        )
        status, line, fields, body = render_error(error)
        return status, line, fields, [body]

    def _call(self, message: AppMessage, request: Request) -> None:
        response, environ = wsgi.create(
            request, None, message.peer, self._servers[message.listener], self._cfg
        )
        message.identify(environ.get("HTTP_X_REQUEST_ID", "").encode("latin-1"))
        environ[MESSAGE] = message
        environ["wsgi.input"] = io.BufferedReader(BodyInput(message, self._body_limit))
        environ["wsgi.multithread"] = True
        del environ["wsgi.early_hints"]  # they would be written to a socket
        try:
            pieces = self._app(environ, response.start_response)
        except BodyWanted as wanted:
            reader = request.body.reader
            length = reader.length if type(reader) is LengthReader else None
            message.receive(wanted.most, content_length=length)
            return
        answer = Answer(message, response, pieces)
        if not answer.is_stream:
            answer.send()
        elif self._streams.acquire(blocking=False):
            # Its thread waits for its client: other messages need the one that runs this.
            threading.Thread(
                target=self._finish_stream, args=(answer,), name="ksrv-stream", daemon=True
            ).start()
        else:
            answer.refuse()

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
    """What the app has answered to a message, and sending it.

    Args:
        response: gunicorn's response, whose headers the app has set.

    Attributes:
        is_stream: Whether the body's length is not known, so that its pieces are made while it is sent.
    """

    def __init__(self, message: AppMessage, response: Any, pieces: Iterable[bytes]) -> None:
        self.message = message
        self._response = response
        self._pieces = pieces
        self.is_stream = not response._omits_body and response.response_length is None

    def send(self) -> None:
        """Send it; a stream's pieces as long as the client is there."""
        message, response = self.message, self._response
        message.set_close(response.should_close())
        status = response.status_code
        line = response.status.encode("latin-1")
        try:
            if self.is_stream:
                self._stream(status, line, chunked=response.chunked)
                return
            fields = self._fields()
            if response._omits_body:
                message.answer(status, line, fields, [])
            else:
                length = response.response_length
                message.answer(status, line, fields, list(_exactly(self._pieces, length)))
        finally:
            self._close()

    def _fields(self, chosen: Sequence[tuple[str, str]] = ()) -> bytes:
        """Return the header fields; those that were chosen late replace others of their names."""
        names = {name.lower() for name, _ in chosen}
        given = [one for one in self._response.headers if one[0].lower() not in names]
        lines = [f"{name}: {value}\r\n" for name, value in (*given, *chosen)]
        if self._response.chunked:
            lines.insert(0, "Transfer-Encoding: chunked\r\n")
        return "".join(lines).encode("latin-1")

    def refuse(self) -> None:
        """Answer 503 in its place."""
        try:
            self._refuse(
                Overloaded(
                    f"{STREAMS} answers are being streamed, which is the most; try again later"
                )
            )
        finally:
            self._close()

    def _refuse(self, error: KsrvError) -> None:
        count_refusal("http", error.reason)
        status, line, fields, body = render_error(error)
        self.message.answer(status, line, fields, [body])

    def _close(self) -> None:
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()

    def _stream(self, status: int, line: bytes, *, chunked: bool) -> None:
        message = self.message
        pieces = iter(self._pieces)
        try:
            first = next(pieces, b"")
        except KsrvError as error:  # before the first byte
            self._refuse(error)
            return
        fields = self._fields(getattr(self._pieces, "head_fields", ()))
        if not message.begin_stream(status, line, fields):
            return
        if not message.send(first, chunked=chunked):
            return
        for piece in pieces:
            if not piece and not self._is_heard(chunked=chunked):
                return
            if not message.send(piece, chunked=chunked):
                return
        message.end_stream(chunked=chunked)

    def _is_heard(self, *, chunked: bool) -> bool:
        """Tell whether a client that has got nothing new for a while still listens."""
        state = self.message.peer_state()
        if state == "half-closed":
            # The system of a client that is gone answers a byte with a reset; a client may read on.
            return self.message.send(getattr(self._pieces, "probe", b""), chunked=chunked)
        return state == "open"


def _exactly(pieces: Iterable[bytes], length: int) -> Iterator[memoryview]:
    """Yield `length` bytes of the pieces, which are in memory already.

    Raises:
        ValueError: They hold fewer.
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
