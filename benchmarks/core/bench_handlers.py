"""Time that the runner adds to a handler: stages, timing, and outputs made into tensors.

`bare` calls the same function without the runner; the difference is the runner's.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ksrv.handlers.runner import Runner
from ksrv.repository.layout import Repository
from ksrv.request import ExecutorInputs, RequestPart, Tensor

ARRAYS = {"one row": (1, 4), "image": (1, 224, 224, 3), "batch of 8 images": (8, 224, 224, 3)}
HANDLER = "def inference(x):\n    return x\n"
TORCH_HANDLER = """
from ksrv import BaseHandler
class Identity(BaseHandler):
    def preprocess(self, batch):
        return batch.tensor("x")
    def inference(self, x):
        return x
"""


def batch_of(array: Any) -> Any:
    requests = [RequestPart(slice(row, row + 1)) for row in range(len(array))]
    tensor = Tensor("x", "FP32", array.shape, array)
    return ExecutorInputs({"x": tensor}, len(array), requests)


@pytest.fixture
def runner_of(tmp_path: Path) -> Iterator[Any]:
    runners = []

    def make(source: Any) -> Any:
        (tmp_path / "m").mkdir()
        (tmp_path / "m/handler.py").write_text(source)
        runner = Runner(Repository([tmp_path]).scan()["m"].versions[""])
        runners.append(runner)
        runner.load()
        return runner

    yield make
    for runner in runners:
        runner.close()


@pytest.mark.parametrize("shape", ARRAYS.values(), ids=ARRAYS)
def test_bare(benchmark: Any, shape: Any) -> None:
    array = np.zeros(shape, np.float32)
    benchmark(lambda: (batch_of(array), array))


@pytest.mark.parametrize("shape", ARRAYS.values(), ids=ARRAYS)
def test_arrays(benchmark: Any, runner_of: Any, shape: Any) -> None:
    runner = runner_of(HANDLER)
    array = np.zeros(shape, np.float32)
    answer = benchmark(lambda: runner.run(batch_of(array)))
    assert answer.tensors[0].data is array


@pytest.mark.parametrize("shape", ARRAYS.values(), ids=ARRAYS)
def test_tensors(benchmark: Any, runner_of: Any, shape: Any) -> None:
    pytest.importorskip("torch")
    runner = runner_of(TORCH_HANDLER)
    array = np.zeros(shape, np.float32)
    answer = benchmark(lambda: runner.run(batch_of(array)))
    assert answer.tensors[0].data.ctypes.data == array.ctypes.data
