"""The log lines about a slow load."""

import logging

from ksrv.engine import load_progress
from ksrv.engine.load_progress import progress_logged
from tests.support.wait_until import wait_until


def test_each_line_names_the_step_of_a_slow_load(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "ksrv.engine")
    monkeypatch.setattr(load_progress, "FIRST_SECONDS", 0.001)
    monkeypatch.setattr(load_progress, "EVERY_SECONDS", 0.001)
    steps = iter(("loading", "warming up"))
    with progress_logged("the model slow", lambda: next(steps, "late")):
        wait_until(lambda: len(caplog.messages) >= 2)
    assert [line.partition(", for")[0] for line in caplog.messages[:2]] == [
        "the model slow is loading",
        "the model slow is warming up",
    ]
