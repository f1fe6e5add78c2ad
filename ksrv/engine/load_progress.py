"""Logs the current step of a load that takes long, so that a slow start does not look like a hang."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("ksrv.engine")

FIRST_SECONDS = 2.0
"""How long a load takes before it is logged for the first time."""

EVERY_SECONDS = 10.0
"""The time between two lines about a load."""


@contextmanager
def progress_logged(subject: str, step: Callable[[], str]) -> Iterator[None]:
    """Log a line after two seconds, and then every ten seconds, until the block ends.

    Args:
        step: Returns the current step of the load, such as "warming up".
    """
    begun = time.monotonic()
    ended = threading.Event()

    def tell() -> None:
        pause = FIRST_SECONDS
        while not ended.wait(pause):
            log.info("%s is %s, for %.0f s so far", subject, step(), time.monotonic() - begun)
            pause = EVERY_SECONDS

    teller = threading.Thread(target=tell, name="ksrv-load-progress", daemon=True)
    try:
        teller.start()
    except RuntimeError as error:  # the system has no thread; the load continues without lines
        log.warning("no progress of %s will be logged: %s", subject, error)
    try:
        yield
    finally:
        ended.set()
        if teller.ident is not None:
            teller.join()
