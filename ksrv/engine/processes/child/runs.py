"""The batches of a handler process: how they are run, and how their answers and chunks reach the worker.

If the handler has coroutines, its event loop runs many batches at a time. Otherwise the main thread runs them one by
one: batches of the ring in a compiled loop, batches of messages here.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from time import monotonic

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
from ksrv.request import BatchInputs, BatchOutputs

log = logging.getLogger("ksrv.handler")

_WAIT_S = 0.1
"""Of a thread that waits for room, until it looks whether the batch has its answer."""


class Answers:
    """Sends answers, intermediate answers and failures.

    Attributes:
        link: The link for batches.
    """

    def __init__(self, link: Link) -> None:
        self.link = link

    def send(self, kind: MessageType, batch_number: int, outputs: BatchOutputs) -> None:
        """Send a final or an intermediate answer; its tensors are gone from `outputs` afterwards.

        Args:
            kind: ANSWER or CHUNK.

        Raises:
            HandlerFailed: It is too large.
        """
        with bounded("the handler's answer"):
            packed = messages.pack_answer(outputs, self.link.exported)
            # Emptied before sending, because the message names the input blocks without references,
            # and an output may be a view of an input.
            outputs.tensors.clear()
            self.link.send(kind, packed, batch_number=batch_number)

    def fail_batch(self, batch_number: int, error: BaseException) -> None:
        """Tell the worker why a batch has no answer."""
        if isinstance(error, KsrvError):
            self.fail(error.with_traceback(None), batch_number)
            return
        # The runner's own fault, or outputs that do not fit.
        log.error("a batch failed outside of its handler", exc_info=error)
        text = f"the batch's answer cannot be sent: {type(error).__name__}"
        self.fail(HandlerFailed(text), batch_number)

    def fail(self, error: KsrvError, batch_number: int = 0) -> None:
        """Send a failure.

        Args:
            batch_number: The batch; 0 for the load.
        """
        note = messages.dump(messages.to_message(error))
        self.link.send(MessageType.FAILED, note, batch_number=batch_number)


class Chunks:
    """The emitter of one batch, `BatchInputs.emit`.

    The threads of a handler may use it at once. The worker says which clients are left, and how many chunks it has
    handed on, without being asked. Once the batch has its answer nothing more is sent.

    Args:
        inbox: Receives what the worker says.

    Attributes:
        cancel: Cancels the batch's task, if it has a task.
        is_abandoned: Whether no client is left. The last client may leave before the task has begun.
    """

    def __init__(self, batch_number: int, answers: Answers, inbox: Inbox) -> None:
        self.cancel: Callable[[], object] = bool
        self.is_abandoned = False
        self._batch_number = batch_number
        self._answers = answers
        self._inbox = inbox
        self._waiting = Lock()  # held by a thread that waits for room
        self._lock = Lock()
        self._bytes_under_way = 0
        self._callbacks: list[Callable[[], object]] = []
        self._listening: frozenset[int] | None = None  # until the batch begins, or a client leaves
        self._ended = False

    def begin(self, requests: int) -> None:
        """Note that all clients of a batch wait for it, unless the worker has said which."""
        with self._lock:
            if self._listening is None:
                self._listening = frozenset(range(requests))

    def __call__(self, outputs: BatchOutputs) -> None:
        """Hand one chunk on, and wait for slow clients; see `ksrv.request.Emitter`."""
        self.offer(outputs)
        if not self._is_full():
            return
        give_up = monotonic() + STALL_SECONDS
        with self._waiting:
            while not self._inbox.wait_for(lambda: not self._is_full(), _WAIT_S):
                if monotonic() >= give_up:
                    self.give_up(0)
                    return

    def offer(self, outputs: BatchOutputs) -> None:
        """Hand one chunk on without waiting."""
        with self._lock:
            if not self._ended:
                nbytes = chunk_bytes(outputs)  # its tensors are gone once it is sent
                self._answers.send(MessageType.CHUNK, self._batch_number, outputs)
                self._bytes_under_way += nbytes

    def listening(self) -> frozenset[int]:
        """See `ksrv.request.Emitter.listening`."""
        if self._ended:
            return frozenset()
        self._inbox.receive_waiting()
        return self._listening or frozenset()

    def without_room(self) -> list[int]:
        """Return [0] while a client reads more slowly than the handler sends; which one, the worker knows."""
        return [0] if self._is_full() else []

    def _is_full(self) -> bool:
        if self._ended or not self._listening:
            return False
        return self._bytes_under_way >= CHUNK_BYTES_UNDER_WAY

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
                self._answers.link.send(MessageType.GIVE_UP, batch_number=self._batch_number)

    def hear(self, listening: frozenset[int]) -> None:
        """Note which clients are left."""
        if not listening:
            self.is_abandoned = True
            self.cancel()  # first: what waits for clients would go on without any
        with self._lock:
            self._listening = listening
        self.add_room(0)

    def add_room(self, nbytes: int) -> None:
        """Note that the worker has handed chunks on."""
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
        self._inbox.wake()
        with self._waiting:
            pass


class RunLoop:
    """Runs the batches that come, until the worker ends that.

    Args:
        runner: The runner, loaded.
        answers: Sends answers on the link for batches.
        inbox: Receives on that link.
        calls: Submits what the handler calls; has the ring.
        is_concurrent: Whether the handler has coroutines.
    """

    def __init__(
        self,
        runner: Runner,
        answers: Answers,
        inbox: Inbox,
        calls: WorkerCalls,
        is_concurrent: bool,
    ) -> None:
        self._runner = runner
        self._inbox = inbox
        self._answers = answers
        self._calls = calls
        self._is_concurrent = is_concurrent
        self._received: dict[int, Chunks] = {}
        calls.always_receiving = is_concurrent
        inbox.on(MessageType.RUN, self._receive)
        inbox.on(MessageType.LISTENING, self._update_listening)
        inbox.on(MessageType.ROOM, self._add_room)

    def serve(self) -> None:
        """Run batches.

        Raises:
            ChannelClosed: The worker has gone.
        """
        while True:
            frame = self._next()
            if frame.kind == MessageType.CLOSE:
                return
            if frame.kind == MessageType.END_SEQUENCES:
                note = messages.load(EndSequences, frame)
                self._runner.sequences.end(note.sequence_ids)
            elif frame.kind == MessageType.RUN:
                self._begin(frame)
            else:
                raise ChannelError(f"a message was {frame.kind}, not RUN, END_SEQUENCES or CLOSE")

    def _next(self) -> Frame:
        """Run the batches of the ring until a message for this thread has come, and return it."""
        if self._calls.ring is None:
            return self._inbox.take()
        while (frame := self._inbox.taken()) is None:
            self._calls.ring.serve(self._runner.run, self._answer, self._answers.fail_batch)
            self._inbox.receive_waiting()
        return frame

    def _answer(self, batch_number: int, outputs: BatchOutputs) -> None:
        """Answer a batch of the ring, in blocks that the worker has given back if there are such."""
        self._inbox.receive_waiting()
        self._answers.send(MessageType.ANSWER, batch_number, outputs)

    def _receive(self, frame: Frame) -> None:
        """Note a batch before it is run, because what is said about it may come first."""
        number = frame.batch_number
        self._received[number] = Chunks(number, self._answers, self._inbox)
        self._inbox.keep(frame)

    def _update_listening(self, frame: Frame) -> None:
        heard = messages.load(ListeningMessage, frame)
        chunks = self._received.get(frame.batch_number)
        if chunks is not None:  # else its answer is on the way
            chunks.hear(frozenset(heard.indices))

    def _add_room(self, frame: Frame) -> None:
        chunks = self._received.get(frame.batch_number)
        if chunks is not None:
            chunks.add_room(messages.load(ChunkCredit, frame).nbytes)

    def _begin(self, frame: Frame) -> None:
        number = frame.batch_number
        chunks = self._received[number]
        try:
            batch, span = messages.unpack_batch(frame, self._answers.link.imported, chunks)
        except MemoryError as error:
            self._end(number, chunks)
            self._answers.fail_batch(number, error)
            return
        chunks.begin(len(batch.requests))
        self._calls.begin(batch, number)
        if self._is_concurrent:
            self._begin_beside_others(number, batch, span, chunks)
            return
        outputs: BatchOutputs | BaseException
        try:
            with continued(span):
                outputs = self._runner.run(batch)
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001  sent to the worker
            outputs = error
        self._end(number, chunks)
        self._calls.finish(batch)
        del batch  # whose arrays the answer must not keep
        self._finish(number, outputs)

    def _begin_beside_others(
        self, number: int, batch: BatchInputs, span: str, chunks: Chunks
    ) -> None:
        def done(outputs: BatchOutputs | KsrvError) -> None:
            """Answer the batch; on the event loop."""
            self._end(number, chunks)
            self._calls.end(batch)
            with suppress(ChannelClosed):  # the main thread learns of it as well
                self._finish(number, outputs)

        with continued(span):
            chunks.cancel = self._runner.begin(batch, done)
        if chunks.is_abandoned:  # before there was anything to cancel
            chunks.cancel()

    def _end(self, number: int, chunks: Chunks) -> None:
        del self._received[number]
        chunks.end()

    def _finish(self, number: int, outputs: BatchOutputs | BaseException) -> None:
        """Answer a batch."""
        try:
            if isinstance(outputs, BaseException):
                raise outputs
            self._answers.send(MessageType.ANSWER, number, outputs)
        except ChannelClosed:
            raise
        except BaseException as error:  # noqa: BLE001  sent to the worker
            self._answers.fail_batch(number, error)
