"""The log lines about a slow load."""

import logging
import threading

import pytest

from ksrv.engine.load_progress import progress_logged


class FalseWait:
    """Waits as long as the test says, and records the requested times."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.passed = threading.Semaphore(0)
        self.reached = threading.Semaphore(0)

    def __call__(self, ended: threading.Event, seconds: float) -> bool:
        self.asked.append(seconds)
        self.reached.release()
        self.passed.acquire(timeout=60)
        return ended.is_set()

    def let_pass(self) -> None:
        self.passed.release()
        assert self.reached.acquire(timeout=60)


def test_first_line_follows_after_two_seconds_and_others_every_ten(caplog):
    caplog.set_level(logging.INFO, "ksrv.engine")
    wait = FalseWait()
    steps = iter(("loading", "warming up"))
    with progress_logged("the model slow", lambda: next(steps), wait):
        assert wait.reached.acquire(timeout=60)
        assert caplog.messages == []
        wait.let_pass()
        wait.let_pass()
        said = list(caplog.messages)
        wait.passed.release(10)
    assert [line.partition(", for")[0] for line in said] == [
        "the model slow is loading",
        "the model slow is warming up",
    ]
    assert wait.asked == [2.0, 10.0, 10.0]


def test_quick_load_logs_nothing(caplog):
    caplog.set_level(logging.INFO, "ksrv.engine")
    with progress_logged("the model quick", lambda: "loading"):
        pass
    assert caplog.messages == []


def test_a_failed_load_ends_the_lines(caplog):
    with pytest.raises(ValueError), progress_logged("the model", lambda: "loading"):
        raise ValueError
    assert not [one for one in threading.enumerate() if one.name == "ksrv-load-progress"]
