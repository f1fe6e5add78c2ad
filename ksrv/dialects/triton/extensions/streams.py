"""ModelStreamInfer in Triton's wire form: one gRPC call with many requests and answers.

Two threads serve a stream. A reader thread receives requests and submits them to the engine, so that they can join one
batch. The thread of the call sends the answers, in the order in which the requests arrived. `_StreamQueue` is between
them.

- Intermediate answers of handlers are sent at once, and so is the end of a request that was answered in parts. So
  no request delays the parts of another; clients distinguish them by the id.
- As in Triton, each answer has the parameter `triton_final_response`. The end of an answer in parts is sent as an empty
  answer only if the request asks for it.
- A request that fails is answered with `error_message`, and the stream continues. With the metadata
  `triton_grpc_error: true` the error ends the stream as its status, as in Triton.
- A stream without requests is ended after a time, to make room for other streams.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from ksrv._native.grpc.grpc_call import Call, PrefixedMessages
from ksrv._native.server.response_stream import ChunkForm
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
"""The most unanswered requests of a stream. With more, the reader waits."""

INFER_RESPONSE = 2
"""The number of the field `infer_response` of ModelStreamInferResponse."""

FINAL = "triton_final_response"
MORE_FOLLOW: Mapping[str, Parameter] = {FINAL: False}
NONE_FOLLOWS: Mapping[str, Parameter] = {FINAL: True}
ENDS_AT_ERROR = "triton_grpc_error"


class _Entry(StoredCall):
    """One request of a stream. Its answer is sent after the answers to earlier requests.

    Args:
        form: Reads the request.
        incoming: Returns a context with the message, whose bytes count in the memory budget inside the context.
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
        with self._incoming() as message:  # after the block the model's queue counts the bytes
            self.request = request = self._form.read(message, self._call, find)
        request.stream = self.answers
        # Only the native server sends bytes that hold several messages. A call of the server on grpcio has another
        # class than `Call`, and takes one message at a time.
        if isinstance(self._call, Call):
            self.answers.form_of = self._form_of
        return request

    def _form_of(self, response: InferResponse) -> ChunkForm | None:
        """See `ResponseStream.form_of`."""
        assert self.request is not None, "a request that is answered was read"
        parts = protocol.render_infer(response, self.request, parameters=MORE_FOLLOW)
        return ChunkForm(response.outputs[0], "grpc_message", [bytes(parts[0])])

    def outcome(self) -> InferResponse:
        """Return the last answer.

        Raises:
            Exception: The request failed.
        """
        self.check()
        # The stream was closed before the answer was stored.
        if self._response is None and self.handle is not None:
            return self.handle.wait()
        return self.response()

    def streamed(self) -> bool:
        """Tell whether the request has ended and was answered in parts, all of which were sent."""
        return self.answers.chunked and self.answers.finished


class _StreamQueue:
    """The unanswered requests of a stream, in order of arrival.

    The reader thread calls `accept`, then `put`; the thread of the call calls `take` and `chunks`. Any thread may call
    the other methods.

    Args:
        ends_at_error: Whether the first request that fails ends the stream.
    """

    def __init__(self, *, ends_at_error: bool) -> None:
        self.ends_at_error = ends_at_error
        self._entries: deque[_Entry] = deque()
        self._changed = threading.Condition()
        self._answered: _Entry | None = None  # the entry that `take` has returned last
        self._beginning = False  # whether the reader has accepted a request that it has not put yet
        self._ended = False
        self._closed = False
        self.failure: Exception | None = None  # why the server ended the stream

    def idle(self) -> bool:
        """Return whether the stream has no unanswered request."""
        with self._changed:
            return not self._entries and self._answered is None

    def fail(self, error: Exception) -> None:
        """End the stream with an error, after the requests that were accepted are answered."""
        self.failure = error
        self.end()

    def accept(self) -> bool:
        """Wait for room for one more request; return False if the stream has ended.

        From here on `take` waits for the request, so an end of the stream before `put` does not lose it.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._entries) < DEPTH or self._ended)
            self._beginning = not self._ended
            return self._beginning

    def put(self, entry: _Entry) -> bool:
        """Append the accepted request; return False if the stream was closed meanwhile."""
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
        """Note that the reader has stopped: even a request that it accepted will not arrive."""
        with self._changed:
            self._beginning = False
        self.end()

    def take(self) -> _Entry | None:
        """Wait for the next entry and return it; None after the last."""
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

    def chunks(self, entry: _Entry) -> Iterator[tuple[_Entry, InferResponse | bytes | None]]:
        """Yield the intermediate answers of `entry` and of all waiting entries, until `entry` has ended.

        An answer in bytes holds whole messages.

        (other, None) is the end of another entry that was answered in parts; it has left the queue.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_chunk(entry))
                entries = [entry, *self._entries]
            for each in entries:
                chunk = each.answers.take(0)
                if chunk is not None:
                    yield each, chunk
                elif each is not entry and each.streamed() and self._drop(each):
                    yield each, None
            if entry.answers.finished:
                return

    def _drop(self, entry: _Entry) -> bool:
        """Remove an entry that has ended; return False if the queue was closed meanwhile, which removed all."""
        with self._changed:
            if not self._closed:
                self._entries.remove(entry)
                self._changed.notify_all()
            return not self._closed

    def _has_chunk(self, entry: _Entry) -> bool:
        return (
            entry.answers.ended
            or any(each.answers.waiting for each in (entry, *self._entries))
            or any(each.streamed() for each in self._entries)
        )

    def close(self) -> None:
        """Stop answering: let the reader end, and cancel all unanswered requests."""
        with self._changed:
            self._closed = self._ended = True
            left = [self._answered, *self._entries]
            self._answered = None  # breaks the cycle: an entry refers to the queue by `notify`
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
        pool: Runs the reader threads. It needs a thread for each stream, or streams would wait for each other.
    """

    def __init__(self, infer: InferCalls, engine: "Engine", pool: Executor) -> None:
        self._engine = engine
        self._infer = infer
        self._pool = pool
        self._lock = threading.Lock()
        self._queues: set[_StreamQueue] = set()
        self._closing = False

    def stream(self, source: Source, call: Call) -> Iterator[bytes]:
        """Answer the requests of one stream.

        Raises:
            KsrvError: A message was late or too large for the memory budget; or a request failed, and the stream ends
                at an error.
            NotReady: The server stopped before the client ended the stream.
        """
        queue = _StreamQueue(ends_at_error=call.metadata().get(ENDS_AT_ERROR) == "true")
        with self._lock:
            self._queues.add(queue)
            if self._closing:
                queue.end()
        # If the call has ended already, nothing calls `close`. Then the reader finds no message, and ends the queue.
        call.add_callback(queue.close)
        try:
            self._pool.submit(self._read, source(queue.idle, queue.fail), call, queue)
            while (entry := queue.take()) is not None:
                yield from self._answers(queue, entry, call)
        finally:
            queue.close()
            with self._lock:
                self._queues.discard(queue)
        if queue.failure is not None:
            raise queue.failure
        if self._closing:
            raise NotReady("the server is stopping; open a new stream elsewhere")

    def close(self) -> None:
        """End all streams, each after it has answered the requests that it accepted."""
        with self._lock:
            self._closing = True
            queues = list(self._queues)
        for queue in queues:
            queue.end()

    def _read(self, received: Iterator[Incoming], call: Call, queue: _StreamQueue) -> None:
        """Submit the requests of a stream; runs on the reader thread."""
        try:
            for incoming in received:
                if not queue.accept():
                    break
                entry = _Entry(self._infer, incoming, call, queue.wake)
                run_infer(entry, self._engine, waits=True)
                if not queue.put(entry):
                    entry.cancel()  # the queue was closed meanwhile
                    break
        except Exception as error:  # noqa: BLE001  (the pool would drop it)
            queue.fail(error)
        finally:
            queue.end_reading()

    def _answers(self, queue: _StreamQueue, entry: _Entry, call: Call) -> Iterator[bytes]:
        """Yield intermediate answers while the handler of `entry` runs, and then the final answer of `entry`."""
        if not entry.answers.finished:
            for sender, chunk in queue.chunks(entry):
                if chunk is None:
                    yield from self._last(queue, sender, call)
                    continue
                if isinstance(chunk, bytes):
                    yield PrefixedMessages(chunk)
                    continue
                try:
                    message = self._message(sender, call, chunk, MORE_FOLLOW)
                except KsrvError as error:  # an output cannot be written as the request asks
                    message = self._failed(queue, sender, call, error, MORE_FOLLOW)
                yield message
        yield from self._last(queue, entry, call)

    def _last(self, queue: _StreamQueue, entry: _Entry, call: Call) -> Iterator[bytes]:
        """Yield the final answer of a request, unless it is only an end that the request does not ask for."""
        try:
            response = entry.outcome()
            assert entry.request is not None, "a request that has a response was read"
            chunked = entry.answers.chunked and not response.outputs
            if chunked and not entry.request.mark_final:
                return
            message = self._message(entry, call, response, NONE_FOLLOWS)
        except Exception as error:  # noqa: BLE001  (becomes the answer)
            message = self._failed(queue, entry, call, error, NONE_FOLLOWS)
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
        queue: _StreamQueue,
        entry: _Entry,
        call: Call,
        error: Exception,
        marks: Mapping[str, Parameter],
    ) -> bytes:
        """Report an error and return its message, or end the stream with it."""
        if queue.ends_at_error:
            raise error
        failure = report_grpc(error, call)
        kind = message_class("inference.ModelStreamInferResponse")
        message = kind(error_message=failure.message)
        message.infer_response.id = "" if entry.request is None else entry.request.id
        for name, value in marks.items():
            message.infer_response.parameters[name].bool_param = bool(value)
        encoded: bytes = message.SerializeToString()
        return encoded
