"""Waiting for what a test is about, however long the machine takes."""

import time


def wait_until(condition, seconds=60.0):
    """Wait until a condition holds; fail when it does not in time."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.005)
