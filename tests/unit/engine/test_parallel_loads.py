"""Models are loaded in parallel, and no load waits for another model's load."""

import threading

from ksrv.engine.engine import Engine, EngineSettings
from tests.support.engine.engine_models import FunctionExecutor, Models, source
from tests.support.wait_until import wait_until


class Gate:
    """Executors that report the begin of their load, and end it on request."""

    def __init__(self, *held):
        self.begun = {name: threading.Event() for name in ("a", "b", "c")}
        self.go = {name: threading.Event() for name in self.begun}
        for name in set(self.go) - set(held):
            self.go[name].set()

    def make(self, one, number, threads):
        gate = self

        class Executor(FunctionExecutor):
            def start(self):
                gate.begun[one.name].set()
                assert gate.go[one.name].wait(30)
                return super().start()

        return Executor(one, lambda batch: batch.tensors["x"].data)


def loading(gate, *names, **settings):
    made = Engine(
        Models(*(source(name) for name in names)),
        EngineSettings(**settings),
        make_executor=gate.make,
    )
    made.start(wait=False)
    return made


def test_models_are_loaded_in_parallel():
    gate = Gate("a", "b")
    made = loading(gate, "a", "b", "c")
    assert gate.begun["a"].wait(20) and gate.begun["b"].wait(20)  # both loads are still running
    wait_until(lambda: made.model_ready("c"))
    assert not made.ready()
    for go in gate.go.values():
        go.set()
    wait_until(made.ready)
    made.close(20)


def test_a_load_does_not_wait_for_another_models():
    gate = Gate("a")
    made = loading(gate, "a", "b")
    assert gate.begun["a"].wait(20)
    wait_until(lambda: made.model_ready("b"))
    made.load("b")
    made.unload("b")
    made.load("b")
    assert made.model_ready("b") and not made.model_ready("a")
    gate.go["a"].set()
    wait_until(made.ready)
    made.close(20)
