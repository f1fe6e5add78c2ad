"""A system that cannot start another thread: affected operations fail or wait, and work again later."""

import threading
from functools import partial
from queue import Queue

import pytest

from ksrv.engine.engine import Engine, EngineSettings
from ksrv.errors import DeadlineExceeded, NotFound, Overloaded
from tests.support.engine.engine_models import FunctionExecutor, Models, request, source
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


def test_a_dormant_model_is_loaded_by_a_later_request(refused):
    made = Engine(
        Models(source("m")),
        EngineSettings(model_control="lazy"),
        make_executor=lambda one, number, threads: FunctionExecutor(
            one, lambda batch: batch.tensors["x"].data
        ),
    )
    made.start()
    refused.append("ksrv-load-")
    for _ in range(2):
        with pytest.raises(Overloaded, match="the model m cannot be loaded now"):
            made.submit(request(model="m"), caller_blocks=True).wait()
    refused.clear()
    made.submit(request(model="m"), caller_blocks=True).wait()
    made.close(20)


def test_requests_of_a_load_use_one_thread_and_delay_no_other_model():
    go = threading.Event()

    class Executor(FunctionExecutor):
        def start(self):
            assert self.name != "slow" or go.wait(60)
            return super().start()

    def make(one, number, threads):
        made = Executor(one, lambda batch: batch.tensors["x"].data)
        made.name = one.name
        return made

    models = Models(source("slow"), source("quick"))
    made = Engine(models, EngineSettings(model_control="lazy"), make_executor=make)
    made.start()
    told: Queue[object] = Queue()
    for number in range(200):
        assert made.wait_elsewhere("slow", partial(told.put, number), told.put)
    assert made.wait_elsewhere("quick", partial(told.put, "quick"), told.put)
    assert told.get(timeout=60) == "quick"
    waiters = [one for one in threading.enumerate() if one.name.startswith("ksrv-lazy-wait")]
    assert len(waiters) <= 2
    go.set()
    assert [told.get(timeout=60) for _ in range(200)] == list(range(200))
    made.close(20)


def test_a_request_that_waits_too_long_for_a_load_is_refused():
    go = threading.Event()

    class Executor(FunctionExecutor):
        def start(self):
            assert go.wait(60)
            return super().start()

    made = Engine(
        Models(source("m", timeout_ms=50)),
        EngineSettings(model_control="lazy"),
        make_executor=lambda one, number, threads: Executor(
            one, lambda batch: batch.tensors["x"].data
        ),
    )
    made.start()
    told: Queue[object] = Queue()
    assert made.wait_elsewhere("m", partial(told.put, "called"), told.put)
    assert isinstance(told.get(timeout=60), DeadlineExceeded)
    go.set()
    made.close(20)


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


def test_names_of_unknown_models_are_not_kept():
    made = Engine(Models(source("m")), EngineSettings(model_control="explicit"))
    made.start()
    for number in range(100):
        with pytest.raises(NotFound):
            made.unload(f"unknown-{number}")
    assert not made._models._locks
    made.close(20)
