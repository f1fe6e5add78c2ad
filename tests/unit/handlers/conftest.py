"""A loaded runner of a handler's source, and batches for it."""

import textwrap

import numpy as np
import pytest

from ksrv.request import ExecutorInputs, RequestPart, Tensor


@pytest.fixture
def runner_of(tmp_path, loaded):
    """Make a loaded runner of a handler's source and the lines of a model.yaml."""

    def make(handler, config="", name="m", files=(), target="handler.py", **options):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "handler.py").write_text(textwrap.dedent(handler))
        for path, text in dict(files).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(textwrap.dedent(text))
        (folder / "model.yaml").write_text(f"handler: {target}\n" + textwrap.dedent(config))
        return loaded(folder, name, **options)

    return make


class Chunks(list):
    """An emitter that records what it was given.

    Attributes:
        waiting: The indexes of the requests that have not ended.
    """

    writer = None

    def __init__(self, waiting=(0,)):
        self.waiting = frozenset(waiting)

    def __call__(self, outputs):
        self.append(outputs)

    def listening(self):
        return self.waiting


@pytest.fixture
def chunks():
    """An emitter for a batch."""
    return Chunks()


@pytest.fixture
def batch_of():
    """A batch of one request per row group. Each request has its part of the input x."""

    def make(*arrays, explain=False, emit=None, **named):
        tensors, requests, start = {}, [], 0
        for index, array in enumerate(arrays):
            requests.append(RequestPart(slice(start, start + len(array)), f"id{index}"))
            start += len(array)
        joined = np.concatenate(arrays)
        tensors["x"] = Tensor("x", "FP32", joined.shape, joined)
        for name, array in named.items():
            tensors[name] = Tensor(name, "FP32", array.shape, array)
        return ExecutorInputs(tensors, start, requests, explain, emit)

    return make
