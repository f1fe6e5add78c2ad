"""gunicorn's master process, with reloads, stops and restarts of workers as ksrv needs them.

gunicorn has no hooks for these. A reload whose files cannot be used is refused and changes nothing. The master does not
wait until new workers are ready, so that it handles signals while models load. It notes in the worker table when the
whole server stops. The end of a worker never ends the server, unless no worker has ever served.
"""

import signal
import time
from typing import TYPE_CHECKING, Any

from gunicorn import arbiter
from gunicorn.errors import HaltServer

from ksrv.server.settings import SettingsError
from ksrv.server.shared.worker_table import State, Stop
from ksrv.server.workers.stop_signals import STOP_SIGNALS, end_with_own_status

if TYPE_CHECKING:
    import socket

    from ksrv.server.shared.worker_table import WorkerTable

RETRY_SECONDS = 5.0
"""Seconds until the master tries again to start workers, after a worker could not be started."""

BOOT_ERROR = 3
"""The exit status of gunicorn if no worker could be started."""


class Arbiter(arbiter.Arbiter):  # type: ignore[misc]
    """The master process; an arbiter of gunicorn's becomes one by `adopt`.

    Attributes:
        ksrv_workers: The worker table.
        grpc_listener: The gRPC listener that the workers accept from, or None.
        stop_timeout: Seconds that leaving workers get when the server stops.
        next_try: The time, on the monotonic clock, before which no worker is started.
    """

    # gunicorn stops the server if a worker exits with one of these. No process can, because exit statuses have eight
    # bits: otherwise a handler that calls os._exit(3) would stop the server.
    WORKER_BOOT_ERROR = 0x100 | BOOT_ERROR
    APP_LOAD_ERROR = 0x100 | 4

    ksrv_workers: "WorkerTable"
    grpc_listener: "socket.socket | None" = None
    stop_timeout: int
    next_try = 0.0

    def reload(self) -> None:
        """Reload on SIGHUP: gunicorn calls the hook `on_reload`, which calls `begin_reload` or refuses the reload."""
        try:
            super().reload()
        except SettingsError as error:
            self.ksrv_workers.note_reload(accepted=False)
            self.log.error("the reload is refused and everything stays as it was: %s", error)
        finally:
            self.cfg.set("graceful_timeout", self.stop_timeout)

    def begin_reload(self) -> None:
        """Begin a new generation of workers. `Master.on_reload` calls this once the files were checked.

        With graceful_timeout 0, gunicorn's `reload` does not wait for the old workers.
        """
        self.ksrv_workers.note_reload(accepted=True)
        self.ksrv_workers.generation += 1
        self.stop_timeout = self.cfg.graceful_timeout
        self.cfg.set("graceful_timeout", 0)

    def stop(self, graceful: bool = True) -> None:
        """Note in the worker table how the server stops, and stop the workers.

        After SIGUSR2 two masters serve on the same addresses, and either may be stopped.
        """
        orderly = Stop.TAKEN_OVER if self.reexec_pid or self.master_pid else Stop.ORDERLY
        self.ksrv_workers.begin_stop(orderly if graceful else Stop.QUICK)
        # gunicorn does so for HTTP. Once the last worker has closed its copy, too, the kernel refuses clients.
        if self.grpc_listener is not None:
            self.grpc_listener.close()
        super().stop(graceful)

    def maybe_promote_master(self) -> None:
        """Note when the master that this master replaces has ended."""
        super().maybe_promote_master()
        self.ksrv_workers.beside_another = self.master_pid != 0

    def spawn_worker(self) -> Any:
        """Start a worker. Stop signals are blocked over the fork, until the worker has its handlers (`StopSignals`)."""
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            return super().spawn_worker()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def spawn_workers(self) -> None:
        """Start the workers that are missing."""
        if time.monotonic() >= self.next_try:
            super().spawn_workers()

    def kill_worker(self, pid: int, sig: int) -> None:
        """Send a signal to a worker, and note that it was asked to leave, if the signal asks for that."""
        if sig in STOP_SIGNALS and (worker := self.WORKERS.get(pid)) is not None:
            worker.ksrv_asked_to_leave = True
        super().kill_worker(pid, sig)

    def release_slot(self, slot: int, *, asked_to_leave: bool = False) -> None:
        """Free the slot of a worker that has ended.

        Args:
            asked_to_leave: Whether the master asked it to leave, as a reload does. The slot's state does not show this
                if the worker was still loading.

        Raises:
            HaltServer: The worker could not be started, and no worker has ever served.
        """
        state = self.ksrv_workers.workers[slot].state
        never_served = state == State.NEVER_SERVED
        asked_to_leave |= state in (State.RETIRING, State.STOPPING)
        if not (asked_to_leave or self.ksrv_workers.stopping):
            self.ksrv_workers.restarts += 1
        self.ksrv_workers.release(slot)
        if not never_served:
            return
        if not self.ksrv_workers.served:
            raise HaltServer("Worker failed to boot.", BOOT_ERROR)
        self.next_try = time.monotonic() + RETRY_SECONDS
        self.log.error("a worker could not be started; the next try is in %.0f s", RETRY_SECONDS)


def adopt(server: Any, table: "WorkerTable") -> None:
    """Make a gunicorn arbiter an `Arbiter` of ksrv. `ksrv serve` and `gunicorn -c` both get one this way.

    Args:
        server: The arbiter, which has not started a worker yet.
    """
    end_with_own_status()
    server.__class__ = Arbiter
    server.ksrv_workers = table
    table.beside_another = server.master_pid != 0
    server.stop_timeout = server.cfg.graceful_timeout
