"""The signals that ask a worker to leave, in any number and order.

A terminal's Ctrl-C reaches the whole process group, and the master then tells its workers once more;
a supervisor may repeat a signal. The main thread can be anywhere when a signal arrives, so the signal
handler takes no lock: it puts the signal into a queue, and a separate thread acts on it.
"""

import atexit
import signal
from collections import Counter
from queue import Empty, SimpleQueue
from types import FrameType

from ksrv.server.shared.worker_table import Stop, WorkerTable

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


_WHILE_ENDING = (*STOP_SIGNALS, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def end_with_own_status() -> None:
    """Have this process and the processes that it forks ignore signals while Python ends.

    Python removes its signal handlers then, and a repeated signal would become the process's status.
    """
    atexit.register(_ignore)


def _ignore() -> None:
    for number in _WHILE_ENDING:
        signal.signal(number, signal.SIG_IGN)


class StopSignals:
    """The signals to stop that a worker has received.

    Args:
        table: The table in which the master says that the whole server stops.
    """

    def __init__(self, table: WorkerTable) -> None:
        self._table = table
        self._coming: SimpleQueue[int] = SimpleQueue()  # its put may interrupt any other
        self._came: Counter[int] = Counter()

    def heed(self) -> None:
        """Take the signals from now on, also the signals that the master blocked over the fork."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._take)
            signal.siginterrupt(number, False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._coming.put(number)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a signal.

        Args:
            seconds: For how long; None for ever.

        Returns:
            Whether one came.
        """
        try:
            self._came[self._coming.get(timeout=seconds)] += 1
        except Empty:
            return False
        return True

    @property
    def quick(self) -> bool:
        """Whether the worker leaves without the drain delay, finishing what runs."""
        asked = self._came[signal.SIGINT] + self._came[signal.SIGQUIT]
        return asked > 0 or self._table.stopping == Stop.QUICK

    @property
    def at_once(self) -> bool:
        """Whether the worker leaves without waiting for running requests.

        One Ctrl-C is a SIGINT from the terminal and a SIGQUIT from the master. A second Ctrl-C is
        another SIGINT; while the server drains it has the master send SIGQUIT, and kill the workers
        after two seconds.
        """
        patient = self._table.stopping in (Stop.TAKEN_OVER, Stop.ORDERLY)
        hurried = patient and self._came[signal.SIGQUIT] > 0
        return hurried or self._came[signal.SIGINT] > 1
