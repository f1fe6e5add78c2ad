"""A load makes room by unloading idle models, and the search for room ends."""

import threading

from ksrv.engine.engine import Engine, EngineSettings
from ksrv.engine.lazy_models import LazyModels
from tests.support.engine.engine_models import FunctionExecutor, Models, request, source


class Loads:
    """Executors of 60 bytes each. One of them may call another model during its load."""

    def __init__(self):
        self.held = 0
        self.kept = 0  # bytes that remain after an executor was closed
        self.calls = threading.Event()
        self.engine = Engine(
            Models(source("a"), source("b")),
            EngineSettings(model_control="lazy"),
            make_executor=self.make,
        )
        self.engine.lazy = LazyModels(self.engine._models, 100, lambda: self.held)
        self.engine.start()

    def make(self, one, number, threads):
        loads = self

        class Executor(FunctionExecutor):
            def start(self):
                loads.held += 60
                if one.name == "a" and loads.calls.is_set():
                    loads.engine.submit(request(model="b")).wait()
                return super().start()

            def close(self):
                loads.held -= 60 - loads.kept

        return Executor(one, lambda batch: batch.tensors["x"].data)


def within(seconds, call):
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def test_model_with_a_pending_reload_is_not_unloaded():
    loads = Loads()
    loads.engine.submit(request(model="a")).wait()
    loads.calls.set()
    assert within(30, lambda: loads.engine.load("a"))  # its new version calls b, which needs room
    assert loads.engine.model_ready("a") and loads.engine.model_ready("b")
    loads.engine.close(20)


def test_search_for_room_ends_when_the_engine_closes():
    loads = Loads()
    loads.engine.submit(request(model="a")).wait()
    loads.held = 1000
    loads.engine._models._closing = True  # no model can be unloaded any more
    assert within(30, lambda: loads.engine.lazy._make_room("b", 0))
    loads.engine.close(20)


def test_garbage_is_collected_if_an_unloaded_model_left_memory(monkeypatch):
    loads, collected = Loads(), []

    def collect():
        collected.append(loads.held)
        loads.held -= loads.kept
        return 0

    monkeypatch.setattr("ksrv.engine.lazy_models.gc.collect", collect)
    loads.engine.submit(request(model="a")).wait()
    loads.engine.submit(request(model="b")).wait()  # closing a's executor has freed its 60 bytes
    assert loads.held == 60 and not collected
    loads.kept = 60  # like the weights of a handler in a reference cycle
    loads.engine.submit(request(model="a")).wait()
    assert collected == [60] and loads.held == 60
    assert loads.engine.model_ready("a") and not loads.engine.model_ready("b")
    loads.engine.close(20)
