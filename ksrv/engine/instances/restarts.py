"""Starts the executor of an instance anew after its handler process has died."""

import logging
from collections.abc import Callable

from ksrv._native.queue.request_handle import wake_waiters
from ksrv.engine.executor import Executor, ExecutorDied
from ksrv.engine.instances.host import InstanceHost
from ksrv.errors import FilesChanged, KsrvError
from ksrv.model.spec import ModelSpec

log = logging.getLogger("ksrv.engine")

STARTS_IN_A_ROW = 10
"""After so many failed restarts the instance is given up."""
FIRST_STARTS = 3
"""How often the first load is tried if the process is killed while it loads. `Backoff` makes the pauses."""


class ExecutorRestarts:
    """The deaths and the restarts of one instance's executor.

    Attributes:
        count: How often the executor was started anew.
        stopped: Whether the executor must not be started again.
        warm_up: Runs batches on the instance after a start; None without a warm-up, and after a
            warm-up that ended the handler process.
    """

    def __init__(self, host: InstanceHost, number: int, executor: Executor) -> None:
        self._host = host
        self._number = number
        self._executor = executor
        # A restart is due while these differ. Only counts can be compared: a process may die while it is replaced.
        self._deaths = self._answered_deaths = 0
        self.count = 0
        self.stopped = False
        self.warm_up: Callable[[], None] | None = None

    def note_death(self) -> None:
        """Note that the handler process has died; any thread may call this."""
        self._deaths += 1

    @property
    def due(self) -> bool:
        """Whether the executor has to be restarted: it is not alive, or died since the last complete restart."""
        return self._deaths != self._answered_deaths or not self._executor.alive

    def first_start(self) -> ModelSpec:
        """Load the handler. If its process is killed meanwhile, try again, `FIRST_STARTS` times in all.

        Raises:
            KsrvError: As `Executor.start`.
        """
        for left in reversed(range(FIRST_STARTS)):
            try:
                return self._executor.start()
            except ExecutorDied as error:
                if not (error.killed and left) or self.stopped:
                    raise
                log.error("%s; it is loaded once more", error.message)
        raise AssertionError("the last start returns or raises")

    def first_warm_up(self) -> None:
        """Warm up the executor that was just loaded. If the warm-up ends its process, start it again, without
        warm-up.
        """
        if self.warm_up is not None:
            self.warm_up()
        if not self._executor.alive:
            self.warm_up = None
            self._executor.start()

    def restart(self) -> bool:
        """Start the executor anew and warm it up.

        Returns:
            Whether the executor serves again. False after `STARTS_IN_A_ROW` failures, if a file of the model has
            changed, or if the model is closed.
        """
        host = self._host
        reason = ""
        wake_waiters()  # clients that were answered before must not wait for the start
        for _ in range(STARTS_IN_A_ROW):
            if self.stopped or (host.queue.closed and not host.queue.open):
                return False
            deaths = self._deaths
            try:
                self._executor.start()
            except FilesChanged as error:
                log.error("%s", error.message)
                host.note_refused()
                host.instance_lost(error.message)
                return False
            except KsrvError as error:
                reason = error.message
                log.error("the model %s cannot be started again: %s", host.spec.name, reason)
                continue
            self._warm_up_again()
            if self._executor.alive and self._deaths == deaths:
                self._answered_deaths = deaths
                self.count += 1
                return True
            reason = "it ended before it took a batch"
        host.instance_lost(f"{STARTS_IN_A_ROW} starts in a row failed; the last error: {reason}")
        return False

    def _warm_up_again(self) -> None:
        """Warm up the new executor. It serves cold if that fails; if it dies, the next executor does not warm up."""
        if self.warm_up is None:
            return
        try:
            self.warm_up()
        except BaseException as error:
            log.error(
                "the model %s, instance %d was not warmed up again",
                self._host.spec.name,
                self._number,
                exc_info=error,
            )
        if not self._executor.alive:
            self.warm_up = None
