"""One instance of a model version: a handler, and a thread of its own that runs batches on it.

The handler is loaded, warmed up and normally run on this one thread, because what handlers stand on
may keep state for its thread. A batch whose executor dies is offered to whichever instance is idle
first; this one starts its executor anew, at the pace that the executor sets.

Two changes of thread cost more than a small handler. So once a handler has proven quick, a thread
that submits a request while nothing else waits may claim the instance's slot and run the request
itself (`run_inline`). Slow runs end that. A thread that would only wait for its request needs no
proof where the executor keeps deadlines by itself; a thread of the HTTP server has others to serve.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from ksrv._native.queue import request_queue as native
from ksrv._native.queue.stats import Stats
from ksrv._native.server import model_endpoint
from ksrv.engine.batches.batch import PendingBatch, RunnableBatch, finish
from ksrv.engine.batches.fast_batch import FastBatch, FastBatches
from ksrv.engine.executors import Executor, ExecutorDied
from ksrv.engine.host import InstanceHost
from ksrv.engine.request_handle import QueuedRequest
from ksrv.engine.validation import APART
from ksrv.errors import HandlerFailed, KsrvError
from ksrv.request import BatchInputs, BatchOutputs
from ksrv.spec import ModelSpec

log = logging.getLogger("ksrv.engine")

STARTS_IN_A_ROW = 5
MOST_JOINED = 1024
QUICK_NS = 1_000_000
STALL_NS = 50_000_000
INLINE_CREDIT = 1000
"""So many quick runs let threads claim a slot; one that is not quick takes back fifty, a stall takes all."""
MAX_INLINE_CREDIT = 2 * INLINE_CREDIT
MAX_REGROUP_DELAY_NS = 2_000_000
MIN_REGROUP_DELAY_NS = 100_000
"""Clients that were just answered together send again one after the other. So that the first of them
does not become a batch of one, an instance waits for them 1/200 of the time that their batch took."""

AHEAD_NS = 2_000_000
"""Above this a batch takes long enough for the next one to be assembled meanwhile."""


class InstanceThread(threading.Thread):
    """The thread of an instance."""


def instances_left() -> int:
    """Return how many instances of this process have a thread that has not ended.

    Once all models are closed these are the ones whose handler has not come back, on their own thread
    or on one that claimed their slot.
    """
    return sum(isinstance(thread, InstanceThread) for thread in threading.enumerate())


class Instance:
    """One handler and its thread.

    Args:
        host: The model version.
        number: The instance's number.
        executor: What drives the handler.

    Attributes:
        number: The instance's number.
        started: The description that the handler completed, once it is loaded.
        warm: Done once the instance takes batches.
        restarts: How often the executor was started anew.
        stats: What the instance has done.
    """

    def __init__(self, host: InstanceHost, number: int, executor: Executor) -> None:
        self._host = host
        self.number = number
        self._executor = executor
        self._slot = host.queue.add_slot()
        self._go = threading.Event()
        self._warm_up: Callable[[Instance], None] | None = None
        self._closing = False
        self._busy_since = 0
        self._inline_credit = 0
        self._fast_batches = FastBatches(host, executor.lease)
        self._deaths = self._revived = 0
        self.started: Future[ModelSpec] = Future()
        self.warm: Future[None] = Future()
        self.restarts = 0
        self.stats = Stats()
        name = f"ksrv-{host.spec.name}-{number}"
        self._thread = InstanceThread(target=self._live, name=name, daemon=True)
        executor.on_death(self._note_death)

    def start(self) -> None:
        """Begin loading; `started` tells how it went."""
        self._thread.start()

    def serve(self, warm_up: "Callable[[Instance], None] | None") -> None:
        """Let a started instance warm up and then take batches; `warm` tells how that went.

        Args:
            warm_up: Runs batches on the instance, or None.
        """
        self._warm_up = warm_up
        self._go.set()

    def stop(self) -> None:
        """End an instance that has not begun to serve, and further attempts to start it anew."""
        self._closing = True
        self._go.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread to end; it does once the model's queue is closed and empty.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether it has ended.
        """
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """End a batch that does not end by itself, where the executor can."""
        if self._executor.keeps_deadlines:
            self._executor.close()

    @property
    def available(self) -> bool:
        """Whether it can be expected to run a batch: alive, and not stuck in one."""
        return self._thread.is_alive() and not self._cold and not self._stuck

    @property
    def returning(self) -> bool:
        """Whether its executor has died and is being replaced."""
        return self._thread.is_alive() and self._cold and not self._stuck

    @property
    def _stuck(self) -> bool:
        busy_since = self._busy_since
        return bool(busy_since) and time.monotonic_ns() - busy_since > self._host.timeout_ns > 0

    @property
    def keeps_deadlines(self) -> bool:
        """Whether an inline run returns at its deadline."""
        return self._executor.keeps_deadlines

    def execute(self, batch: BatchInputs, deadline_ns: int | None = None) -> BatchOutputs:
        """Run a batch that no client sent, for warming up.

        Args:
            batch: The batch.
            deadline_ns: When to give up, or None.
        """
        return self._executor.run(batch, deadline_ns)

    # ---- the thread -------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            if self._load():
                self._serve()
        except BaseException as error:
            name = self._host.spec.name
            log.error("the model %s, instance %d has ended", name, self.number, exc_info=error)
            self._host.instance_lost(
                f"its instance {self.number} ended with {type(error).__name__}; the log says where"
            )
        finally:
            native.wake_waiters()
            self._executor.close()

    def _load(self) -> bool:
        try:
            self.started.set_result(self._executor.start())
        except BaseException as error:  # noqa: BLE001  it reaches whoever waits for the start
            self.started.set_exception(_told(error))
            return False
        self._go.wait()
        if self._closing:
            return False
        try:
            if self._warm_up is not None:
                self._warm_up(self)
            if not self._executor.alive:  # generated data may have ended it
                self._warm_up = None  # and is not given to its replacements
                self._executor.start()
            self.warm.set_result(None)
        except BaseException as error:  # noqa: BLE001  it reaches whoever waits for the warm-up
            self.warm.set_exception(_told(error))
            return False
        return True

    def _serve(self) -> None:
        host = self._host
        queue = host.queue
        most = host.spec.max_batch_size
        room = MOST_JOINED if most else 1
        take, slot, delay = queue.take, self._slot, host.delay_ns
        if host.runs_inline:
            self._allow_inline(False)
        regroup_delay = 0
        while True:
            taken = take(slot, room, most, delay or regroup_delay)
            if taken is None:
                if host.wait_apart():
                    continue  # what was decoded there has been offered
                break
            if taken is not True and taken and taken[0].batch_key >= APART:
                host.decode_apart(taken)
                continue
            batch = host.take_ready() if taken is True else self._batch_of(taken)
            regroup_delay = 0
            if batch is not None:
                self._run(batch, False)
                if batch.rows > 1 and batch.ran_ns >= 200 * MIN_REGROUP_DELAY_NS:
                    regroup_delay = min(batch.ran_ns // 200, MAX_REGROUP_DELAY_NS)
            # The last batch's memory is not kept while this thread waits for the next.
            del taken, batch
            if self._cold and not self._revive():
                break

    def run_inline(self, handles: list[QueuedRequest]) -> None:
        """Run requests on the thread that submitted them, which claimed this instance's slot.

        Args:
            handles: The requests. They may still be open afterwards: a death of the executor lets
                another instance run them again.
        """
        queue = self._host.queue
        try:
            if handles[0].batch_key >= APART:
                self._host.decode_apart(handles)
            else:
                batch = self._batch_of(handles)
                if batch is not None:
                    self._run(batch, True)
        finally:
            if not self._executor.alive:
                queue.nudge(self._slot)
            queue.return_slot(self._slot)

    # ---- a batch ----------------------------------------------------------------------------

    def new_batch(self, room: int = 0) -> PendingBatch:
        """Return an empty batch whose blocks are leased from this instance's executor.

        Args:
            room: How many rows the batch may grow to.
        """
        return PendingBatch(self._host.spec, self._host.images, self._executor.lease, room)

    def _batch_of(self, handles: list[QueuedRequest]) -> RunnableBatch | None:
        """Return the batch of some requests; None after none of them could be added."""
        try:
            if model_endpoint.are_fast(handles):
                return FastBatch(handles, self._fast_batches)
            batch = self.new_batch()
            batch.fill(handles, self._host.queue, self.stats)
        except BaseException as error:  # noqa: BLE001  it is the batch's failure, not the thread's
            self._fail(handles, error)
            return None
        return batch if batch.handles else None

    def _run(self, batch: RunnableBatch, inline: bool) -> None:
        """Run a batch and answer its requests; on a claimed slot their waiters are woken at once."""
        handles = batch.handles
        try:
            # A batch on a claimed slot is counted as running since it was pushed.
            alive = handles if inline else self._host.queue.start(handles)
            if len(alive) != len(handles):
                batch.keep(alive)
            if alive:
                self._execute(batch, later=not inline)
        except BaseException as error:  # noqa: BLE001  it is the batch's failure, not the thread's
            self._fail(handles, error)

    def _execute(self, batch: RunnableBatch, *, later: bool) -> None:
        queue = self._host.queue
        began = self._busy_since = time.monotonic_ns()
        failure: KsrvError | None = None
        try:
            inputs = batch.inputs()
            keeps = self._executor.keeps_deadlines
            deadline = self._deadline(batch.handles, began) if keeps else None
            outputs = self._executor.run(inputs, deadline)
            batch.ran_ns = time.monotonic_ns() - began
            batch.answer(outputs, queue, self.stats, later=later)
        except ExecutorDied as error:
            failure = self._died(batch, error)
            if failure is None:
                return
        except KsrvError as error:
            failure = error
        except BaseException as error:  # noqa: BLE001  a handler may raise anything
            failure = self._failure(error)
        finally:
            self._busy_since = 0
            batch.ran_ns = batch.ran_ns or time.monotonic_ns() - began
        if failure is not None:
            finish(batch, [failure] * len(batch.handles), queue, self.stats, {}, later=later)
        if self._inline_credit < MAX_INLINE_CREDIT or batch.ran_ns >= QUICK_NS:
            self._note_pace(batch.ran_ns)

    def _fail(self, handles: list[QueuedRequest], error: BaseException) -> None:
        """Answer the requests of a batch that are open still."""
        won = self._host.queue.finish(handles, [self._failure(error)] * len(handles))
        self.stats.failed(sum(won))

    def _failure(self, error: BaseException) -> KsrvError:
        name = self._host.spec.name
        log.error("a batch of the model %s failed", name, exc_info=error)
        return HandlerFailed(f"a batch of the model {name} failed: {type(error).__name__}")

    def _deadline(self, handles: list[QueuedRequest], began: int) -> int | None:
        """When the executor is to give up."""
        deadline = max([handle.deadline_ns for handle in handles])
        if self._host.run_timeout_ns:
            deadline = min(deadline, began + self._host.run_timeout_ns)
        return None if deadline == native.NO_DEADLINE else deadline

    def _note_pace(self, ran_ns: int) -> None:
        before = self._inline_credit
        if ran_ns < QUICK_NS:
            credit = min(before + 1, MAX_INLINE_CREDIT)
        else:
            credit = max(before - 50, 0) if ran_ns < STALL_NS else 0
        self._inline_credit = credit
        queue = self._host.queue
        if self._host.runs_inline:
            if credit == INLINE_CREDIT:
                self._allow_inline(True)
            elif credit < INLINE_CREDIT // 2 <= before:
                self._allow_inline(False)
        if queue.may_prefetch != (ran_ns >= AHEAD_NS):
            queue.may_prefetch = ran_ns >= AHEAD_NS

    def _allow_inline(self, quick: bool) -> None:
        """Set which threads may claim a slot of the queue."""
        host, queue = self._host, self._host.queue
        queue.inline_for_blocked = quick or self._executor.keeps_deadlines
        # One thread enters Python for all that the HTTP server receives: it would use instances in turn.
        queue.inline_for_all = quick and host.config.instances == 1

    # ---- deaths -----------------------------------------------------------------------------

    def _died(self, batch: RunnableBatch, error: ExecutorDied) -> KsrvError | None:
        """Queue a batch again whose executor died; return its error where that is not to be."""
        name = self._host.spec.name
        log.error("the model %s, instance %d: %s", name, self.number, error.message)
        # A second run would send the intermediate answers of the first again.
        if not self._host.retry or batch.streamed:
            return error
        if batch.attempts:
            return HandlerFailed(
                f"the request ended two handler processes of the model {name} and is not tried "
                f"again: {error.message}"
            )
        # Each alone, so that a request that kills its process takes no other with it.
        for handle in batch.handles:
            again = self.new_batch()
            again.attempts = 1
            again.fill([handle], self._host.queue, self.stats)
            if again.handles:
                self._host.requeue(again)
        return None

    @property
    def _cold(self) -> bool:
        """Whether the executor died, or was replaced by one that has not been warmed up."""
        return self._deaths != self._revived or not self._executor.alive

    def _note_death(self, _reason: str) -> None:
        self._deaths += 1
        self._host.queue.nudge(self._slot)

    def _revive(self) -> bool:
        """Start the executor anew after a death and warm it up; False when that is given up."""
        host = self._host
        reason = ""
        native.wake_waiters()
        for _ in range(STARTS_IN_A_ROW):
            if self._closing or (host.queue.closed and not host.queue.open):
                return False
            deaths = self._deaths
            try:
                self._executor.start()
            except KsrvError as error:
                reason = error.message
                log.error("the model %s cannot be started again: %s", host.spec.name, reason)
                continue
            if self._warm_up is not None:
                self._warm_up_again(self._warm_up)
            if self._executor.alive and self._deaths == deaths:
                self._revived = deaths
                self.restarts += 1
                return True
            reason = "it ended before it took a batch"
        host.instance_lost(f"{STARTS_IN_A_ROW} starts in a row failed, the last one: {reason}")
        return False

    def _warm_up_again(self, warm_up: "Callable[[Instance], None]") -> None:
        """Warm up a replacement; it serves cold where that fails, and the next where it dies."""
        try:
            warm_up(self)
        except BaseException as error:
            log.error(
                "the model %s, instance %d was not warmed up again",
                self._host.spec.name,
                self.number,
                exc_info=error,
            )
        if not self._executor.alive:
            self._warm_up = None


def _told(error: BaseException) -> Exception:
    """Return what whoever waits is told; a SystemExit of a handler's must not end its thread."""
    if isinstance(error, Exception):
        return error
    told = HandlerFailed(f"the handler ended with {type(error).__name__}: {error}")
    told.__cause__ = error
    return told
