"""One batch to a handler's process and back: wall time, and the CPU that both sides spend on it.

`limit` is a bare sequenced packet socket between two processes that echo a frame-sized message and
do nothing else; `inline` is the same handler in this process. `extra_info` holds microseconds of CPU
for each batch, by the kernel's account of each process, and the bytes copied here.
"""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool
from ksrv.engine.instances.inline import InlineExecutor
from ksrv.engine.processes.process import ProcessExecutor
from ksrv.model.config import ModelConfig, ModelSource
from ksrv.request import ExecutorInputs, RequestPart, Tensor

ROUNDS = 3000
HANDLER = """
from ksrv.handlers.base import BaseHandler

class First(BaseHandler):
    def handle(self, batch, context):
        return {"y": batch["x"][:, :10]}
"""
HEADERS = {"host": "127.0.0.1:8080", "content-length": "602300", "accept": "*/*"}
SHAPES = {"64 B": (1, 16), "602 KB": (1, 150_528)}


def source(folder: Path) -> ModelSource:
    (folder / "handler.py").write_text(HANDLER)
    config = ModelConfig(handler=str(folder / "handler.py"))
    return ModelSource(name="first", version="", folder=folder, root=folder, config=config)


def batch_of(array: np.ndarray) -> ExecutorInputs:
    tensor = Tensor("x", "FP32", array.shape, array)
    return ExecutorInputs({"x": tensor}, 1, [RequestPart(slice(0, 1), "id", {}, HEADERS)])


def cpu_us(process: int | str) -> float:
    """Microseconds that the threads of a process have run for."""
    total = 0
    for task in Path(f"/proc/{process}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1000


def measure(benchmark: Any, run: Callable[[], object], other: int | None) -> None:
    for _ in range(200):
        run()
    copied, mine = buffer_pool.copied_bytes(), cpu_us("self")
    theirs = cpu_us(other) if other else 0.0
    for _ in range(ROUNDS):
        run()
    benchmark.extra_info["cpu_here_us"] = round((cpu_us("self") - mine) / ROUNDS, 1)
    if other:
        benchmark.extra_info["cpu_there_us"] = round((cpu_us(other) - theirs) / ROUNDS, 1)
    benchmark.extra_info["copied_bytes"] = (buffer_pool.copied_bytes() - copied) // ROUNDS
    benchmark(run)


@pytest.fixture(scope="module")
def process(tmp_path_factory: Any) -> Iterator[ProcessExecutor]:
    executor = ProcessExecutor(source(tmp_path_factory.mktemp("process")))
    executor.start()
    yield executor
    executor.close()


@pytest.mark.parametrize("size", SHAPES)
def test_process(benchmark: Any, process: Any, size: str) -> None:
    array = np.zeros(SHAPES[size], "f4")
    benchmark.group = f"batch to a handler, {size}"
    measure(benchmark, lambda: process.run(batch_of(array), None), process.pid)


@pytest.mark.parametrize("size", SHAPES)
def test_process_leased(benchmark: Any, process: Any, size: str) -> None:
    shape = SHAPES[size]
    array = buffer_pool.array(process.lease(int(np.prod(shape)) * 4), "<f4", shape)
    array[...] = 0
    benchmark.group = f"batch to a handler, {size}"
    measure(benchmark, lambda: process.run(batch_of(array), None), process.pid)


@pytest.mark.parametrize("size", SHAPES)
def test_inline(benchmark: Any, tmp_path: Path, size: str) -> None:
    executor = InlineExecutor(source(tmp_path))
    executor.start()
    array = np.zeros(SHAPES[size], "f4")
    benchmark.group = f"batch to a handler, {size}"
    measure(benchmark, lambda: executor.run(batch_of(array), None), None)
    executor.close()


def test_limit(benchmark: Any) -> None:
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        mine.close()
        while message := other.recv(1000):
            other.send(message[:200])
        os._exit(0)
    other.close()
    message = bytes(300)

    def run() -> None:
        mine.send(message)
        mine.recv(1000)

    benchmark.group = "batch to a handler, 64 B"
    measure(benchmark, run, child)
    mine.close()
    os.waitpid(child, 0)
