"""A system that cannot start another thread: affected operations fail or wait, and work again later."""

import threading
from functools import partial
from queue import Queue

import pytest

from ksrv.errors import DeadlineExceeded, NotFound, Overloaded
from tests.support.engine.engine_models import FunctionExecutor, request, source
from tests.support.wait_until import wait_until


@pytest.fixture
def refused(monkeypatch):
    """The name prefixes of threads that the system does not start."""
    names: list[str] = []
    start = threading.Thread.start

    def started(thread):
        if thread.name.startswith(tuple(names)):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    return names


def test_a_dormant_model_is_loaded_by_a_later_request(engine, refused):
    made = engine(source("m"), model_control="lazy")
    refused.append("ksrv-load-")
    for _ in range(2):
        with pytest.raises(Overloaded, match="the model m cannot be loaded now"):
            made.submit(request(model="m"), caller_blocks=True).wait()
    refused.clear()
    made.submit(request(model="m"), caller_blocks=True).wait()


class Held(FunctionExecutor):
    """Waits for a gate when it starts, unless its model is called quick."""

    def __init__(self, one, gate):
        super().__init__(one, lambda batch: batch.tensors["x"].data)
        self.gate = gate

    def start(self):
        assert self.source.name == "quick" or self.gate.wait(60)
        return super().start()


def test_requests_of_a_load_use_one_thread_and_delay_no_other_model(engine, gate):
    models = source("slow"), source("quick")
    made = engine(*models, make=lambda one, *_: Held(one, gate), model_control="lazy")
    told: Queue[object] = Queue()
    for number in range(200):
        assert made.wait_elsewhere("slow", partial(told.put, number), told.put)
    assert made.wait_elsewhere("quick", partial(told.put, "quick"), told.put)
    assert told.get(timeout=60) == "quick"
    waiters = [one for one in threading.enumerate() if one.name.startswith("ksrv-lazy-wait")]
    assert len(waiters) <= 2
    gate.set()
    assert [told.get(timeout=60) for _ in range(200)] == list(range(200))


def test_a_request_that_waits_too_long_for_a_load_is_refused(engine, gate):
    model = source("m", timeout_ms=50)
    made = engine(model, make=lambda one, *_: Held(one, gate), model_control="lazy")
    told: Queue[object] = Queue()
    assert made.wait_elsewhere("m", partial(told.put, "called"), told.put)
    assert isinstance(told.get(timeout=60), DeadlineExceeded)


def test_sequences_time_out_once_a_thread_can_start(refused):
    from tests.unit.engine.test_sequence_order import asked, recorded

    made, executors = recorded(lambda: None, max=5, idle_timeout_ms=1)
    refused.append("ksrv-sequences-")
    made.submit(asked("a", start=True), caller_blocks=True).wait()
    made.submit(asked("b", start=True), caller_blocks=True).wait()
    refused.clear()
    made.submit(asked("c", start=True), caller_blocks=True).wait()
    wait_until(lambda: not executors[0].states)
    made.close(20)


def test_names_of_unknown_models_are_not_kept(engine):
    made = engine(source("m"), model_control="explicit")
    for number in range(100):
        with pytest.raises(NotFound):
            made.unload(f"unknown-{number}")
    assert not made._models._locks
