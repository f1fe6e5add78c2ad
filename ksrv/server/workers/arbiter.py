"""gunicorn's master process, with what ksrv wants otherwise of reloads, stops and dead workers.

gunicorn has no hooks for these. A reload that cannot be is refused and changes nothing; one that can
is not waited for, so that the master goes on heeding signals while models load. The workers are told
when the whole server stops. How a worker ended never ends the server, unless none has ever served.
"""

import signal
import time
from typing import TYPE_CHECKING, Any

from gunicorn import arbiter
from gunicorn.errors import HaltServer

from ksrv.server.settings import SettingsError
from ksrv.server.workers.stop_signals import STOP_SIGNALS, end_with_own_status
from ksrv.server.workers.worker_table import State, Stop

if TYPE_CHECKING:
    from ksrv.server.workers.worker_table import WorkerTable

RETRY_SECONDS = 5.0
"""Before the next try to start workers, where one of them could not be started."""

BOOT_ERROR = 3


class Arbiter(arbiter.Arbiter):  # type: ignore[misc]
    """The master process; an arbiter of gunicorn's becomes one by `adopt`.

    Attributes:
        ksrv_workers: The table that master and workers share.
        patience: Seconds that leaving workers get when the server stops.
        next_try: Before then no worker is started.
    """

    # No process can end with these: what a handler calls os._exit with is no reason to stop.
    WORKER_BOOT_ERROR = 0x100 | BOOT_ERROR
    APP_LOAD_ERROR = 0x100 | 4

    ksrv_workers: "WorkerTable"
    patience: int
    next_try = 0.0

    def reload(self) -> None:
        """Begin a new generation of workers, unless a file that it needs cannot be used."""
        try:
            super().reload()
        except SettingsError as error:
            self.ksrv_workers.note_reload(accepted=False)
            self.log.error("the reload is refused and everything stays as it was: %s", error)
        finally:
            self.cfg.set("graceful_timeout", self.patience)

    def begin_reload(self) -> None:
        """Go on with a reload whose files are good; gunicorn's reload then waits for nobody."""
        self.ksrv_workers.note_reload(accepted=True)
        self.ksrv_workers.next_generation()
        self.patience = self.cfg.graceful_timeout
        self.cfg.set("graceful_timeout", 0)

    def reexec(self) -> None:
        """Refuse SIGUSR2: a second master could not have the gRPC port, which this one holds."""
        self.log.error(
            "SIGUSR2 is refused: ksrv does not replace its own program while it serves; SIGHUP "
            "takes new models, certificates and tokens, a new release of ksrv needs a restart"
        )

    def stop(self, graceful: bool = True) -> None:
        """Stop the workers; they know first that nobody will take their place."""
        self.ksrv_workers.begin_stop(Stop.ORDERLY if graceful else Stop.QUICK)
        super().stop(graceful)

    def spawn_worker(self) -> Any:
        """Start a worker; a signal to stop that comes meanwhile waits until it can heed it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            return super().spawn_worker()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def spawn_workers(self) -> None:
        """Start the workers that are missing."""
        if time.monotonic() >= self.next_try:
            super().spawn_workers()

    def release_slot(self, slot: int) -> None:
        """Free the slot of a worker that is gone.

        Args:
            slot: Its slot.

        Raises:
            HaltServer: It could not be started, and no worker ever was.
        """
        state = self.ksrv_workers.state(slot)
        never_served = state is State.NEVER_SERVED
        if state not in (State.RETIRING, State.STOPPING) and not self.ksrv_workers.stopping:
            self.ksrv_workers.count_restart()
        self.ksrv_workers.release(slot)
        if not never_served:
            return
        if not self.ksrv_workers.served:
            raise HaltServer("Worker failed to boot.", BOOT_ERROR)
        self.next_try = time.monotonic() + RETRY_SECONDS
        self.log.error("a worker could not be started; the next try is in %.0f s", RETRY_SECONDS)


def adopt(server: Any, table: "WorkerTable") -> None:
    """Make gunicorn's arbiter one of ksrv's; `ksrv serve` and `gunicorn -c` do alike.

    Args:
        server: The arbiter, which has not started a worker yet.
        table: The table that master and workers share.
    """
    end_with_own_status()
    server.__class__ = Arbiter
    server.ksrv_workers = table
    server.patience = server.cfg.graceful_timeout
