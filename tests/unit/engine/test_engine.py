"""The engine for its callers: answers, refusals, deadlines, and the life cycle of models."""

import time

import pytest

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.memory_budget import PROCESS
from ksrv.engine import engine as engines
from ksrv.errors import (
    DeadlineExceeded,
    InferenceError,
)
from tests.support.engine.engine_models import (
    answer_in_time,
    expire_in_handler,
    request,
    source,
    submit_for,
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
    monkeypatch.setattr("ksrv.engine.engine.IDLE_MEMORY_SECONDS", 0.005)
    block = buffer_pool.lease(1_000_003)
    del block
    assert buffer_pool.statistics()["pooled"] > 0
    engine()
    wait_until(lambda: buffer_pool.statistics()["pooled"] == 0)


def test_a_deadline_ends_a_waiting_request_that_no_handler_sees(engine, gate):
    entered = []
    served = engine(run=held(gate, entered))
    running = served.submit(request())
    wait_until(lambda: entered)
    late = submit_for(served, 20)
    with pytest.raises(DeadlineExceeded, match="before a handler"):
        late.wait()
    gate.set()
    running.wait()
    served.submit(request(id="next"), caller_blocks=True).wait()
    assert [batch.requests[0].id for batch in entered] == ["", "next"]


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


def test_idle_engine_trims_malloc(engine, monkeypatch):
    trims = []
    monkeypatch.setattr(engines, "IDLE_MEMORY_SECONDS", 0.001)
    monkeypatch.setattr(buffer_pool, "trim_malloc", lambda: trims.append(PROCESS.held))
    served = engine()
    wait_until(lambda: len(trims) >= 2)
    served.close()
    assert not any(trims)


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


def test_callback_is_called_for_answers_and_expiry(engine, gate):
    entered, ended = [], []
    served = engine(run=held(gate, entered))
    running = served.submit(request())
    running.add_done_callback(lambda handle: ended.append("running"))
    wait_until(lambda: entered)
    late = submit_for(served, 10)
    late.add_done_callback(lambda handle: ended.append("late"))
    wait_until(lambda: ended == ["late"])
    gate.set()
    wait_until(lambda: ended == ["late", "running"])
    running.add_done_callback(lambda handle: ended.append("again"))
    assert ended[-1] == "again"
