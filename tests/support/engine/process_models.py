"""Models in a folder, and batches for them, for the tests of the process executor."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np

from ksrv._native.queue.request_handle import NO_DEADLINE
from ksrv.engine.processes.process import ProcessExecutor
from ksrv.model.config import ModelConfig, ModelSource
from ksrv.request import ExecutorInputs, RequestPart, Tensor

PRELUDE = """
import os, signal, sys, time
import numpy as np
from ksrv.handlers.base import BaseHandler
"""


def source(folder: Path, handler: str, **config: Any) -> ModelSource:
    (folder / "handler.py").write_text(PRELUDE + dedent(handler))
    settings = ModelConfig(handler=str(folder / "handler.py"), **config)
    return ModelSource(name="m", version="1", folder=folder, root=folder, config=settings)


@contextmanager
def running(
    folder: Path, handler: str, *, config: Mapping[str, Any] = {}, **options: Any
) -> Iterator[Any]:
    executor = ProcessExecutor(source(folder, handler, **config), **options)
    try:
        executor.start()
        yield executor
    finally:
        executor.close()


class Chunks(list[Any]):
    """An emitter that keeps what it was given, and the handle of its only client."""

    deadline_ns = NO_DEADLINE
    headers: Mapping[str, str] = {}

    def offer(self, outputs: Any) -> None:
        self.append(outputs)

    def listening(self) -> Any:
        return frozenset({0})

    def without_room(self) -> list[int]:
        return []

    def done(self) -> bool:
        return False

    def add_done_callback(self, callback: Any) -> None:
        pass


def batch_of(*arrays: np.ndarray, datatype: str = "FP32", **fields: Any) -> ExecutorInputs:
    """One request, its tensors called x0, x1, ..."""
    tensors = {
        f"x{place}": Tensor(f"x{place}", datatype, array.shape, array)
        for place, array in enumerate(arrays)
    }
    rows = arrays[0].shape[0]
    return ExecutorInputs(tensors, rows, [RequestPart(slice(0, rows), "id-1")], **fields)
