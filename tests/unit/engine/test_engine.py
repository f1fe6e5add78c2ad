"""The engine for its callers: answers, refusals, deadlines, and the life cycle of models."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool, memory_budget
from ksrv._native.memory.memory_budget import PROCESS
from ksrv.engine import engine as engines
from ksrv.errors import (
    BodyTooLarge,
    Cancelled,
    DeadlineExceeded,
    HandlerFailed,
    InferenceError,
    InvalidRequest,
    NotFound,
    NotReady,
    Overloaded,
)
from ksrv.limits import Limits
from ksrv.request import BatchOutputs
from tests.support.engine.engine_models import (
    answer_in_time,
    engine,
    expire_in_handler,
    request,
    source,
    submit_for,
    tensor,
)
from tests.support.wait_until import wait_until


@pytest.fixture
def gate():
    """Holds handlers back until the test releases them."""
    event = threading.Event()
    yield event
    event.set()


def held(gate, entered=None, result=lambda batch: batch.tensors["x"].data * 2):
    def run(batch):
        if entered is not None:
            entered.append(batch)
        gate.wait(30)
        return result(batch)

    return run


def test_a_request_is_answered():
    served = engine()
    response = served.submit(request(3, 2.0, id="a"), caller_blocks=True).wait()
    assert response.id == "a"
    assert response.outputs[0].data.tolist() == [[4.0] * 4] * 3
    assert set(response.timings) >= {"queue", "assemble"}
    served.close()


def test_idle_engine_returns_memory(monkeypatch):
    monkeypatch.setattr("ksrv.engine.engine.IDLE_MEMORY_SECONDS", 0.005)
    block = buffer_pool.lease(1_000_003)
    del block
    assert buffer_pool.statistics()["pooled"] > 0
    served = engine()
    wait_until(lambda: buffer_pool.statistics()["pooled"] == 0)
    served.close()


def test_an_unknown_model_and_version_are_not_found():
    served = engine(source(version="1"))
    with pytest.raises(NotFound, match="'nope'"):
        served.submit(request(model="nope"), caller_blocks=True).wait()
    with pytest.raises(NotFound, match="'9'"):
        served.submit(request(model_version="9"), caller_blocks=True).wait()
    assert served.submit(request(model_version="1"), caller_blocks=True).wait().model_version == "1"
    served.close()


def test_queued_requests_share_a_batch_in_order(gate):
    entered = []
    served = engine(source(batch=4), run=held(gate, entered))
    first = served.submit(request(1, 0.0))
    wait_until(lambda: entered)
    handles = [served.submit(request(1, float(n))) for n in range(1, 7)]
    gate.set()
    assert [t.wait().outputs[0].data[0, 0] for t in [first, *handles]] == [
        2.0 * n for n in range(7)
    ]
    assert [batch.rows for batch in entered] == [1, 4, 2]
    assert entered[1].tensors["x"].data[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]
    served.close()


def test_a_full_queue_refuses_at_once(gate):
    entered = []
    served = engine(source(queue_size=2), run=held(gate, entered))
    running = served.submit(request())
    wait_until(lambda: entered)
    waiting = [served.submit(request()) for _ in range(2)]
    with pytest.raises(Overloaded, match=r"limit .queue_size. \(2 requests\)"):
        served.submit(request())
    assert waiting[0].cancel()
    waiting.append(served.submit(request()))
    with pytest.raises(Cancelled):
        waiting[0].wait()
    gate.set()
    for handle in [running, *waiting[1:]]:
        handle.wait()
    assert served.statistics()[0].rejected["full"] == 1
    served.close()


def test_bytes_in_flight_are_limited(gate):
    entered = []
    wait_until(lambda: memory_budget.PROCESS.held == 0)  # bytes of an earlier test
    served = engine(run=held(gate, entered), limits=Limits(in_flight=100))
    with pytest.raises(BodyTooLarge, match=r"160 bytes.*100"):
        served.submit(request(10))
    running = served.submit(request(5))
    with pytest.raises(Overloaded, match="limit --limits-in-flight"):
        served.submit(request(2))
    gate.set()
    running.wait()
    wait_until(lambda: memory_budget.PROCESS.held == 0)
    served.submit(request(6), caller_blocks=True).wait()
    served.close()


def test_a_deadline_ends_a_waiting_request_that_no_handler_sees(gate):
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
    served.close()


def test_a_deadline_ends_a_running_request_and_its_late_answer_is_dropped(gate):
    served = engine(source(timeout_ms=30), run=held(gate))
    expired = expire_in_handler(served)
    gate.set()
    response, more = answer_in_time(served, value=3.0)
    assert response.outputs[0].data[0, 0] == 6.0
    assert served.statistics()[0].expired == expired + more
    served.close()


def test_a_deadline_in_the_past_is_refused():
    served = engine()
    with pytest.raises(DeadlineExceeded):
        served.submit(request(deadline_ns=time.monotonic_ns() - 1))
    served.close()


def test_failure_affects_only_its_request(gate):
    entered = []

    def result(batch):
        outputs = BatchOutputs([tensor("y", batch.tensors["x"].data)])
        for place, part in enumerate(batch.requests):
            if part.id == "bad":
                outputs.failures[place] = InferenceError("a bad row", 422)
        return outputs

    served = engine(source(batch=4), run=held(gate, entered, result))
    first = served.submit(request())
    wait_until(lambda: entered)
    bad = served.submit(request(id="bad"))
    good = served.submit(request(value=5.0))
    gate.set()
    with pytest.raises(InferenceError, match="a bad row"):
        bad.wait()
    assert good.wait().outputs[0].data[0, 0] == 5.0
    first.wait()
    served.close()


def test_an_executor_that_raises_fails_the_batch_and_serves_the_next():
    calls = []

    def run(batch):
        calls.append(batch)
        if len(calls) == 1:
            raise ZeroDivisionError("inside")
        return batch.tensors["x"].data

    served = engine(run=run)
    with pytest.raises(HandlerFailed, match="ZeroDivisionError"):
        served.submit(request(), caller_blocks=True).wait()
    served.submit(request(), caller_blocks=True).wait()
    served.close()


def test_a_request_above_the_maximum_is_refused_with_both_numbers():
    served = engine(source(batch=4))
    with pytest.raises(InvalidRequest, match=r"5 rows.*(4 rows)"):
        served.submit(request(5), caller_blocks=True).wait()
    served.close()


def test_request_above_the_maximum_is_split_if_enabled():
    sizes = []

    def run(batch):
        sizes.append(batch.rows)
        return batch.tensors["x"].data + 1

    served = engine(source(batch=4, split=True), run=run)
    big = request(10)
    big.inputs[0].data[:] = np.arange(40, dtype=np.float32).reshape(10, 4)
    expected = big.inputs[0].data + 1
    response = served.submit(big, caller_blocks=True).wait()
    assert np.array_equal(response.outputs[0].data, expected)
    assert response.outputs[0].shape == (10, 4)
    assert max(sizes) <= 4
    served.close()


def test_idle_engine_trims_malloc(monkeypatch):
    trims = []
    monkeypatch.setattr(engines, "IDLE_MEMORY_SECONDS", 0.001)
    monkeypatch.setattr(buffer_pool, "trim_malloc", lambda: trims.append(PROCESS.held))
    served = engine()
    wait_until(lambda: len(trims) >= 2)
    served.close()
    assert not any(trims)


def test_parts_of_different_shapes_fail_the_request():
    widths = iter((4, 5))
    served = engine(
        source(batch=1, split=True), run=lambda batch: np.zeros((1, next(widths)), np.float32)
    )
    with pytest.raises(HandlerFailed, match=r"different forms, y FP32\[4\] and y FP32\[5\]"):
        served.submit(request(2), caller_blocks=True).wait()
    served.close()


def test_first_failed_part_ends_the_others(gate):
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
    gate.set()
    served.close()


def test_split_request_times_out_and_is_cancelled_as_a_whole(gate):
    entered = []
    served = engine(source(batch=1, split=True, queue_size=1000), run=held(gate, entered))
    split = served.submit(request(900))
    wait_until(lambda: entered)
    assert not split.join(time.monotonic_ns() + 10_000_000)
    assert split.cancel()
    assert split.join() and split.done()
    with pytest.raises(Cancelled):
        split.wait()
    gate.set()
    served.close()


def test_callback_is_called_for_answers_and_expiry(gate):
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
    served.close()


def test_reload_loses_no_accepted_request(gate):
    entered = []
    served = engine(run=held(gate, entered))
    old = served.submit(request(id="old"))
    wait_until(lambda: entered)
    served.load("m")
    new = served.submit(request(id="new"))
    gate.set()
    assert old.wait().id == "old"
    assert new.wait().id == "new"
    served.close()


def test_a_failed_reload_leaves_the_old_one_serving():
    from tests.support.engine.engine_models import FunctionExecutor

    fail = []

    def make(one, number, threads):
        executor = FunctionExecutor(one, lambda batch: batch.tensors["x"].data)
        if fail:

            def start():
                raise HandlerFailed("no weights")

            executor.start = start
        return executor

    served = engine(make=make)
    fail.append(True)
    with pytest.raises(HandlerFailed, match="no weights"):
        served.load("m")
    served.submit(request(), caller_blocks=True).wait()
    assert served.model_ready("m")
    served.close()


def test_unloaded_model_is_not_ready_until_loaded_again():
    served = engine()
    served.unload("m")
    with pytest.raises(NotReady):
        served.submit(request(), caller_blocks=True).wait()
    assert served.index()[0].state == "UNAVAILABLE"
    assert served.index(ready_only=True) == []
    served.load("m")
    served.submit(request(), caller_blocks=True).wait()
    served.close()


def test_one_model_that_fails_does_not_stop_the_others():
    broken = source("broken")
    served = engine(
        source("m"),
        broken.__class__(
            name="broken",
            version="",
            folder=Path("/x"),
            root=Path("/x"),
            error="model.yaml: line 3",
        ),
    )
    served.submit(request(), caller_blocks=True).wait()
    assert not served.ready()
    assert any("line 3" in line.reason for line in served.index())
    with pytest.raises(NotReady, match="line 3"):
        served.submit(request(model="broken"), caller_blocks=True).wait()
    served.close()
