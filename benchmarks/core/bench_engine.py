"""CPU time of the process that the engine adds to one request: one client, a trivial handler.

`runner` drives the handler alone. `claimed` is how the HTTP server submits once the handler has proven quick and
runs on the thread that asks; `thread` hands a request with a deadline to the instance's thread and waits. For the
process executor, only the CPU time of the server's process counts; its wall time
is in `bench_process`.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ksrv.engine.engine import Engine, EngineSettings
from ksrv.handlers.runner import Runner
from ksrv.repository.layout import Repository
from ksrv.request import InferRequest, Tensor, single_request

MODEL = """
handler: handler.py
executor: {executor}
inputs:
  - {{name: x, datatype: FP32, shape: [-1, {width}]}}
outputs:
  - {{name: y, datatype: FP32, shape: [-1, {width}]}}
{more}
"""

HANDLER = """
from ksrv import BaseHandler

class Handler(BaseHandler):
    def handle(self, batch, context):
        return batch["x"]
"""

SMALL = 16
LARGE = 224 * 224 * 3


def repository(folder: Path, executor: str = "inline", width: int = SMALL, more: str = "") -> Any:
    model = folder / "m"
    model.mkdir()
    (model / "model.yaml").write_text(MODEL.format(executor=executor, width=width, more=more))
    (model / "handler.py").write_text(HANDLER)
    return Repository([folder])


def request_of(width: int = SMALL) -> Any:
    data = np.ones((1, width), np.float32)
    return InferRequest("m", inputs=[Tensor("x", "FP32", data.shape, data)], nbytes=data.nbytes)


@pytest.fixture
def served(tmp_path: Path, request: Any) -> Iterator[Any]:
    executor, width, settings = request.param
    engine = Engine(repository(tmp_path, executor, width), EngineSettings(**settings))
    engine.start()
    yield engine
    engine.close()


cpu = pytest.mark.benchmark(group="one request", timer=time.process_time, min_rounds=30)


@cpu
def test_runner(benchmark: Any, tmp_path: Path) -> None:
    runner = Runner(repository(tmp_path).scan()["m"].versions[""])
    runner.load()
    request = request_of()
    batch = single_request(request.inputs, 1, request)
    benchmark.pedantic(runner.run, (batch,), rounds=50, iterations=1000, warmup_rounds=1)


@cpu
@pytest.mark.parametrize(
    "served",
    [
        pytest.param(("inline", SMALL, {}), id="thread"),
        pytest.param(("process", SMALL, {}), id="process"),
        pytest.param(("process", LARGE, {}), id="process-602KB"),
    ],
    indirect=True,
)
def test_infer(benchmark: Any, served: Any) -> None:
    width = served.spec("m").inputs[0].shape[1]
    request = request_of(width)

    def infer() -> Any:
        return served.submit(request, caller_blocks=True).wait()

    for _ in range(1200):
        infer()
    benchmark.pedantic(infer, rounds=50, iterations=200, warmup_rounds=1)


@cpu
@pytest.mark.parametrize(
    "served", [pytest.param(("inline", SMALL, {}), id="claimed")], indirect=True
)
def test_submit(benchmark: Any, served: Any) -> None:
    request = request_of()

    def infer() -> Any:
        return served.submit(request, allow_inline=True).wait()

    for _ in range(1200):
        infer()
    assert served.loaded()[0].queue.inline_for_all, "the handler has not proven quick"
    benchmark.pedantic(infer, rounds=50, iterations=200, warmup_rounds=1)
