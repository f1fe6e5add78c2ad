"""Runs the batches of a handler process, and sends their answers and chunks to the worker.

The main thread stays in `RunLoop.serve`. If the handler has coroutines, the main thread receives the batches and the
event loop runs many of them at a time. Otherwise the main thread runs one batch after the other: batches in the ring in
a compiled loop (`ProcessRing.serve`), batches in messages here.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from time import monotonic

from ksrv._native.server.response_stream import ChunkWriter
from ksrv.engine.processes import messages
from ksrv.engine.processes.child.calls import WorkerCalls
from ksrv.engine.processes.child.inbox import Inbox
from ksrv.engine.processes.link import ChannelClosed, ChannelError, Frame, Link
from ksrv.engine.processes.messages import (
    CHUNK_BYTES_UNDER_WAY,
    ChunkCredit,
    EndSequences,
    ListeningMessage,
    MessageType,
    bounded,
    chunk_bytes,
)
from ksrv.errors import HandlerFailed, KsrvError
from ksrv.handlers.concurrent import STALL_SECONDS
from ksrv.handlers.runner import Runner
from ksrv.observe.tracing import continued
from ksrv.request import ExecutorInputs, ExecutorOutputs

log = logging.getLogger("ksrv.handler")

_WAIT_S = 0.1
"""How often a thread that waits for a slow client checks whether it has waited too long."""


class Answers:
    """Sends answers, intermediate answers and failures.

    Attributes:
        link: The link for batches.
    """

    def __init__(self, link: Link) -> None:
        self.link = link

    def send(self, kind: MessageType, batch_number: int, outputs: ExecutorOutputs) -> None:
        """Send a final or an intermediate answer.

        Args:
            kind: ANSWER or CHUNK.

        Raises:
            HandlerFailed: The answer is too large.
        """
        with bounded("the handler's answer"):
            packed = messages.pack_answer(outputs, self.link)
            self.link.send(kind, packed, batch_number=batch_number)

    def fail_batch(self, batch_number: int, error: BaseException) -> None:
        """Send the error of a batch."""
        if isinstance(error, KsrvError):
            self.fail(error.with_traceback(None), batch_number)
            return
        # Not an error of the handler: a bug in the runner, or outputs that cannot be sent.
        log.error("a batch failed outside of its handler", exc_info=error)
        text = f"the batch's answer cannot be sent: {type(error).__name__}"
        self.fail(HandlerFailed(text), batch_number)

    def fail(self, error: KsrvError, batch_number: int = 0) -> None:
        """Send a failure.

        Args:
            batch_number: The batch; 0 if the model could not be loaded.
        """
        note = messages.dump(messages.to_message(error))
        self.link.send(MessageType.FAILED, note, batch_number=batch_number)


@dataclass(eq=False)
class Chunks:
    """The emitter of one batch, `ExecutorInputs.emit`. Sends chunks to the worker until the batch has ended.

    Any thread of the handler may use it. The worker sends messages about the clients: which clients still listen
    (LISTENING), and how many bytes of chunks it has passed on to them (ROOM). If the clients read slowly, the handler
    waits, so that the worker need not keep many chunks.

    Args:
        inbox: Receives the messages of the worker.

    Attributes:
        cancel: Cancels the batch's task, if it has a task; until then `bool`, which does nothing.
        is_abandoned: Whether no client is left. The last client may leave before the task has begun.
    """

    batch_number: int
    answers: Answers
    inbox: Inbox
    cancel: Callable[[], object] = bool
    is_abandoned: bool = False
    writer: ChunkWriter | None = None  # only the worker knows the forms of the streams
    _waiting: Lock = field(default_factory=Lock)  # held by a thread that waits for room
    _lock: Lock = field(default_factory=Lock)
    _bytes_under_way: int = 0
    _callbacks: list[Callable[[], object]] = field(default_factory=list)
    _listening: frozenset[int] | None = None  # None until the batch begins or a client leaves
    _ended: bool = False

    def begin(self, requests: int) -> None:
        """Note that all clients of a batch listen, unless a LISTENING message has arrived already."""
        with self._lock:
            if self._listening is None:
                self._listening = frozenset(range(requests))

    def __call__(self, outputs: ExecutorOutputs) -> None:
        """Send one chunk, and wait for slow clients; see `ksrv.request.Emitter`."""
        self.offer(outputs)
        if not self._is_full():
            return
        give_up = monotonic() + STALL_SECONDS
        with self._waiting:
            while not self.inbox.wait_for(lambda: not self._is_full(), _WAIT_S):
                if monotonic() >= give_up:
                    self.give_up(0)
                    return

    def offer(self, outputs: ExecutorOutputs) -> None:
        """Send one chunk without waiting."""
        with self._lock:
            if not self._ended:
                self.answers.send(MessageType.CHUNK, self.batch_number, outputs)
                self._bytes_under_way += chunk_bytes(outputs)

    def listening(self) -> frozenset[int]:
        """See `ksrv.request.Emitter.listening`."""
        if self._ended:
            return frozenset()
        self.inbox.receive_arrived()
        return self._listening or frozenset()

    def without_room(self) -> list[int]:
        """Return [0] while a client reads more slowly than the handler sends. Only the worker knows which client."""
        return [0] if self._is_full() else []

    def _is_full(self) -> bool:
        if self._ended or not self._listening:
            return False
        return self._bytes_under_way >= CHUNK_BYTES_UNDER_WAY

    def call_with_room(self, index: int, callback: Callable[[], object]) -> None:
        """Have a function called as soon as the clients keep up or have left.

        Args:
            index: An entry of `without_room`.
        """
        with self._lock:
            if self._is_full():
                self._callbacks.append(callback)
                return
        callback()

    def give_up(self, index: int) -> None:
        """End the requests whose clients do not read.

        Args:
            index: An entry of `without_room`.
        """
        with self._lock:
            if not self._ended:
                self.answers.link.send(MessageType.GIVE_UP, batch_number=self.batch_number)

    def hear(self, listening: frozenset[int]) -> None:
        """Note which clients still listen."""
        if not listening:
            self.is_abandoned = True
            self.cancel()  # before `add_room`, whose callbacks would continue the task
        with self._lock:
            self._listening = listening
        self.add_room(0)

    def add_room(self, nbytes: int) -> None:
        """Note that the worker has passed on so many bytes of chunks."""
        with self._lock:
            self._bytes_under_way -= nbytes
            if self._is_full():
                return
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def end(self) -> None:
        """Send nothing more: the batch has its answer."""
        with self._lock:
            self._ended = True
        # A handler's thread that outlives the batch must not receive messages for the next batch.
        self.inbox.wake()
        with self._waiting:  # such a thread holds the lock until it has stopped receiving
            pass


@dataclass(eq=False)
class RunLoop:
    """Runs batches until the worker sends CLOSE.

    Args:
        runner: The runner, after its handler was loaded.
        answers: Sends answers on the link for batches.
        inbox: Receives on the same link.
        calls: Sends the handler's calls to other models. It also has the ring, or None for the ring.
        is_concurrent: Whether the handler has coroutines.
    """

    runner: Runner
    answers: Answers
    inbox: Inbox
    calls: WorkerCalls
    is_concurrent: bool
    _received: dict[int, Chunks] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.calls.always_receiving = self.is_concurrent
        self.inbox.on(MessageType.RUN, self._receive)
        self.inbox.on(MessageType.LISTENING, self._update_listening)
        self.inbox.on(MessageType.ROOM, self._add_room)

    def serve(self) -> None:
        """Receive messages and run batches, on the main thread.

        Raises:
            ChannelClosed: The worker has closed the socket or is dead.
        """
        while True:
            frame = self._next()
            if frame.kind == MessageType.CLOSE:
                return
            if frame.kind == MessageType.END_SEQUENCES:
                note = messages.load(EndSequences, frame)
                self.runner.sequences.end(note.sequence_ids)
            elif frame.kind == MessageType.RUN:
                self._begin(frame)
            else:
                raise ChannelError(f"a message was {frame.kind}, not RUN, END_SEQUENCES or CLOSE")

    def _next(self) -> Frame:
        """Run the batches of the ring until a message for this thread has arrived, and return the message."""
        if self.calls.ring is None:
            return self.inbox.next_kept()
        while (frame := self.inbox.poll_kept()) is None:
            self.calls.ring.serve(
                self.runner.run,
                partial(self.answers.send, MessageType.ANSWER),
                self.answers.fail_batch,
            )
            self.inbox.receive_arrived()
        return frame

    def _receive(self, frame: Frame) -> None:
        """Note a batch before it is run, because messages about its clients may arrive before that."""
        number = frame.batch_number
        self._received[number] = Chunks(number, self.answers, self.inbox)
        self.inbox.keep(frame)

    def _update_listening(self, frame: Frame) -> None:
        heard = messages.load(ListeningMessage, frame)
        chunks = self._received.get(frame.batch_number)
        if chunks is not None:  # else the batch has its answer already
            chunks.hear(frozenset(heard.indices))

    def _add_room(self, frame: Frame) -> None:
        chunks = self._received.get(frame.batch_number)
        if chunks is not None:
            chunks.add_room(messages.load(ChunkCredit, frame).nbytes)

    def _begin(self, frame: Frame) -> None:
        """Run the batch of a RUN message, or start it on the event loop."""
        number = frame.batch_number
        chunks = self._received[number]
        try:
            batch, span = messages.unpack_batch(frame, chunks)
        except MemoryError as error:  # fails only this batch; a malformed message ends the process
            self._end(number, chunks)
            self.answers.fail_batch(number, error)
            return
        chunks.begin(len(batch.requests))
        self.calls.begin(batch, number)
        if self.is_concurrent:
            self._begin_beside_others(number, batch, span, chunks)
            return
        outputs: ExecutorOutputs | BaseException
        try:
            with continued(span):
                outputs = self.runner.run(batch)
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001  sent to the worker
            outputs = error
        self._end(number, chunks)
        self.calls.end_alone(batch)
        # Releases the slots with its tensors before the worker learns that the batch has ended.
        del batch
        self._finish(number, outputs)

    def _begin_beside_others(
        self, number: int, batch: ExecutorInputs, span: str, chunks: Chunks
    ) -> None:
        def done(outputs: ExecutorOutputs | KsrvError) -> None:
            """Answer the batch. Runs on the event loop."""
            self._end(number, chunks)
            self.calls.end(batch)
            # The main thread gets the same error, and ends the process.
            with suppress(ChannelClosed):
                self._finish(number, outputs)

        with continued(span):
            chunks.cancel = self.runner.begin(batch, done)
        if chunks.is_abandoned:  # the last client left before `cancel` was set
            chunks.cancel()

    def _end(self, number: int, chunks: Chunks) -> None:
        """End the chunks of a batch, before the batch is answered."""
        del self._received[number]
        chunks.end()

    def _finish(self, number: int, outputs: ExecutorOutputs | BaseException) -> None:
        """Answer a batch."""
        try:
            if isinstance(outputs, BaseException):
                raise outputs
            self.answers.send(MessageType.ANSWER, number, outputs)
        except ChannelClosed:
            raise
        except BaseException as error:  # noqa: BLE001  sent to the worker
            self.answers.fail_batch(number, error)
