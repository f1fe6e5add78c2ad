"""One instance of a model version: a thread of its own that loads the handler and runs batches.

The handler is loaded, warmed up and run on this one thread, because what handlers stand on may keep
state for its thread. A batch whose executor dies is offered to whichever instance is idle first; this
one starts its executor anew, at the pace that the executor sets.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from ksrv._native import queue as native
from ksrv.engine.assemble import Assembly
from ksrv.engine.executors import Executor, ExecutorDied
from ksrv.engine.split import split
from ksrv.engine.ticket import QueuedTicket
from ksrv.errors import HandlerFailed, InferenceError, KsrvError
from ksrv.observe.statistics import Tally
from ksrv.request import BatchInputs, BatchOutputs, InferResponse
from ksrv.spec import ModelSpec

log = logging.getLogger("ksrv.engine")

STARTS_IN_A_ROW = 5
MOST_JOINED = 1024


class Home(Protocol):
    """What an instance asks of the model version that it belongs to."""

    spec: ModelSpec
    queue: native.Queue
    retry: bool
    timeout_ns: int
    delay_ns: int

    def assembly(self) -> Assembly:
        """Return an empty batch."""

    def take_offer(self) -> Assembly:
        """Return the batch that was offered first."""

    def offer(self, assembly: Assembly) -> None:
        """Have the next idle instance run a batch."""

    def instance_lost(self, reason: str) -> None:
        """Note that an instance has ended for good."""


class Instance:
    """One handler and its thread.

    Args:
        home: The model version.
        number: The instance's number.
        executor: What drives the handler.
    """

    def __init__(self, home: Home, number: int, executor: Executor) -> None:
        self._home = home
        self._number = number
        self._executor = executor
        self._go = threading.Event()
        self._warm_up: Callable[[Instance], None] | None = None
        self._closing = False
        self._busy_since = 0
        self.started: Future[ModelSpec] = Future()
        self.warm: Future[None] = Future()
        self.restarts = 0
        self.tally = Tally()
        name = f"ksrv-{home.spec.name}-{number}"
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)

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

    @property
    def available(self) -> bool:
        """Whether it can be expected to run a batch: alive, and not stuck in one."""
        busy_since = self._busy_since
        stuck = busy_since and time.monotonic_ns() - busy_since > self._home.timeout_ns > 0
        return self._thread.is_alive() and self._executor.alive and not stuck

    def execute(self, batch: BatchInputs, deadline_ns: int | None = None) -> BatchOutputs:
        """Run a batch that no client sent, for warming up.

        Args:
            batch: The batch.
            deadline_ns: When to give up, or None.
        """
        return self._executor.run(batch, deadline_ns)

    def _live(self) -> None:
        try:
            if not self._load():
                return
            self._serve()
        finally:
            self._executor.close()

    def _load(self) -> bool:
        try:
            self.started.set_result(self._executor.start())
        except BaseException as error:  # noqa: BLE001  it reaches whoever waits for the start
            self.started.set_exception(error)
            return False
        self._go.wait()
        if self._closing:
            return False
        try:
            if self._warm_up is not None:
                self._warm_up(self)
            self.warm.set_result(None)
        except BaseException as error:  # noqa: BLE001  it reaches whoever waits for the warm-up
            self.warm.set_exception(error)
            return False
        self._warm_up = None
        return True

    def _serve(self) -> None:
        home = self._home
        queue = home.queue
        most = home.spec.max_batch_size
        room = MOST_JOINED if most else 1
        take, delay = queue.take, home.delay_ns
        while True:
            taken = take(room, most, delay)
            if taken is None:
                break
            if taken is True:
                assembly = home.take_offer()
            else:
                assembly = home.assembly()
                self._fill(assembly, taken)
            self.run(assembly)
            if not self._executor.alive and not self._revive():
                break
        native.wake_waiters()

    def _fill(self, assembly: Assembly, tickets: Sequence[QueuedTicket]) -> None:
        """Assemble, and fail the requests where that cannot be done."""
        try:
            assembly.add(tickets)
        except Exception as error:  # noqa: BLE001  a fault here must not end the instance
            shown = _shown(error, self._home.spec)
            self._home.queue.finish(list(tickets), [shown] * len(tickets))
            assembly.tickets.clear()
            assembly.failed.clear()

    def run(self, assembly: Assembly) -> None:
        """Run a batch and answer its requests."""
        queue = self._home.queue
        if assembly.failed:
            lost = [ticket for ticket, _ in assembly.failed]
            queue.finish(lost, [error for _, error in assembly.failed])
            self.tally.failed(len(lost))
            assembly.failed = []
        if not assembly.tickets:
            return
        tickets = queue.start(assembly.tickets)
        if len(tickets) != len(assembly.tickets):
            assembly.keep(tickets)
            if not tickets:
                return
        answers = self._answers(assembly)
        if answers is not None:
            won = queue.finish(tickets, answers, True)
            assembly.ended_ms = time.time_ns() // 1_000_000
            self.tally.batch(tickets, answers, won, assembly)

    def _answers(self, assembly: Assembly) -> "list[InferResponse | KsrvError] | None":
        """Return the batch's answers, or None when it has been offered to be run again."""
        tickets = assembly.tickets
        deadline = max([ticket.deadline_ns for ticket in tickets])
        began = self._busy_since = time.monotonic_ns()
        try:
            outputs = self._executor.run(
                assembly.inputs(), None if deadline == native.NO_DEADLINE else deadline
            )
            assembly.ran_ns = time.monotonic_ns() - began
            assembly.timings = {"assemble": assembly.spent_ns, **outputs.timings}
            return split(self._home.spec, tickets, outputs, assembly.timings)
        except ExecutorDied as error:
            return self._died(assembly, error)
        except Exception as error:  # noqa: BLE001  a fault here must not end the instance
            return [_shown(error, self._home.spec)] * len(tickets)
        finally:
            self._busy_since = 0

    def _died(
        self, assembly: Assembly, error: ExecutorDied
    ) -> list[InferResponse | KsrvError] | None:
        name = self._home.spec.name
        log.error("the model %s, instance %d: %s", name, self._number, error.message)
        if not self._home.retry:
            return [error] * len(assembly.tickets)
        if assembly.attempts:
            refused = HandlerFailed(
                f"the request ended two handler processes of the model {name} and is not tried "
                f"again: {error.message}"
            )
            return [refused] * len(assembly.tickets)
        # Each alone, so that one that kills its process takes no other with it.
        for ticket in assembly.tickets:
            again = self._home.assembly()
            again.attempts = 1
            again.add([ticket])
            self._home.offer(again)
        return None

    def _revive(self) -> bool:
        """Start the executor anew after a death; False when that is given up."""
        reason = ""
        for _ in range(STARTS_IN_A_ROW):
            if self._closing or (self._home.queue.closed and not self._home.queue.open):
                return False
            native.wake_waiters()
            try:
                self._executor.start()
            except KsrvError as error:
                reason = error.message
                log.error("the model %s cannot be started again: %s", self._home.spec.name, reason)
            else:
                self.restarts += 1
                return True
        self._home.instance_lost(
            f"{STARTS_IN_A_ROW} starts in a row failed, the last one: {reason}"
        )
        return False


def _shown(error: Exception, spec: ModelSpec) -> KsrvError:
    """Return what the clients of a failed batch read."""
    if isinstance(error, InferenceError | KsrvError):
        return error
    log.error("a batch of the model %s failed", spec.name, exc_info=error)
    return HandlerFailed(f"a batch of the model {spec.name} failed: {type(error).__name__}.")
