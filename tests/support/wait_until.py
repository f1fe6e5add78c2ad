"""Waiting for what a test is about, however long the machine takes."""

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object], seconds: float = 60.0, tell: Callable[[], str] = str
) -> None:
    """Wait until a condition is true; fail after some time.

    It is looked at every five milliseconds at first, and less often the longer it takes: what is waited for needs
    the processor more.
    """
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, f"it did not happen\n{tell()}"
        time.sleep(min(0.05, 0.005 + waited / 20))
