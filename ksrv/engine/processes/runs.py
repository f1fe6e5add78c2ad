"""The worker's side of the batches of one handler process; `calls` has the calls to other models that they make.

`run` and `begin` send a batch as a message. A batch in the ring of shared memory is sent without Python
(`RingDispatcher`); it needs this module only if it makes calls, or if its answer is a message (`take_message`,
`collect`).

One thread at a time receives the messages of the process: the thread that waits for a batch; the thread of the
instance, if a batch in the ring sends a message; or, if the handler has coroutines and runs several batches at once, a
separate thread. The process answers a batch after the results of all its calls.

The process runs user code, so an invalid message ends it. A batch is given up at its deadline: a handler that streams
or has coroutines is notified and has `CANCEL_GRACE_NS` to end the batch; any other process is killed.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from ksrv._native.process.batch_dispatcher import DispatchedRun
from ksrv.engine.executor import ExecutorAbsent
from ksrv.engine.processes import messages
from ksrv.engine.processes.calls import ProcessCalls
from ksrv.engine.processes.link import ChannelClosed, ChannelError, Frame, Link
from ksrv.engine.processes.messages import (
    CHUNK_BYTES_UNDER_WAY,
    NO_BATCH,
    CancelCalls,
    ChunkCredit,
    EndSequences,
    ErrorMessage,
    ListeningMessage,
    MessageType,
    chunk_bytes,
)
from ksrv.engine.processes.run import Run
from ksrv.engine.processes.watcher import HandlerProcess
from ksrv.errors import DeadlineExceeded, HandlerFailed, KsrvError, Overloaded
from ksrv.handlers.concurrent import Done
from ksrv.request import ExecutorInputs, ExecutorOutputs

log = logging.getLogger("ksrv.engine")

CHECK_INTERVAL_NS = 50_000_000
"""How often to check whether clients still wait for a batch that has made calls."""
FLUSH_INTERVAL_NS = 5_000_000
"""How often to try again to send messages that the socket had no room for."""
CANCEL_GRACE_NS = 2_000_000_000
"""How long a handler that was notified of a given-up batch may take to end it."""

_OF_CALLS = (MessageType.CALL, MessageType.CANCEL_CALL)


@dataclass(eq=False)
class ProcessRuns:
    """The batches of one process.

    Args:
        calls: The calls that the batches make.
        lock: The executor's lock, held while a thread uses the link for a batch, and while the process is replaced.
        has_coroutines: Whether the handler has coroutines, so that several batches run at once.
        may_stream: Whether the handler's code can answer in parts. Only such a handler can end a batch early.
    """

    link: Link
    process: HandlerProcess
    calls: ProcessCalls
    lock: threading.Lock
    _: KW_ONLY
    has_coroutines: bool
    may_stream: bool

    def __post_init__(self) -> None:
        # Held while a batch is added to `_open`, and while `_closed` is set, so that no batch is added afterwards.
        self._end_lock = threading.Lock()
        self._open: dict[int, Run] = {}  # the batches without an outcome, by number
        # The running batch of the ring, if it has sent a message.
        self._ring_batch: Run | None = None
        no_requests = ExecutorInputs({}, 0, [])
        no_requests.beside_others = True
        self._no_batch = Run(NO_BATCH, lambda: no_requests)  # has the calls that belong to no batch
        self._closed = False  # the channel has ended
        self._began_ns = time.monotonic_ns()  # the process's age bounds the times that it reports
        self._last_number = 0  # of the batches of `_give`
        # Receives messages, if the handler has coroutines.
        self._thread: threading.Thread | None = None
        if self.has_coroutines:
            self._thread = threading.Thread(
                target=self._serve, args=(lambda: False,), name="ksrv-process-batches", daemon=True
            )
            self._thread.start()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no batch runs; return False after the timeout."""
        if not self.has_coroutines:
            return True  # the caller holds the executor's lock, so no batch runs
        give_up = time.monotonic() + timeout_s
        while self._open and time.monotonic() < give_up:
            time.sleep(0.01)
        return not self._open

    def join(self) -> None:
        """Wait for the end of the receiving thread, which ends after the process."""
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join()

    def end_sequences(self, numbers: list[int]) -> None:
        """Have the process drop the state of sequences."""
        with suppress(ChannelClosed):  # the process ends, and the states with it
            self.link.send(MessageType.END_SEQUENCES, messages.dump(EndSequences(numbers)))

    # ---- batches ----------------------------------------------------------------------------

    def run(self, batch: ExecutorInputs, deadline_ns: int | None) -> ExecutorOutputs:
        """Run a batch and wait for it.

        Args:
            deadline_ns: `time.monotonic_ns` at which the batch is given up, or None.

        Raises:
            ExecutorAbsent: The process had ended before.
            KsrvError: The batch failed, or its process died.
        """
        if self.has_coroutines:
            ended: Future[ExecutorOutputs | KsrvError] = Future()
            self._give(batch, ended.set_result, deadline_ns)
            return _outputs(ended.result())
        return self._wait(self._give(batch, None, deadline_ns))

    def _wait(self, run: Run) -> ExecutorOutputs:
        self._serve(lambda: run.outcome is not None)
        assert run.outcome is not None, "a batch has an outcome once it is over"
        return _outputs(run.outcome)

    def begin(
        self, batch: ExecutorInputs, done: Done, deadline_ns: int | None
    ) -> Callable[[], None]:
        """Give a batch to the process; return a function that cancels the batch.

        Args:
            done: Called once with the outcome, on the receiving thread.
            deadline_ns: As for `run`.

        Raises:
            ExecutorAbsent: The process has ended.
            Overloaded: No memory is left for the message.
        """
        return partial(self._cancel, self._give(batch, done, deadline_ns))

    def _give(self, batch: ExecutorInputs, done: Done | None, due_ns: int | None) -> Run:
        """Send a batch to the process."""
        batch.beside_others = self.has_coroutines
        with self._end_lock:
            if self._closed:
                raise ExecutorAbsent("the process of the handler has ended")
            self._last_number += 1
            number = self._last_number
            run = self._open[number] = Run(number, lambda: batch, done, due_ns)
        try:
            packed = messages.pack_batch(batch, self.link)
            self.link.send(MessageType.RUN, packed, batch_number=number)
        except ChannelClosed:
            pass  # the receiving thread ends this batch with all others
        except Exception as error:
            if self._open.pop(number, None) is None:
                return run  # the receiving thread has ended it, and reported the error
            if isinstance(error, MemoryError):
                raise Overloaded(str(error), "memory") from error
            raise
        # The process needs the clients that still listen, to stop early. Not for a single request of a handler with
        # coroutines: when it ends, the caller of `begin` cancels the batch.
        needs_listening = not self.has_coroutines or len(batch.handles or ()) > 1
        if batch.emit is not None and batch.handles and needs_listening:
            for handle in batch.handles:
                handle.add_done_callback(lambda _: self._send_listening(run))
        return run

    def _cancel(self, run: Run) -> None:
        """Ask the process to stop a batch: a batch for which no client listens is cancelled there."""
        self._send(run, MessageType.LISTENING, ListeningMessage([]))

    def _send_listening(self, run: Run) -> None:
        emit: Any = run.caller().emit
        self._send(run, MessageType.LISTENING, ListeningMessage(sorted(emit.listening())))

    def _send(self, run: Run, kind: MessageType, note: Any) -> None:
        if run.number in self._open:
            with suppress(ChannelClosed):  # the receiving thread ends the batch
                self.link.send(kind, messages.dump(note), batch_number=run.number)

    # ---- batches of the ring ----------------------------------------------------------------

    @property
    def wants_looks(self) -> bool:
        """Whether the dispatcher must return to Python (`take_message`) from time to time, although no message arrives.

        True if the batch in the ring has made calls, whose clients may leave, or if messages wait for room in the
        socket.
        """
        run = self._ring_batch
        return bool((run is not None and run.calls) or self.link.waiting)

    def take_message(self, number: int, inputs: Callable[[], ExecutorInputs]) -> bool:
        """Take a message of the batch that runs in the ring, if one has arrived, and cancel its abandoned calls.

        Args:
            inputs: See `Run`.

        Returns:
            Whether the batch continues; False if it has its answer, or its process has ended.
        """
        with self.lock:
            run = self._in_ring(number, inputs)
            return self._receive(0) is None and run.outcome is None

    def collect(self, dispatched: DispatchedRun, batch: ExecutorInputs) -> ExecutorOutputs:
        """Return the outputs of a batch that the process was given in its ring; see `run`.

        Args:
            batch: The batch, for an answer in a message.
        """
        try:
            if dispatched.fault:
                fault = ChannelError(f"an answer is malformed: {dispatched.fault}")
                raise self.process.violated(fault)
            if dispatched.outputs is not None:
                return ExecutorOutputs(
                    dispatched.outputs, timings=dispatched.timings, exclusive=True
                )
            with self.lock:
                if self.process.ending is not None:
                    raise self.process.died()
                run = self._in_ring(dispatched.batch_number, lambda: batch)
                run.hold(batch)
                run.due_ns = dispatched.deadline_ns
                return self._wait(run)
        finally:
            self.leave_ring()

    def leave_ring(self) -> None:
        """Forget the ring's batch, and cancel its calls."""
        run, self._ring_batch = self._ring_batch, None
        if run is not None:
            self._open.pop(run.number, None)
            run.cancel_calls()

    def _in_ring(self, number: int, inputs: Callable[[], ExecutorInputs]) -> Run:
        """Return the `Run` of the running batch of the ring; made for its first message.

        Numbers of the ring begin at `FIRST_BATCH_NUMBER`, above all numbers of `_give`, so both fit into `_open`.
        """
        run = self._ring_batch
        if run is None or run.number != number:
            self.leave_ring()
            run = self._ring_batch = self._open[number] = Run(number, inputs)
        return run

    # ---- receiving --------------------------------------------------------------------------

    def _serve(self, until: Callable[[], bool]) -> None:
        """Receive messages until `until` returns True. If the channel ends first, all batches fail."""
        while not until():
            failure = self._receive()
            if failure is not None:
                with self._end_lock:
                    self._closed = True
                for number in list(self._open):
                    self._end(number, failure)
                self._no_batch.cancel_calls()
                return

    def _receive(self, until_ns: int | None = None) -> KsrvError | None:
        """Take the next message, see `_step`. If the channel has ended, return the error for all batches."""
        try:
            self._step(until_ns)
        except ChannelClosed:
            return self.process.died()
        except ChannelError as error:
            return self.process.violated(error)
        except BaseException as error:
            log.error("the answers of a handler process cannot be received", exc_info=error)
            self.process.kill_because("its answers cannot be received")
            return HandlerFailed(
                f"the answer of the handler's process cannot be received: {type(error).__name__}"
            )
        return None

    def _step(self, until_ns: int | None = None) -> None:
        """Take the next message, or check the batches at `until_ns` (0: do not wait)."""
        if until_ns is None:
            until_ns = self._next_check_ns()
        try:
            frame = self.link.receive(until_ns)
        except TimeoutError:
            self._check_batches()
            return
        self._take(frame)
        # Check here too, because otherwise a process that sends without pause would never reach its deadline. With 0,
        # the dispatcher of the ring checks the deadline.
        if until_ns and time.monotonic_ns() >= until_ns:
            self._check_batches()

    def _next_check_ns(self) -> int:
        """Return when the batches must be checked next."""
        now = time.monotonic_ns()
        open_batches = list(self._open.values())
        due = [run.due_ns for run in open_batches if run.due_ns is not None]
        if self.link.waiting:
            due.append(now + FLUSH_INTERVAL_NS)
        elif any(run.calls for run in open_batches):
            due.append(now + CHECK_INTERVAL_NS)
        else:
            # Meanwhile another thread may begin a batch with an earlier deadline, or keep a message without room.
            due.append(now + 2 * CHECK_INTERVAL_NS)
        return min(due)

    def _check_batches(self) -> None:
        """Send kept messages, cancel calls without a waiting client, and give up batches after their deadline."""
        if self.link.waiting:
            self.link.flush()
        now = time.monotonic_ns()
        for run in list(self._open.values()):
            run.cancel_abandoned_calls()
            if run.due_ns is None or now < run.due_ns:
                continue
            if run.failure is None:
                text = "the request's deadline passed while the handler ran"
                run.failure = DeadlineExceeded(text)
                streams = self.may_stream and run.caller().emit is not None
                if streams or self.has_coroutines:
                    run.due_ns += CANCEL_GRACE_NS
                    self._cancel(run)
                    continue
            run.due_ns = None
            self.process.kill_because("it had not answered when the deadline passed")

    def _take(self, frame: Frame) -> None:
        """Handle one message."""
        number, kind = frame.batch_number, frame.kind
        run = self._open.get(number)
        if number == NO_BATCH and self.has_coroutines and kind in _OF_CALLS:
            run = self._no_batch
        if kind == MessageType.CALL and run is not None:
            self.calls.submit(run, frame)
        elif kind == MessageType.CANCEL_CALL:
            # The batch may be gone: the ring's answer may be read before this message.
            note = messages.load(CancelCalls, frame)
            if run is not None:
                run.cancel_calls(note.call_ids)
        elif run is None:
            raise ChannelError(f"it speaks of batch {number}, which it does not run")
        elif kind == MessageType.ANSWER:
            self._end(number, self._answer(run, frame))
        elif kind == MessageType.FAILED:
            self._end(number, messages.to_error(messages.load(ErrorMessage, frame)))
        elif kind == MessageType.CHUNK:
            self._hand_on(run, self._answer(run, frame))
        elif kind == MessageType.GIVE_UP:
            self._give_up(run)
        else:
            raise ChannelError(f"a message of the kind {kind} has no place here")

    def _answer(self, run: Run, frame: Frame) -> ExecutorOutputs:
        """Read an answer or a chunk. The process might report absurd times, so they are cut to the process's age."""
        batch = run.caller()
        # `handles` are None for a batch that was not in the queue, such as the check of padding in a warm-up.
        requests = len(batch.requests if batch.handles is None else batch.handles)
        answer = messages.unpack_answer(frame, requests)[1]
        # No stage takes longer than the process has lived.
        lived_ns = time.monotonic_ns() - self._began_ns
        answer.timings = {
            stage: min(max(taken_ns, 0), lived_ns) for stage, taken_ns in answer.timings.items()
        }
        return answer

    def _end(self, number: int, outcome: ExecutorOutputs | KsrvError) -> None:
        """End a batch with its outcome."""
        run = self._open.pop(number, None)
        if run is None:
            return  # the batch could not be sent, and `_give` raised the error
        run.cancel_calls()
        run.outcome = run.failure or outcome
        if run.done is None:
            return
        try:
            run.done(run.outcome)
        except BaseException as error:  # one batch must not end the thread, which serves the others
            log.error("a batch cannot be ended", exc_info=error)

    # ---- chunks -----------------------------------------------------------------------------

    def _hand_on(self, run: Run, chunk: ExecutorOutputs) -> None:
        """Pass a chunk on to the clients."""
        emit: Any = run.caller().emit
        nbytes = chunk_bytes(chunk)
        if emit is not None:
            try:
                emit.offer(chunk)
            except Exception as error:
                log.error("a chunk cannot be handed on", exc_info=error)
                failed = f"a chunk of the answer cannot be sent: {type(error).__name__}"
                run.failure = run.failure or HandlerFailed(failed)
                self._cancel(run)
        with run.lock:
            run.owed_bytes += nbytes
        self._make_room(run)

    def _make_room(self, run: Run) -> None:
        """Send ROOM for the chunks that were passed on, as soon as no client is slow. ROOM is sent for half of the
        bound at a time, so that it is not a message for each chunk.
        """
        emit: Any = run.caller().emit
        if emit is not None and not emit.listening():
            return  # the batch will be cancelled: until then it need not send more
        slow = [] if emit is None else emit.without_room()
        with run.lock:
            owed = run.owed_bytes
            if run.awaits_room or (owed < CHUNK_BYTES_UNDER_WAY // 2 and not slow):
                return
            if slow:
                run.awaits_room = True
            else:
                run.owed_bytes = 0
        if slow:
            emit.call_with_room(slow[0], partial(self._note_room, run))
        else:
            self._send(run, MessageType.ROOM, ChunkCredit(owed))

    def _note_room(self, run: Run) -> None:
        with run.lock:
            run.awaits_room = False
        self._make_room(run)

    def _give_up(self, run: Run) -> None:
        """End the requests whose clients do not read. The process has no knowledge of single clients."""
        emit: Any = run.caller().emit
        if emit is not None:
            for index in emit.stalled():
                emit.give_up(index)


def _outputs(outcome: ExecutorOutputs | KsrvError) -> ExecutorOutputs:
    if isinstance(outcome, KsrvError):
        raise outcome
    return outcome
