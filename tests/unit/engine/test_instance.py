"""Instances whose executor dies or hangs, or whose thread ends."""

import pytest

from ksrv.engine.executor import ExecutorAbsent, ExecutorDied
from ksrv.errors import HandlerFailed, NotReady
from tests.support.engine.engine_models import (
    FunctionExecutor,
    expire_in_handler,
    request,
    source,
)
from tests.support.wait_until import wait_until

# ---- deaths -----------------------------------------------------------------------------------


class Mortal(FunctionExecutor):
    """Dies if a request asks for it. All instances share `log`."""

    def __init__(self, source, number, log):
        super().__init__(source, self.answer)
        self.number = number
        self.log = log

    def start(self):
        self.log.append(("start", self.number))
        return super().start()

    def answer(self, batch):
        ids = [part.id for part in batch.requests]
        self.log.append(("run", ids))
        if any(name.startswith("kill") for name in ids):
            once = [name for name in ids if name == "kill-once"]
            if not once or ("killed", "once") not in self.log:
                self.log.append(("killed", "once"))
                self.alive = False
                raise ExecutorDied("the process was killed by SIGKILL")
        return batch.tensors["x"].data * 2


@pytest.mark.parametrize("retry", [True, False])
def test_batch_sent_to_a_dead_process_does_not_count_as_tried(engine, retry):
    """Neither the process that had died before, nor the retry policy, applies to the batch."""
    log = []

    class Absent(Mortal):
        absences = 3

        def answer(self, batch):
            if Absent.absences:
                Absent.absences -= 1
                self.alive = False
                raise ExecutorAbsent("the process was killed by SIGKILL")
            return super().answer(batch)

    served = engine(source(retry=retry), make=lambda one, number, threads: Absent(one, number, log))
    assert (
        served.submit(request(id="a", value=3.0), caller_blocks=True).wait().outputs[0].data[0, 0]
        == 6.0
    )
    assert log.count(("start", 0)) == 4
    if retry:
        Absent.absences = 1
        assert (
            served.submit(request(id="kill-once", value=4.0), caller_blocks=True)
            .wait()
            .outputs[0]
            .data[0, 0]
            == 8.0
        )


def test_model_that_cannot_restart_reports_it_and_refuses(engine):
    log = []

    class Broken(Mortal):
        def start(self):
            if self.log:
                raise HandlerFailed("no weights")
            return super().start()

    served = engine(source(), make=lambda one, number, threads: Broken(one, number, log))
    waiting = served.submit(request(id="kill"))
    with pytest.raises(Exception, match="no weights"):
        waiting.wait()
    assert not served.ready()
    with pytest.raises(Exception, match="no weights"):
        served.submit(request(), caller_blocks=True).wait()


def test_requests_without_a_version_use_the_highest_working_version(engine):
    class Broken(Mortal):
        def start(self):
            if self.log and self.source.version == "2":
                raise HandlerFailed("no weights")
            return super().start()

    log = {"1": [], "2": []}
    served = engine(
        source(version="1"),
        source(version="2"),
        make=lambda one, number, threads: Broken(one, number, log[one.version]),
    )
    with pytest.raises(Exception, match="no weights"):
        served.submit(request(id="kill"), caller_blocks=True).wait()
    assert served.submit(request(), caller_blocks=True).wait().model_version == "1"
    assert served.ready() and served.model_ready("m") and not served.model_ready("m", "2")
    assert [(line.version, line.state) for line in served.index()] == [
        ("1", "READY"),
        ("2", "UNAVAILABLE"),
    ]


def test_instance_stuck_beyond_the_timeout_is_not_ready(engine, gate):
    served = engine(source(timeout_ms=20), run=lambda batch: gate.wait(30) and batch)
    expire_in_handler(served)
    wait_until(lambda: not served.model_ready("m"))
    assert not served.ready()
    gate.set()
    wait_until(served.ready)


# ---- exceptions that are not an Exception -----------------------------------------------------


def test_ended_instance_thread_makes_its_model_unavailable(engine):
    class Broken(FunctionExecutor):
        broken = False

        @property
        def alive(self):
            if self.broken:
                raise BaseException("odd")
            return True

        @alive.setter
        def alive(self, value):
            pass

    executors = []

    def make(source, number, threads):
        executors.append(Broken(source, lambda batch: batch.tensors["x"].data))
        return executors[-1]

    served = engine(make=make)
    served.submit(request(), caller_blocks=True).wait()
    executors[0].broken = True
    assert served.submit(
        request(), caller_blocks=True
    ).wait()  # the answer is sent before anybody looks
    wait_until(lambda: served.index()[0].state == "UNAVAILABLE")
    assert "its instance 0 ended with BaseException" in served.index()[0].reason
    with pytest.raises(NotReady, match="its instance 0 ended with BaseException"):
        served.submit(request(), caller_blocks=True).wait()
    executors[0].broken = False
