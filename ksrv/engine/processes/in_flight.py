"""The batches that a handler process with coroutines runs at a time: the worker's end.

A thread receives what the process sends. A batch whose deadline passes is cancelled; a process that does
not end it then is killed, because a coroutine of it blocks the others.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ksrv._native.process import tensor_descriptors
from ksrv._native.process.channel import ChannelClosed, ChannelError, Frame
from ksrv.engine.executor import ExecutorAbsent, ExecutorDied
from ksrv.engine.processes import messages
from ksrv.engine.processes.calls import BatchCalls, ProcessCalls
from ksrv.engine.processes.child.concurrent import (
    CHUNK_BYTES_UNDER_WAY,
    CHUNKS_UNDER_WAY,
    chunk_bytes,
)
from ksrv.engine.processes.messages import (
    ErrorMessage,
    ListeningMessage,
    MessageType,
    NumbersMessage,
)
from ksrv.errors import DeadlineExceeded, HandlerFailed, KsrvError, Overloaded
from ksrv.handlers.concurrent import Done
from ksrv.request import BatchInputs, BatchOutputs

log = logging.getLogger("ksrv.engine")

LOOK_NS = 100_000_000
"""Between two looks at deadlines and at the clients of calls."""
FLUSH_NS = 5_000_000
"""Between two tries to send what the socket had no room for."""
CANCEL_GRACE_NS = 2_000_000_000
"""For the coroutines of a batch to end after its deadline."""


class BatchInFlight:
    """One batch in the process.

    Args:
        done: Called once with its answer.
        deadline_ns: `time.monotonic_ns` at which it is cancelled, or None.
    """

    def __init__(
        self,
        number: int,
        batch: BatchInputs,
        done: Done,
        deadline_ns: int | None,
        calls: BatchCalls,
    ) -> None:
        self.number = number
        self.batch = batch
        self.done = done
        self.deadline_ns = deadline_ns
        self.calls = calls
        self.failure: KsrvError | None = None
        self.lock = threading.Lock()
        self.owed = 0  # chunks that the process may send again once the clients keep up
        self.owed_bytes = 0
        self.awaits_room = False


class BatchesInFlight:
    """The batches in one process.

    Args:
        calls: The way of the process's calls of other models, with its link.
        died: Returns the error for a process that has gone.
        confused: Kills a process that sent what cannot be read, and returns the error for it.
    """

    def __init__(
        self,
        calls: ProcessCalls,
        *,
        died: Callable[[], ExecutorDied],
        confused: Callable[[ChannelError], ExecutorDied],
        kill: Callable[[str], None],
    ) -> None:
        self._link = calls.link
        self._outbox = calls.outbox
        self._calls = calls
        self._died = died
        self._confused = confused
        self._kill = kill
        self._lock = threading.Lock()
        self._open: dict[int, BatchInFlight] = {}
        self._closed = False
        self._last_number = 0
        self._look_at_ns = 0
        self._thread = threading.Thread(target=self._live, name="ksrv-in-flight", daemon=True)
        self._thread.start()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no batch runs.

        Returns:
            Whether that is so.
        """
        give_up = time.monotonic() + timeout_s
        while self._open and time.monotonic() < give_up:
            time.sleep(0.01)
        return not self._open

    def join(self) -> None:
        """Wait for the end of the thread, after that of the process."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def begin(self, batch: BatchInputs, done: Done, deadline_ns: int | None) -> Callable[[], None]:
        """Run a batch beside others.

        Args:
            done: Called once with its answer, on a thread of its own.
            deadline_ns: `time.monotonic_ns` at which it is cancelled, or None.

        Raises:
            ExecutorAbsent: The process has gone.
            Overloaded: There is no memory for the message.
        """
        link = self._link
        batch.beside_others = True
        try:
            written, blocks = tensor_descriptors.write(batch.tensors.values(), link.exported)
            payload, lenient = messages.pack_batch(batch, written)
        except MemoryError as error:
            raise Overloaded(str(error), "memory") from error
        with self._lock:
            if self._closed:
                raise ExecutorAbsent("the process of the handler has ended")
            self._last_number += 1
            number = self._last_number
            calls = BatchCalls(self._calls, lambda: batch, number)
            one = self._open[number] = BatchInFlight(number, batch, done, deadline_ns, calls)
        try:
            self._outbox.send(
                MessageType.RUN, payload, batch_number=number, blocks=blocks, lenient=lenient
            )
        except ChannelClosed:
            pass  # the thread that receives ends this batch with all others
        except MemoryError as error:
            if self._open.pop(number, None) is not None:  # else the thread has ended it
                raise Overloaded(str(error), "memory") from error
        if batch.emit is not None and batch.handles is not None and len(batch.handles) > 1:
            for handle in batch.handles:
                handle.add_done_callback(lambda _: self._tell_listening(one))
        return partial(self._cancel, one)

    def _cancel(self, one: BatchInFlight) -> None:
        self._send(one, MessageType.LISTENING, ListeningMessage([]))

    def _tell_listening(self, one: BatchInFlight) -> None:
        left: Any = one.batch.emit
        self._send(one, MessageType.LISTENING, ListeningMessage(sorted(left.listening())))

    def _send(self, one: BatchInFlight, kind: MessageType, note: Any) -> None:
        if one.number not in self._open:
            return
        payload, lenient = messages.dump(note)
        with suppress(ChannelClosed):  # the thread that receives ends the batch
            self._outbox.send(kind, payload, batch_number=one.number, lenient=lenient)

    # ---- the thread -------------------------------------------------------------------------

    def _live(self) -> None:
        failure: Callable[[], KsrvError]
        try:
            while True:
                self._step()
        except ChannelClosed:
            failure = self._died
        except ChannelError as error:
            failure = partial(self._confused, error)
        except BaseException as error:
            log.error("the answers of a handler process cannot be received", exc_info=error)
            self._kill("its answers cannot be received")
            failure = self._died
        with self._lock:
            self._closed = True
        if self._open:
            told = failure()
            for number in list(self._open):
                self._end(number, told)

    def _step(self) -> None:
        now = time.monotonic_ns()
        if now >= self._look_at_ns:
            self._look_at_ns = now + LOOK_NS
            self._look(now)
        waiting = self._outbox.waiting
        if waiting:
            self._outbox.flush()
        try:
            frame = self._link.receive(now + (FLUSH_NS if waiting else LOOK_NS))
        except TimeoutError:
            return
        self._take(frame)

    def _look(self, now: int) -> None:
        """Cancel what is late, and kill a process that does not end what was cancelled."""
        for one in list(self._open.values()):
            if one.calls.pending:
                one.calls.cancel_abandoned()
            if one.deadline_ns is None or now < one.deadline_ns:
                continue
            if one.failure is None:
                text = "the request's deadline passed while the handler ran"
                one.failure = DeadlineExceeded(text)
                self._cancel(one)
            elif now >= one.deadline_ns + CANCEL_GRACE_NS:
                self._kill("it did not end a batch that was cancelled at its deadline")

    def _take(self, frame: Frame) -> None:
        number = frame.batch_number
        one = self._open.get(number)
        if one is None:
            raise ChannelError(f"it speaks of batch {number}, which it does not run")
        if frame.kind == MessageType.ANSWER:
            self._end(number, self._answer(one, frame))
        elif frame.kind == MessageType.FAILED:
            note = messages.load(ErrorMessage, frame.payload, frame.lenient)
            self._end(number, messages.to_error(note))
        elif frame.kind == MessageType.CHUNK:
            self._hand_on(one, self._answer(one, frame))
        elif frame.kind in (MessageType.CALL, MessageType.CANCEL_CALL):
            one.calls.take(frame)
        elif frame.kind == MessageType.GIVE_UP:
            self._give_up(one)
        else:
            raise ChannelError(f"a message of the kind {frame.kind} has no place here")

    def _answer(self, one: BatchInFlight, frame: Frame) -> BatchOutputs:
        return messages.unpack_answer(frame, self._link.imported, len(one.batch.requests))

    def _end(self, number: int, outcome: BatchOutputs | KsrvError) -> None:
        one = self._open.pop(number, None)
        if one is None:
            return  # it could not be sent, which its sender was told
        one.calls.close()
        try:
            one.done(one.failure or outcome)
        except BaseException as error:  # it is the batch's failure, not the thread's
            log.error("a batch cannot be ended", exc_info=error)

    # ---- chunks -----------------------------------------------------------------------------

    def _hand_on(self, one: BatchInFlight, chunk: BatchOutputs) -> None:
        emit: Any = one.batch.emit
        nbytes = chunk_bytes(chunk)
        if emit is not None:
            try:
                emit.offer(chunk)
            except Exception as error:
                log.error("a chunk cannot be handed on", exc_info=error)
                failed = f"a chunk of the answer cannot be sent: {type(error).__name__}"
                one.failure = one.failure or HandlerFailed(failed)
                self._cancel(one)
        with one.lock:
            one.owed += 1
            one.owed_bytes += nbytes
        self._make_room(one)

    def _make_room(self, one: BatchInFlight) -> None:
        """Let the process send further chunks once all clients keep up."""
        emit: Any = one.batch.emit
        if emit is not None and not emit.listening():
            return  # the batch is about to be cancelled, and would go on until then
        slow = [] if emit is None else emit.without_room()
        with one.lock:
            owed = one.owed
            few = owed < CHUNKS_UNDER_WAY // 2 and one.owed_bytes < CHUNK_BYTES_UNDER_WAY // 2
            if one.awaits_room or (few and not slow):
                return
            if slow:
                one.awaits_room = True
            else:
                one.owed = one.owed_bytes = 0
        if slow:
            emit.call_with_room(slow[0], partial(self._note_room, one))
        else:
            self._send(one, MessageType.ROOM, NumbersMessage([owed]))

    def _note_room(self, one: BatchInFlight) -> None:
        with one.lock:
            one.awaits_room = False
        self._make_room(one)

    def _give_up(self, one: BatchInFlight) -> None:
        """End the requests whose clients stand still; the process knows only that it waits for room."""
        emit: Any = one.batch.emit
        if emit is not None:
            for index in emit.stalled():
                emit.give_up(index)
