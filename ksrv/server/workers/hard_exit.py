"""The last step of a worker: it ends without Python being finalized.

Finalizing frees every object one by one. A forked process shares their pages with the master, so that it
would copy most of them for this: tens of megabytes for each worker, all at the time when a server stops.
Python also ends all other threads while it finalizes, at the moment when they ask for the GIL, by unwinding
their stacks. Native code that a handler is in may not be unwound, torch's for one: the process would abort.

Functions that were registered with `atexit` in a worker run, and its threads that are no daemons are waited for, unless
handlers are left behind.
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

    It is made before a worker registers anything with `atexit`, so that it runs last.
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
        finally:  # also where a stream is closed, or nobody reads it any more
            os._exit(status)
