"""The signals that ask a worker to leave, in any number and order.

A terminal's Ctrl-C reaches the whole process group, and then the master sends its workers another signal. A supervisor
may repeat a signal. The main thread may hold any lock when a signal arrives, so the signal handler takes no lock: it
puts the signal into a queue, and the thread `ksrv-leave` acts on it.
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
    """Make this process, and the processes that it forks, ignore signals while Python finalizes.

    Python removes its signal handlers then, so a repeated signal would kill the process, and change its exit status.
    """
    atexit.register(_ignore)


def _ignore() -> None:
    for number in _WHILE_ENDING:
        signal.signal(number, signal.SIG_IGN)


class StopSignals:
    """The signals to stop that a worker has received.

    Args:
        table: The table in which the master notes that the whole server stops.
    """

    def __init__(self, table: WorkerTable) -> None:
        self._table = table
        self._arrived: SimpleQueue[int] = SimpleQueue()  # its `put` is safe in a signal handler
        self._received: Counter[int] = Counter()  # the signals that `wait` has taken

    def heed(self) -> None:
        """Install the handlers, then unblock the signals that the master blocked over the fork."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._take)
            signal.siginterrupt(number, False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._arrived.put(number)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a signal, at most `seconds` if given.

        Returns:
            Whether a signal arrived.
        """
        try:
            self._received[self._arrived.get(timeout=seconds)] += 1
        except Empty:
            return False
        return True

    @property
    def quick(self) -> bool:
        """Whether the worker leaves without the drain delay, but finishes running requests."""
        asked = self._received[signal.SIGINT] + self._received[signal.SIGQUIT]
        return asked > 0 or self._table.stopping == Stop.QUICK

    @property
    def at_once(self) -> bool:
        """Whether the worker leaves without waiting for running requests.

        The first Ctrl-C sends SIGINT from the terminal and SIGQUIT from the master. A second Ctrl-C is another SIGINT.
        While the server drains after SIGTERM, a Ctrl-C also has the master send SIGQUIT, and kill the workers after two
        seconds.
        """
        patient = self._table.stopping in (Stop.TAKEN_OVER, Stop.ORDERLY)
        hurried = patient and self._received[signal.SIGQUIT] > 0
        return hurried or self._received[signal.SIGINT] > 1
