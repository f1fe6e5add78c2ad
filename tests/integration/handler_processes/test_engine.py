"""The engine with handlers in separate processes: warm-ups of replaced processes, and inputs that end each process."""

import os
import signal
from contextlib import contextmanager

import numpy as np
import pytest

from ksrv.errors import HandlerFailed
from ksrv.request import InferRequest, Tensor
from tests.support.engine.engine_models import engine_of
from tests.support.models import VECTOR, write_model
from tests.support.wait_until import wait_until

MODEL = f"""
executor: process
{VECTOR}
"""

HANDLER = """
import os
from ksrv import BaseHandler

class Handler(BaseHandler):
    def handle(self, batch, context):
        if any(part.id == "exit" for part in batch.requests):
            os._exit(3)
        return batch["x"]
"""


@contextmanager
def engine(folder, more="", handler=HANDLER):
    write_model(folder / "models", "m", handler, MODEL + more)
    with engine_of(folder / "models") as served:
        assert served.ready(), served.index()
        yield served


def request(value=1.0, **fields):
    data = np.full((1, 4), value, np.float32)
    return InferRequest("m", inputs=[Tensor("x", "FP32", data.shape, data)], **fields)


def pid_of(served):
    """The process that answers: a warmed handler names it in each row."""
    answer = served.submit(request(5.0), caller_blocks=True).wait()
    return int(answer.outputs[0].data[0, 0])


WARMED = """
import os
from pathlib import Path
from ksrv import BaseHandler

class Handler(BaseHandler):
    def handle(self, batch, context):
        x = batch["x"]
        runs = Path(__file__).with_name(f"runs-{os.getpid()}")
        with runs.open("a") as file:
            file.write(f"{len(x)} {x[0, 0]:g}\\n")
        if x[0, 0] == 0 and Path(__file__).with_name("refuse").exists():
            os._exit(3)
        return x * 0 + os.getpid()
"""


def first_runs(folder, pid):
    lines = (folder / "models" / "m" / f"runs-{pid}").read_text().splitlines()
    return [tuple(map(float, line.split())) for line in lines]


@pytest.mark.parametrize("idle", [True, False])
def test_a_replaced_process_is_warm_before_it_takes_a_batch(tmp_path, idle):
    """Zeros of each size come first, whether the process died between requests or in one."""
    more = "batching: {max_batch_size: 3}"
    with engine(tmp_path, more, handler=WARMED) as served:
        pid = pid_of(served)
        assert first_runs(tmp_path, pid)[:3] == [(1, 0), (2, 0), (3, 0)]
        os.kill(pid, signal.SIGKILL)
        if idle:
            wait_until(lambda: not served.ready() or served.statistics()[0].restarts)
            wait_until(served.ready)
        replaced = pid_of(served)
        assert replaced != pid
        assert first_runs(tmp_path, replaced) == [(1, 0), (2, 0), (3, 0), (1, 5)]


def test_a_warm_up_that_ends_the_replacement_is_not_tried_on_the_next(tmp_path, caplog):
    with engine(tmp_path, handler=WARMED) as served:
        pid = pid_of(served)
        (tmp_path / "models" / "m" / "refuse").touch()
        os.kill(pid, signal.SIGKILL)
        replaced = pid_of(served)
        assert first_runs(tmp_path, replaced) == [(1, 5)]
        assert "was not warmed up" in caplog.text
        wait_until(served.ready)


def test_waiting_requests_run_at_once_after_a_killing_input(tmp_path, monkeypatch):
    """Each such input ends both processes; a pause between starts would last for ten minutes."""
    monkeypatch.setattr("ksrv.engine.processes.backoff._FIRST_S", 600.0)
    monkeypatch.setattr("ksrv.engine.processes.backoff.LONGEST_S", 600.0)
    with engine(tmp_path, "instances: 2\nwarmup: false") as served:
        for _ in range(3):
            poison = served.submit(request(id="exit"))
            others = [served.submit(request(float(n))) for n in range(4)]
            with pytest.raises(HandlerFailed, match="ended two handler processes"):
                poison.wait()
            for n, other in enumerate(others):
                assert (other.wait().outputs[0].data == n).all()
