"""The engine for its callers: answers, refusals, deadlines, and the life cycle of models."""

import time

import pytest

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.memory_budget import PROCESS
from ksrv.errors import (
    DeadlineExceeded,
    InferenceError,
)
from tests.support.engine.engine_models import (
    answer_in_time,
    expire_in_handler,
    request,
    source,
)
from tests.support.wait_until import wait_until


def held(gate, entered=None, result=lambda batch: batch.tensors["x"].data * 2):
    def run(batch):
        if entered is not None:
            entered.append(batch)
        gate.wait(30)
        return result(batch)

    return run


def test_idle_engine_returns_memory(engine, monkeypatch):
    trims = []
    monkeypatch.setattr(buffer_pool, "trim_malloc", lambda: trims.append(PROCESS.held))
    monkeypatch.setattr("ksrv.engine.engine.IDLE_MEMORY_SECONDS", 0.005)
    block = buffer_pool.lease(1_000_003)
    del block
    assert buffer_pool.statistics()["pooled"] > 0
    engine()
    wait_until(lambda: buffer_pool.statistics()["pooled"] == 0 and trims)
    assert not any(trims)


def test_a_deadline_ends_a_running_request_and_its_late_answer_is_dropped(engine, gate):
    served = engine(source(timeout_ms=30), run=held(gate))
    expired = expire_in_handler(served)
    gate.set()
    response, more = answer_in_time(served, value=3.0)
    assert response.outputs[0].data[0, 0] == 6.0
    assert served.statistics()[0].expired == expired + more


def test_a_deadline_in_the_past_is_refused(engine):
    served = engine()
    with pytest.raises(DeadlineExceeded):
        served.submit(request(deadline_ns=time.monotonic_ns() - 1))


def test_first_failed_part_ends_the_others(engine, gate):
    entered, runs = [], []

    def run(batch):
        runs.append(batch.rows)
        if len(runs) == 1:
            raise InferenceError("the first part is bad", 422)
        return held(gate, entered)(batch)

    served = engine(source(batch=1, split=True), run=run)
    ended = []
    split = served.submit(request(4), ended.append)
    wait_until(lambda: ended)
    assert ended == [split] and split.done()
    with pytest.raises(InferenceError, match="the first part is bad"):
        split.wait()
    assert len(runs) <= 2
