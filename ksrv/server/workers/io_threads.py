"""The I/O threads of a worker, which serve HTTP/1.1 and gRPC together."""

import threading
import time

from ksrv._native.reactor.event_loop import EventLoop

RESERVE_THREADS = 4
"""Threads that sleep until a handler hangs on an I/O thread. So many handlers may hang before the sockets do."""


class IoThreads:
    """An event loop with its threads, which begin at once.

    Args:
        threads: The number of I/O threads without the reserve.
    """

    def __init__(self, threads: int) -> None:
        self.loop = EventLoop(threads + RESERVE_THREADS)
        self._threads = [
            threading.Thread(
                target=self.loop.run, args=(index,), name=f"ksrv-io-{index}", daemon=True
            )
            for index in range(self.loop.threads)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, patience: float = 1.0) -> None:
        """Stop serving; a handler that hangs keeps its thread.

        Args:
            patience: Seconds in which all threads must return.
        """
        self.loop.stop()
        deadline = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
