"""Waiting for what a test is about, however long the machine takes."""

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object], seconds: float = 60.0, tell: Callable[[], str] = str
) -> None:
    """Wait until a condition holds; fail when it does not in time.

    Args:
        condition: Tells whether it holds.
        seconds: How long it may take.
        tell: Says more of a failure, such as a server's log.
    """
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"it did not happen\n{tell()}"
        time.sleep(0.005)
