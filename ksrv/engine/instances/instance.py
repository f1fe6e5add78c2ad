"""One instance of a model version: a handler, and the thread that runs batches on it.

The handler is loaded, warmed up and normally run on this thread, because the libraries under a
handler may keep state for each thread. If the executor dies, the requests of its batch go to the next
idle instance, while this instance starts its executor anew (`restarts`).

Inline runs: two changes of thread cost more than a small handler. So a thread that submits a request
to an idle instance may claim the instance's slot and run the request itself (`run_inline`). A thread
of the HTTP server serves other connections too, so it may do so only while the handler is quick, which
`_note_pace` measures. A thread that would only wait for its request may do so at once if the executor
keeps deadlines itself.

Handler processes: requests of the fast path need no Python here. The instance's thread serves the
ring of the process without the GIL (`ksrv._native.process`), and returns to Python for all other
requests.

The steps of a batch itself are compiled, in the base class `InstanceRunner`, which calls the methods
of `Instance` for failures and deadlines.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from ksrv._native.process.batch_dispatcher import DispatchedRun, RingDispatcher
from ksrv._native.process.batch_ring import WorkerRing
from ksrv._native.queue.request_handle import NO_DEADLINE, wake_waiters
from ksrv._native.queue.request_queue import regroup_delay
from ksrv._native.queue.stats import Stats
from ksrv._native.server.instance_runner import (
    FIRST_UNSHARED_KEY,
    MAX_INLINE_CREDIT,
    QUICK_NS,
    InstanceRunner,
)
from ksrv._native.server.request_batch import RequestBatch
from ksrv.engine.executor import Executor, ExecutorAbsent, ExecutorDied
from ksrv.engine.instances.concurrent_instance import ConcurrentInstance
from ksrv.engine.instances.host import InstanceHost, counted_failures, leased
from ksrv.engine.instances.restarts import ExecutorRestarts
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.errors import HandlerFailed, KsrvError
from ksrv.model.spec import ModelSpec
from ksrv.observe import tracing
from ksrv.request import ExecutorInputs, ExecutorOutputs

log = logging.getLogger("ksrv.engine")

MOST_JOINED = 1024
"""The most requests in a batch."""
STALL_NS = 50_000_000
"""A run at least this long takes all inline credit."""
INLINE_CREDIT = 1000
"""Inline execution begins after so many quick runs, each worth a credit of 1. A slower run costs 50, a stall all."""


class InstanceThread(threading.Thread):
    """The thread of an instance."""


def instances_left() -> int:
    """Return how many instances of this process have a thread that has not ended.

    Once all models are closed these are the instances whose handler has not returned.
    """
    return sum(isinstance(thread, InstanceThread) for thread in threading.enumerate())


class Instance(InstanceRunner):
    """One handler and its thread.

    Attributes:
        started: The description that the handler completed, once it is loaded.
        warm: Done once the instance takes batches.
        stats: The counts and times of the instance.
    """

    executor: Executor

    def __init__(self, host: InstanceHost, number: int, executor: Executor) -> None:
        lease = partial(leased, executor.lease)
        super().__init__(host.queue, executor, Stats(), host, lease)
        self._host = host
        host.all_stats.append(self.stats)
        self.tracing = tracing.tracing_of(host.spec.name, host.spec.version)
        self.number = number
        # Set by `serve` and `stop`; the thread waits for it after loading.
        self._go = threading.Event()
        self._dispatcher: RingDispatcher | None = None
        self._restarts = ExecutorRestarts(host, number, executor)
        self.started: Future[ModelSpec] = Future()
        self.warm: Future[None] = Future()
        name = f"ksrv-{host.spec.name}-{number}"
        self._thread = InstanceThread(target=self._live, name=name, daemon=True)
        executor.on_death(self._note_death)

    def start(self) -> None:
        """Start the thread, which loads the handler and then sets `started`."""
        self._thread.start()

    def serve(self, warm_up: "Callable[[Instance], None] | None") -> None:
        """Let a started instance warm up and then take batches; `warm` is set in between.

        Args:
            warm_up: Runs batches on the instance, or None.
        """
        if warm_up is not None:
            self._restarts.warm_up = partial(warm_up, self)
        self._go.set()

    def stop(self) -> None:
        """Never start the executor again, and end the thread if it does not serve yet."""
        self._restarts.stopped = True
        self._go.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread to end, which it does once the model's queue is closed and empty.

        Args:
            timeout: The most seconds to wait; None for no limit.

        Returns:
            Whether the thread has ended.
        """
        if self._thread.ident is not None:  # a thread that was not started cannot be joined
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """End a batch that hangs, if the executor can: a process can be killed, a thread cannot."""
        if self.executor.keeps_deadlines:
            self.executor.close()

    @property
    def available(self) -> bool:
        """Whether the instance can be expected to run a batch: alive, and not stuck in a batch."""
        return self._thread.is_alive() and not self._restarts.due and not self._stuck

    @property
    def returning(self) -> bool:
        """Whether the executor has died and is being started anew."""
        return self._thread.is_alive() and self._restarts.due and not self._stuck

    @property
    def _stuck(self) -> bool:
        busy_since = self.busy_since
        return bool(busy_since) and time.monotonic_ns() - busy_since > self._host.timeout_ns > 0

    @property
    def restarts(self) -> int:
        """How often the executor was started anew."""
        return self._restarts.count

    @property
    def _ring(self) -> WorkerRing | None:
        """The ring of the executor's process. None without one, or for traced batches: only messages carry spans."""
        return None if self.tracing is not None else self.executor.ring

    def execute(self, batch: ExecutorInputs, deadline_ns: int | None = None) -> ExecutorOutputs:
        """Run a batch that no client sent, for warming up.

        Args:
            deadline_ns: When to give up, or None.
        """
        return self.executor.run(batch, deadline_ns)

    # ---- the thread -------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            if self._load():
                most = self._host.spec.concurrency
                if most:
                    ConcurrentInstance(
                        self, self._host, self.executor, self._restarts, most
                    ).serve()
                else:
                    self._serve()
        except BaseException as error:
            name = self._host.spec.name
            log.error("the model %s, instance %d has ended", name, self.number, exc_info=error)
            self._host.instance_lost(
                f"its instance {self.number} ended with {type(error).__name__}; the log says where"
            )
            self._lose_sequences("the instance that had it has ended")
        finally:
            self._leave_ring()
            wake_waiters()
            self.executor.close()

    def _load(self) -> bool:
        try:
            self.started.set_result(self._restarts.first_start())
        except BaseException as error:  # noqa: BLE001  it is raised where `started` is awaited
            self.started.set_exception(_as_exception(error))
            return False
        self._go.wait()
        if self._restarts.stopped:
            return False
        try:
            self._restarts.first_warm_up()
            self.warm.set_result(None)
        except BaseException as error:  # noqa: BLE001  it is raised where `warm` is awaited
            self.warm.set_exception(_as_exception(error))
            return False
        return True

    def _serve(self) -> None:
        """Take and run batches, one at a time, until the queue is closed and empty."""
        host = self._host
        queue = host.queue
        most = host.spec.max_batch_size
        room = MOST_JOINED if most else 1
        take, slot, delay = queue.take, self.slot, host.delay_ns
        if host.runs_inline:
            self._allow_inline(False)
        # How long to wait for the next requests of clients that the last batch has answered together.
        regroup_ns = 0
        # The next work:
        # - None: nothing more; the queue is closed and empty.
        # - A number, only from the dispatcher: the running batch of this number has a message from its process.
        # - A `DispatchedRun`, only from the dispatcher: Python must finish this batch of the ring.
        # - True: the host has a batch that is ready to be run.
        # - Handles: the requests of a new batch.
        # - An empty list: nothing; the thread was woken because the executor died.
        taken: Any
        while True:
            dispatcher = self._take_dispatcher(room)
            if dispatcher is None:
                taken = take(slot, room, most, delay or regroup_ns)
            else:
                taken = dispatcher.serve()
            if taken is None:
                if host.wait_decoded():
                    continue  # the decoded requests are among the ready batches
                break
            if type(taken) is int and dispatcher is not None:
                if dispatcher.ring.batches.take_message(taken, partial(self._caller, dispatcher)):
                    continue  # the batch still runs
                # It has its answer, or its process is ending: `hand_over` returns a `DispatchedRun`, finished below.
                taken = dispatcher.hand_over()
            if type(taken) is DispatchedRun:
                self._finish_dispatched(taken)
                if taken.ring is not self._ring:
                    self._leave_ring()  # other instances need not wait for the new process
                del taken
                if self._restarts.due and not self._restarts.restart():
                    break
                continue
            # A request that runs alone, because its images are slow to decode: they are decoded on another thread.
            if taken is not True and taken and taken[0].batch_key >= FIRST_UNSHARED_KEY:
                host.decode_slow(taken)
                continue
            batch = host.take_ready() if taken is True else self._batch_of(taken)
            regroup_ns = 0
            if batch is not None:
                self._run(batch, False)  # not inline
                regroup_ns = regroup_delay(batch.rows, batch.ran_ns)
            # The last batch's memory is not kept while this thread waits for the next.
            del taken, batch
            if self._restarts.due and not self._restarts.restart():
                break

    def _take_dispatcher(self, room: int) -> RingDispatcher | None:
        """Return the dispatcher of the ring of the executor's process, or None if it has no ring."""
        ring = self._ring
        if self._dispatcher is not None and self._dispatcher.ring is not ring:
            self._leave_ring()
        if self._dispatcher is None and ring is not None:
            host = self._host
            self._dispatcher = RingDispatcher(
                host.queue,
                ring,
                self.stats,
                slot=self.slot,
                room=room,
                max_rows=host.spec.max_batch_size,
                delay_ns=host.delay_ns,
                run_timeout_ns=host.run_timeout_ns,
            )
        return self._dispatcher

    def _caller(self, dispatcher: RingDispatcher) -> ExecutorInputs:
        """Return the Python form of the batch that runs in the process, for its calls to other models."""
        batch: ExecutorInputs = self._calling_batch(dispatcher.running())
        return batch

    def _leave_ring(self) -> None:
        """Stop using the ring: put batches that its process has not begun back into the queue."""
        if self._dispatcher is not None:
            self._dispatcher.put_back()
            self._dispatcher.ring.batches.leave_ring()
        self._dispatcher = None

    def _decode_slow(self, handles: list[QueuedRequest]) -> None:
        """See `InstanceHost.decode_slow`. Called by `InstanceRunner`, for an inline run."""
        self._host.decode_slow(handles)

    # ---- a batch ----------------------------------------------------------------------------

    def _failure_of(self, batch: RequestBatch, error: BaseException) -> KsrvError | None:
        """Return the error that ends the requests of a batch; None if they were queued again."""
        if isinstance(error, ExecutorDied):
            return self._requeue(batch, error)
        # Without its traceback: the frames refer to the batch, whose requests refer to the error, which makes a cycle.
        found = error if isinstance(error, KsrvError) else self._failure(error)
        return found.with_traceback(None)

    def _answer_failed(self, batch: RequestBatch, failure: KsrvError, later: bool) -> None:
        answers = [failure] * len(batch.handles)
        self._host.finish(batch, answers, self.stats, {}, later=later)

    def _fail(self, handles: list[QueuedRequest], error: BaseException) -> None:
        """Answer the requests of a batch that are still open."""
        answers = [self._failure(error)] * len(handles)
        self.queue.finish(handles, answers, count=counted_failures(self.stats))

    def _failure(self, error: BaseException) -> KsrvError:
        name = self._host.spec.name
        log.error("a batch of the model %s failed", name, exc_info=error)
        return HandlerFailed(f"a batch of the model {name} failed: {type(error).__name__}")

    def _deadline(self, handles: list[QueuedRequest], began: int) -> int | None:
        """Return when the executor gives up, on the clock of `time.monotonic_ns`; None for never."""
        deadline = max([handle.deadline_ns for handle in handles])
        if self._host.run_timeout_ns:
            deadline = min(deadline, began + self._host.run_timeout_ns)
        return None if deadline == NO_DEADLINE else deadline

    def _note_pace(self, ran_ns: int, assembled_ns: int) -> None:
        """Earn or lose inline credit by a run, and allow or forbid inline runs when the credit passes a bound."""
        before = self.inline_credit
        if ran_ns < QUICK_NS:
            credit = min(before + 1, MAX_INLINE_CREDIT)
        else:
            credit = max(before - 50, 0) if ran_ns < STALL_NS else 0
        self.inline_credit = credit
        queue = self.queue
        if self._host.runs_inline:
            # Credit rises by 1, so a rise cannot pass the bound without being equal to it.
            if credit == INLINE_CREDIT:
                self._allow_inline(True)
            elif credit < INLINE_CREDIT // 2 <= before:
                self._allow_inline(False)
        queue.note_run(ran_ns, assembled_ns)

    def _allow_inline(self, quick: bool) -> None:
        """Set which threads may run requests inline.

        Args:
            quick: Whether the handler has earned `INLINE_CREDIT`.
        """
        host, queue = self._host, self.queue
        queue.inline_for_blocked = quick or self.executor.keeps_deadlines
        # Only one I/O thread at a time runs Python, so with several instances all but one would be idle.
        # With a ring, the I/O threads leave the batches to the dispatcher.
        suits_io_threads = host.config.instances == 1 and self._ring is None
        queue.inline_for_all = quick and suits_io_threads

    # ---- deaths -----------------------------------------------------------------------------

    def _requeue(self, batch: RequestBatch, error: ExecutorDied) -> KsrvError | None:
        """Queue the requests of a batch again after its executor died. Return an error if they must end instead."""
        name = self._host.spec.name
        attempts = batch.attempts
        # Absent: it had died before the batch, and that was logged.
        if not isinstance(error, ExecutorAbsent):
            log.error("the model %s, instance %d: %s", name, self.number, error.message)
            # A second run would send the intermediate answers of the first again.
            if not self._host.retry or (batch.emit is not None and batch.emit.sent):
                return error
            if attempts:
                return HandlerFailed(
                    f"the request ended two handler processes of the model {name} and is not tried "
                    f"again: {error.message}"
                )
            attempts = 1
        # Each request in a separate batch, so that a request that kills its process ends no other request.
        for handle in batch.handles:
            again = self._host.new_batch()
            again.attempts = attempts
            self._host.fill(again, [handle], self.stats)
            if again.handles:
                self._host.requeue(again)
        return None

    def _note_death(self, reason: str) -> None:
        self._lose_sequences(reason)
        self._restarts.note_death()
        self.queue.nudge(self.slot)

    # ---- sequences --------------------------------------------------------------------------

    def _lose_sequences(self, reason: str) -> None:
        if self._host.sequences is not None:
            self._host.sequences.lose(self.slot, reason)


def _as_exception(error: BaseException) -> Exception:
    """Return an error for the waiting thread: a SystemExit of the handler must not end that thread."""
    if isinstance(error, Exception):
        return error
    told = HandlerFailed(f"the handler ended with {type(error).__name__}: {error}")
    told.__cause__ = error
    return told
