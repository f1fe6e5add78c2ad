"""The last step of a worker: `os._exit`, so that Python does not finalize.

Finalizing has two faults. It frees every object, and so writes to pages that the worker shares with the master: each
worker would copy tens of megabytes, all at the moment when a server stops. And when another thread asks for the GIL
meanwhile, Python ends the thread by unwinding its stack. Some native code, such as torch's, does not allow this, and
the process would abort.

If no handler hangs, functions that were registered with `atexit` still run first, and threads that are not daemons are
awaited.
"""

import atexit
import logging
import os
import sys
from typing import NoReturn

from ksrv.server import log_stream

log = logging.getLogger(__name__)


class WorkerEnd:
    """How this process ends; the master makes it, and the workers inherit it.

    `atexit` runs the function that was registered first last. So the master makes this object before a worker registers
    anything.
    """

    def __init__(self) -> None:
        self._status: int | None = None
        atexit.register(self._end_worker)

    def prepare(self) -> None:
        """Note that this process is a worker, and the status that it ends with."""
        from ksrv.engine.instances.instance import instances_left

        leaving = sys.exception()
        status = leaving.code if isinstance(leaving, SystemExit) else 0
        self._status = status if isinstance(status, int) else 0
        if left := instances_left():
            log.warning(
                "%d instances still run their handlers after --stop-timeout; the worker ends without them",
                left,
            )
            self._exit(self._status)

    def _end_worker(self) -> None:
        if self._status is not None:
            self._exit(self._status)

    def _exit(self, status: int) -> NoReturn:
        try:
            logging.shutdown()
            log_stream.drain()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:  # also if a stream is closed, or nobody reads it any more
            os._exit(status)
