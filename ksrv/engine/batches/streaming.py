"""Passes the intermediate answers (chunks) of a running batch to the requests that stream: `ChunkSender`.

A handler sends a chunk for all requests of its batch, or for the requests in `ExecutorOutputs.only`. It is split into
parts like a final answer, so the handler cannot change a part while it is sent. Requests that have ended, because the
client left or the deadline passed, are skipped. A chunk that is marked as the last, or has no tensors, ends its
requests; the other requests of the batch continue. A chunk for no request only marks the answers as streamed.

A `ChunkWriter` writes the later chunks of one output natively, unless their form changes or a client has no room.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ksrv._native.queue.request_queue import Queue
from ksrv._native.server.response_stream import ChunkWriter
from ksrv.engine.batches.split import split
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.engine.requests.refusals import answer_without_room
from ksrv.errors import KsrvError, RequestTooSlow
from ksrv.handlers.outputs import DEFAULT_NAME
from ksrv.handlers.streaming.chunk_forms import ENDED
from ksrv.model.spec import ModelSpec
from ksrv.request import ExecutorOutputs, InferResponse

log = logging.getLogger("ksrv.engine")

STALL_SECONDS = 10.0
"""If a client takes no chunk of a full stream for this time, its request is ended, because the handler waits for it."""


@dataclass(eq=False)
class ChunkSender:
    """The emitter of one batch, `ExecutorInputs.emit`.

    Args:
        queue: The queue that the requests came from; it ends requests.

    Attributes:
        sent: Whether a client has received a chunk.
        ended: The answers of requests that ended before their batch, by index.
        writer: Writes chunks that have the form of an earlier chunk; None if the requests allow no fixed form.
    """

    spec: ModelSpec
    handles: Sequence[QueuedRequest]
    queue: Queue | None = None
    sent: bool = False
    ended: dict[int, InferResponse | KsrvError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._streams = [handle.request.stream for handle in self.handles]
        self.writer = self._make_writer()

    def _make_writer(self) -> ChunkWriter | None:
        """Return the writer, or None if the model has several outputs, or a request needs an `InferResponse`."""
        outputs = self.spec.outputs
        if len(outputs) > 1 or not all(map(_may_have_form, self.handles)):
            return None
        # The output for texts that a handler sends: the only output if it is BYTES (None: numbers), or without declared
        # outputs the output that a bare text becomes.
        name: str | None = DEFAULT_NAME
        rank = 1
        for only in outputs:  # at most one
            name, rank = only.name if only.datatype == "BYTES" else None, len(only.shape)
        # Without batches a chunk is one text; with batches it is a list with a text for each row.
        is_text = len(self.handles) == 1 and not self.spec.max_batch_size
        return ChunkWriter(list(self.handles), self._streams, ENDED, name, rank, is_text)

    def __call__(self, outputs: ExecutorOutputs) -> None:
        """Send a chunk to its requests, and wait for slow clients."""
        self._send(outputs)
        for index in self.without_room():
            self._wait_for(index)

    def offer(self, outputs: ExecutorOutputs) -> None:
        """Send a chunk to its requests without waiting. A request whose client is far behind is ended."""
        for index, (handle, stream) in enumerate(zip(self.handles, self._streams, strict=True)):
            if stream is not None and stream.is_far_behind() and not handle.done():
                self._finish(
                    index,
                    RequestTooSlow(
                        "the handler sent the answers of the stream faster than the client took "
                        "them, and did not wait; read the answers as they come"
                    ),
                )
        self._send(outputs)

    def _send(self, outputs: ExecutorOutputs) -> None:
        for stream in self._streams:
            if stream is not None:
                stream.chunked = True
        if not outputs.tensors:
            for index in outputs.only or ():
                self._end(index, outputs)
            return
        if self.writer is not None and self.writer.write_outputs(outputs):
            return
        answers = split(self.spec, self.handles, outputs, {}, None)
        for index, answer in enumerate(answers):
            handle, stream = self.handles[index], self._streams[index]
            if stream is None or handle.done():
                continue
            if outputs.only is not None and index not in outputs.only:
                continue
            if outputs.last:
                self._finish(index, answer)
            elif isinstance(answer, InferResponse):
                if handle.request.on_chunk is not None:
                    handle.request.on_chunk(answer)
                if stream.put(answer):
                    self.sent = True
                    if self.writer is not None and len(answer.outputs) == 1:
                        stream.fix_form(answer)
                else:
                    self._finish(index, answer_without_room())
            else:
                log.error("an intermediate answer is dropped: %s", answer.message)

    def _end(self, index: int, outputs: ExecutorOutputs) -> None:
        """End a request with its error, or with an answer without outputs."""
        handle = self.handles[index]
        answer = outputs.failures.get(index) or InferResponse(
            self.spec.name, self.spec.version, handle.request.id, []
        )
        self._finish(index, answer)

    def _finish(self, index: int, answer: InferResponse | KsrvError) -> None:
        if self.queue is not None and self.queue.finish([self.handles[index]], [answer])[0]:
            self.ended[index] = answer
            self.sent = self.sent or isinstance(answer, InferResponse)

    def without_room(self) -> list[int]:
        """Return the indices of the requests whose streams are full, because their clients read slowly."""
        return [
            index
            for index, stream in enumerate(self._streams)
            if stream is not None and not stream.has_room() and not self.handles[index].done()
        ]

    def call_with_room(self, index: int, callback: Callable[[], object]) -> None:
        """Call a function once the stream of a request has room, or its client has gone.

        Args:
            callback: Called on the thread that makes room; must not block.
        """
        self._streams[index].call_with_room(callback)

    def _wait_for(self, index: int) -> None:
        if not self._streams[index].wait_room(time.monotonic_ns() + int(STALL_SECONDS * 1e9)):
            self.give_up(index)

    def stalled(self) -> list[int]:
        """Return the indices of the requests whose clients took nothing for `STALL_SECONDS`."""
        since = time.monotonic_ns() - int(STALL_SECONDS * 1e9)
        return [
            index for index in self.without_room() if not self._streams[index].taken_since(since)
        ]

    def give_up(self, index: int) -> None:
        """End a request whose client does not read."""
        self._finish(
            index,
            RequestTooSlow(
                f"the client took no answer of its stream for {STALL_SECONDS:.0f} s, and the handler "
                f"waited for it; read the answers as they come"
            ),
        )

    def listening(self) -> frozenset[int]:
        """See `ksrv.request.Emitter.listening`."""
        return frozenset(index for index, handle in enumerate(self.handles) if not handle.done())


def _may_have_form(handle: QueuedRequest) -> bool:
    """Tell whether chunks of a request may be written without an `InferResponse`: nothing but its front end needs it."""
    request = handle.request
    stream = request.stream
    if stream is None or stream.form_of is None or handle.rows != 1 or handle.lengths:
        return False
    if request.explain or request.on_chunk is not None or request.remember is not None:
        return False
    return not any(
        out.classification or out.parameters or out.shared_memory for out in request.outputs
    )


def chunk_sender(
    spec: ModelSpec, handles: Sequence[QueuedRequest], queue: Queue | None = None
) -> ChunkSender | None:
    """Return the emitter of a batch, or None if no client streams.

    Args:
        queue: The queue that the requests came from.
    """
    for handle in handles:
        if handle.request.stream is not None:
            return ChunkSender(spec, handles, queue)
    return None
