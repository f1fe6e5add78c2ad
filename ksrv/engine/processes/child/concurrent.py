"""A handler process whose handler has coroutines: it runs many batches at a time.

The main thread receives, the handler's event loop runs the batches, and each is answered when it ends. The
worker says which clients are left, and how many chunks of each batch may be under way, without being asked.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from ksrv._native.process.channel import ChannelClosed, ChannelError, Frame, Link
from ksrv.engine.processes import messages
from ksrv.engine.processes.child.answers import Answers
from ksrv.engine.processes.child.calls import CallsHome
from ksrv.engine.processes.child.inbox import Inbox
from ksrv.engine.processes.messages import ListeningMessage, MessageType, NumbersMessage
from ksrv.errors import KsrvError
from ksrv.handlers.concurrent import STALL_SECONDS
from ksrv.handlers.runner import Runner
from ksrv.observe.tracing import continued
from ksrv.request import BatchInputs, BatchOutputs

CHUNKS_UNDER_WAY = 32
"""Chunks of a batch that are sent before the worker has said that its clients keep up."""
CHUNK_BYTES_UNDER_WAY = 1 << 18
"""Bytes of their tensors; one chunk may be larger."""


def chunk_bytes(outputs: BatchOutputs) -> int:
    """Return the bytes of a chunk's tensors."""
    return sum(tensor.nbytes for tensor in outputs.tensors)


class ConcurrentChunks:
    """The emitter of one batch among many."""

    def __init__(self, batch_number: int, answers: Answers) -> None:
        self._batch_number = batch_number
        self._answers = answers
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._under_way: deque[int] = deque()  # the bytes of each chunk
        self._nbytes = 0
        self._callbacks: list[Callable[[], object]] = []
        self._listening: frozenset[int] = frozenset()
        self._ended = False

    def begin(self, requests: int) -> None:
        """Note that all clients of a batch wait for it."""
        self._listening = frozenset(range(requests))

    def __call__(self, outputs: BatchOutputs) -> None:
        """Hand one chunk on, and wait for slow clients; see `ksrv.request.Emitter`."""
        self.offer(outputs)
        with self._has_room:
            kept_up = self._has_room.wait_for(lambda: not self._is_full(), STALL_SECONDS)
        if not kept_up:
            self.give_up(0)

    def offer(self, outputs: BatchOutputs) -> None:
        """Hand one chunk on without waiting."""
        with self._lock:
            if not self._ended:
                nbytes = chunk_bytes(outputs)  # its tensors are gone once it is sent
                self._answers.send(MessageType.CHUNK, self._batch_number, outputs)
                self._under_way.append(nbytes)
                self._nbytes += nbytes

    def listening(self) -> frozenset[int]:
        """See `ksrv.request.Emitter.listening`."""
        return self._listening

    def without_room(self) -> list[int]:
        """Return [0] while a client reads more slowly than the handler sends; which one, the worker knows."""
        with self._lock:
            return [0] if self._is_full() else []

    def _is_full(self) -> bool:
        if self._ended or not self._listening:
            return False
        return len(self._under_way) >= CHUNKS_UNDER_WAY or self._nbytes >= CHUNK_BYTES_UNDER_WAY

    def call_with_room(self, index: int, callback: Callable[[], object]) -> None:
        """Have a function called once the clients keep up, or have gone.

        Args:
            index: Of `without_room`.
        """
        with self._lock:
            if self._is_full():
                self._callbacks.append(callback)
                return
        callback()

    def give_up(self, index: int) -> None:
        """End the requests whose clients do not read.

        Args:
            index: Of `without_room`.
        """
        with self._lock:
            if not self._ended:
                self._answers.outbox.send(MessageType.GIVE_UP, batch_number=self._batch_number)

    def hear(self, listening: frozenset[int]) -> None:
        """Note which clients are left."""
        self._listening = listening
        self.add_room(0)

    def add_room(self, chunks: int) -> None:
        """Note that the worker takes further chunks.

        Args:
            chunks: The number of those that it took.
        """
        with self._has_room:
            for _ in range(min(chunks, len(self._under_way))):
                self._nbytes -= self._under_way.popleft()
            if self._is_full():
                return
            callbacks, self._callbacks = self._callbacks, []
            self._has_room.notify_all()
        for callback in callbacks:
            callback()

    def end(self) -> None:
        """Send nothing more: the batch has its answer."""
        with self._lock:
            self._ended = True


class RunningBatch:
    """A batch that the handler's event loop runs.

    Attributes:
        chunks: As given.
        cancel: Cancels its task.
    """

    def __init__(self, chunks: ConcurrentChunks) -> None:
        self.chunks = chunks
        self.cancel: Callable[[], object] = bool


def serve_concurrently(
    runner: Runner, link: Link, inbox: Inbox, answers: Answers, calls: CallsHome
) -> None:
    """Run the batches that come until the worker ends that.

    Raises:
        ChannelClosed: The worker has gone.
    """
    running: dict[int, RunningBatch] = {}
    calls.always_receiving = True
    while True:
        frame = inbox.take(lambda _: True)
        if frame.kind == MessageType.CLOSE:
            return
        if frame.kind == MessageType.RUN:
            _begin(frame, runner, link, answers, calls, running)
        elif frame.kind == MessageType.LISTENING:
            heard = messages.load(ListeningMessage, frame.payload, frame.lenient)
            batch = running.get(frame.batch_number)
            if batch is not None:  # else its answer is on the way
                if not heard.indices:
                    batch.cancel()  # first: what waits for clients would go on without any
                batch.chunks.hear(frozenset(heard.indices))
        elif frame.kind == MessageType.ROOM:
            note = messages.load(NumbersMessage, frame.payload, frame.lenient)
            batch = running.get(frame.batch_number)
            if batch is not None:
                batch.chunks.add_room(sum(note.numbers))
        elif frame.kind == MessageType.END_SEQUENCES:
            note = messages.load(NumbersMessage, frame.payload, frame.lenient)
            runner.sequences.end(note.numbers)
        else:
            raise ChannelError(f"a message was {frame.kind}, which has no place here")


def _begin(
    frame: Frame,
    runner: Runner,
    link: Link,
    answers: Answers,
    calls: CallsHome,
    running: dict[int, RunningBatch],
) -> None:
    number = frame.batch_number
    chunks = ConcurrentChunks(number, answers)
    batch: BatchInputs
    batch, span = messages.unpack_batch(frame, link.imported, lambda: chunks)
    chunks.begin(len(batch.requests))
    calls.begin(batch, number)
    under_way = running[number] = RunningBatch(chunks)

    def done(outputs: BatchOutputs | KsrvError) -> None:
        """Answer the batch; on the event loop."""
        del running[number]
        chunks.end()
        calls.end(batch)
        with suppress(ChannelClosed):  # the main thread learns of it as well
            try:
                if isinstance(outputs, KsrvError):
                    raise outputs
                answers.send(MessageType.ANSWER, number, outputs)
            except ChannelClosed:
                raise
            except BaseException as error:  # noqa: BLE001  the worker is told, whatever it is
                answers.fail_batch(number, error)

    with continued(span):
        under_way.cancel = runner.begin(batch, done)
