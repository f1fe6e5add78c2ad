"""ModelStreamInfer in Triton's wire form: many requests on one call, answered in their order.

A reader thread takes requests off the stream and hands them to the engine, so that they can join one batch; the call's
thread answers them in the order in which they arrived. Intermediate answers of handlers are sent at once, and so is the
end of a request that was answered in parts, so that no request's stream waits for another's: their ids distinguish
them. As in Triton, each answer shows whether it is the last of its request, and an end without an answer is sent on
request only. A request that fails is answered with `error_message`, and the stream continues; with the metadata
`triton_grpc_error: true` its error is the status that ends the stream, as in Triton. A stream without requests is ended
after a time, so that it makes room.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from ksrv._native.grpc.grpc_call import Call
from ksrv.errors import KsrvError, NotReady
from ksrv.protocol import grpc as protocol
from ksrv.protocol.protobuf import length_prefix, message_class
from ksrv.request import InferRequest, InferResponse, Parameter
from ksrv.server.call import Find, StoredCall, run_infer
from ksrv.server.grpc.calls import Incoming, Source, report_grpc
from ksrv.server.grpc.infer import InferCalls

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

DEPTH = 64
"""Requests of one stream that are under way at a time; the reader waits beyond."""

INFER_RESPONSE = 2
"""The field of ModelStreamInferResponse."""

FINAL = "triton_final_response"
MORE_FOLLOW: Mapping[str, Parameter] = {FINAL: False}
NONE_FOLLOWS: Mapping[str, Parameter] = {FINAL: True}
ENDS_AT_ERROR = "triton_grpc_error"


class _Entry(StoredCall):
    """One request of a stream. Its answer is sent after the answers to earlier requests.

    Args:
        form: Reads the request.
        incoming: The message.
        call: The stream's call.
        notify: Called when a further answer was stored, or the request has ended.

    Attributes:
        request: The request, once it is read.
    """

    def __init__(
        self, form: InferCalls, incoming: Incoming, call: Call, notify: Callable[[], object]
    ) -> None:
        super().__init__(notify)
        self._form = form
        self._incoming = incoming
        self._call = call
        self.request: InferRequest | None = None

    def read(self, find: Find) -> InferRequest:
        """See `InferCall.read`."""
        with self._incoming() as message:  # until the engine's queue counts the request
            self.request = request = self._form.read(message, self._call, find)
        request.stream = self.answers
        return request

    def outcome(self) -> InferResponse:
        """Return the last answer.

        Raises:
            Exception: The request failed.
        """
        self.check()
        if self._response is None and self.handle is not None:  # the stream was closed meanwhile
            return self.handle.wait()
        return self.response()

    def streamed(self) -> bool:
        """Tell whether the request was answered in parts, which are all sent, and has ended."""
        return self.answers.chunked and self.answers.finished


class _Line:
    """The requests of a stream that are not answered yet, in order.

    Args:
        ends_at_error: Whether the first request that fails ends the stream.
    """

    def __init__(self, *, ends_at_error: bool) -> None:
        self.ends_at_error = ends_at_error
        self._entries: deque[_Entry] = deque()
        self._changed = threading.Condition()
        self._answered: _Entry | None = None
        self._beginning = False  # whether a request is with the reader, which hands it over
        self._ended = False
        self._closed = False
        self.failure: Exception | None = None  # why the server ended the stream

    def idle(self) -> bool:
        """Return whether nothing is under way."""
        with self._changed:
            return not self._entries and self._answered is None

    def fail(self, error: Exception) -> None:
        """End the stream with an error, once the requests under way are answered."""
        self.failure = error
        self.end()

    def accept(self) -> bool:
        """Note that a request is about to begin, waiting for room; return False once the stream has ended.

        `take` waits for an accepted request: an end that arrives meanwhile does not lose it.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._entries) < DEPTH or self._ended)
            self._beginning = not self._ended
            return self._beginning

    def put(self, entry: _Entry) -> bool:
        """Append what was accepted; False when the stream was closed meanwhile."""
        with self._changed:
            self._beginning = False
            if not self._closed:
                self._entries.append(entry)
            self._changed.notify_all()
            return not self._closed

    def end(self) -> None:
        """Note that no further entry will arrive."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def end_reading(self) -> None:
        """Say that the reader hands over nothing any more, not even what it accepted."""
        with self._changed:
            self._beginning = False
            self._ended = True
            self._changed.notify_all()

    def take(self) -> _Entry | None:
        """Return the next entry, waiting for it; None after the last."""
        with self._changed:
            self._answered = None
            self._changed.wait_for(
                lambda: bool(self._entries) or (self._ended and not self._beginning)
            )
            self._answered = self._entries.popleft() if self._entries else None
            self._changed.notify_all()
            return self._answered

    def wake(self) -> None:
        """Note that an entry has an intermediate answer, or has ended."""
        with self._changed:
            self._changed.notify_all()

    def chunks(self, entry: _Entry) -> Iterator[tuple[_Entry, InferResponse | None]]:
        """Yield the intermediate answers of all entries until one of them has ended.

        None marks the end of another entry, which is no longer in the line then.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_chunk(entry))
                entries = [entry, *self._entries]
            for one in entries:
                chunk = one.answers.take(0)
                if chunk is not None:
                    yield one, chunk
                elif one is not entry and one.streamed() and self._drop(one):
                    yield one, None
            if entry.answers.finished:
                return

    def _drop(self, entry: _Entry) -> bool:
        """Take an entry that has ended out of the line; False where the line was closed meanwhile, and has none."""
        with self._changed:
            if not self._closed:
                self._entries.remove(entry)
                self._changed.notify_all()
            return not self._closed

    def _has_chunk(self, entry: _Entry) -> bool:
        return (
            entry.answers.ended
            or any(one.answers.waiting for one in (entry, *self._entries))
            or any(one.streamed() for one in self._entries)
        )

    def close(self) -> None:
        """Stop answering: release the reader and cancel the requests under way."""
        with self._changed:
            self._closed = self._ended = True
            left = [self._answered, *self._entries]
            self._answered = None  # an entry's answers refer to the line
            self._entries.clear()
            self._changed.notify_all()
        for entry in left:
            if entry is not None:
                entry.cancel()


class StreamCalls:
    """The streams of one server.

    Args:
        infer: Reads requests and writes answers.
        engine: Runs the requests.
        pool: Runs the readers; it must have a thread for each stream besides the calls' threads.
    """

    def __init__(self, infer: InferCalls, engine: "Engine", pool: Executor) -> None:
        self._engine = engine
        self._infer = infer
        self._pool = pool
        self._lock = threading.Lock()
        self._lines: set[_Line] = set()
        self._closing = False

    def stream(self, source: Source, call: Call) -> Iterator[bytes]:
        """Answer the requests of one stream.

        Raises:
            KsrvError: A message did not come in time, or was more than the budget had; or a request of a stream failed
                that ends at an error.
            NotReady: The server stopped before the client ended the stream.
        """
        line = _Line(ends_at_error=call.metadata().get(ENDS_AT_ERROR) == "true")
        with self._lock:
            self._lines.add(line)
            if self._closing:
                line.end()
        call.add_callback(line.close)
        try:
            self._pool.submit(self._read, source(line.idle, line.fail), call, line)
            while (entry := line.take()) is not None:
                yield from self._answers(line, entry, call)
        finally:
            line.close()
            with self._lock:
                self._lines.discard(line)
        if line.failure is not None:
            raise line.failure
        if self._closing:
            raise NotReady("the server is stopping; open a new stream elsewhere")

    def close(self) -> None:
        """End all streams once they have answered what they accepted."""
        with self._lock:
            self._closing = True
            lines = list(self._lines)
        for line in lines:
            line.end()

    def _read(self, received: Iterator[Incoming], call: Call, line: _Line) -> None:
        try:
            for incoming in received:
                if not line.accept():
                    break
                entry = _Entry(self._infer, incoming, call, line.wake)
                run_infer(entry, self._engine, waits=True)
                if not line.put(entry):
                    entry.cancel()  # the line was closed meanwhile
                    break
        except Exception as error:  # noqa: BLE001  (the pool's thread would drop it)
            line.fail(error)
        finally:
            line.end_reading()

    def _answers(self, line: _Line, entry: _Entry, call: Call) -> Iterator[bytes]:
        """Yield what handlers send while they run, and then the answer of one request."""
        if not entry.answers.finished:
            for one, chunk in line.chunks(entry):
                if chunk is None:
                    yield from self._last(line, one, call)
                    continue
                try:
                    message = self._message(one, call, chunk, MORE_FOLLOW)
                except KsrvError as error:  # an output that cannot be written as was asked
                    message = self._failed(line, one, call, error, MORE_FOLLOW)
                yield message
        yield from self._last(line, entry, call)

    def _last(self, line: _Line, entry: _Entry, call: Call) -> Iterator[bytes]:
        try:
            response = entry.outcome()
            assert entry.request is not None, "a request that has a response was read"
            chunked = entry.answers.chunked and not response.outputs
            if chunked and not entry.request.mark_final:
                return  # the end of a stream, which is sent on request only
            message = self._message(entry, call, response, NONE_FOLLOWS)
        except Exception as error:  # noqa: BLE001  (becomes the answer)
            message = self._failed(line, entry, call, error, NONE_FOLLOWS)
        yield message

    def _message(
        self, entry: _Entry, call: Call, response: InferResponse, marks: Mapping[str, Parameter]
    ) -> bytes:
        request = entry.request
        assert request is not None, "a request that is under way was read"
        parts = protocol.render_infer(
            response, request, parameters=marks, memory=self._infer.memory_of(call)
        )
        return b"".join([length_prefix(INFER_RESPONSE, sum(map(len, parts))), *parts])

    def _failed(
        self,
        line: _Line,
        entry: _Entry,
        call: Call,
        error: Exception,
        marks: Mapping[str, Parameter],
    ) -> bytes:
        """Report an error and return its message, or end the stream with it."""
        if line.ends_at_error:
            raise error
        failure = report_grpc(error, call)
        made = message_class("inference.ModelStreamInferResponse")(error_message=failure.message)
        made.infer_response.id = "" if entry.request is None else entry.request.id
        for name, value in marks.items():
            made.infer_response.parameters[name].bool_param = bool(value)
        encoded: bytes = made.SerializeToString()
        return encoded
