"""Says in the log what a load that takes long is at, so that a start is never silent."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("ksrv.engine")

FIRST_SECONDS = 2.0
"""After how long a load is spoken of for the first time."""

EVERY_SECONDS = 10.0
"""How long it takes from one line about a load to the next."""


@contextmanager
def progress_logged(subject: str, step: Callable[[], str]) -> Iterator[None]:
    """Write a line after two seconds, and every ten seconds from then on, until the block ends.

    Args:
        step: Returns what the load is at now.
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
