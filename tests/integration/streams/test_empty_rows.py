"""Rows of a stream that get nothing, beside rows of other clients that do."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ksrv import BaseHandler
from ksrv.client import Client, StreamFailed
from ksrv.errors import StreamNeeded
from ksrv.testing import Server
from ksrv.testing.models import load
from tests.support.models import write_model

ROWS = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
    "batching": {"max_batch_size": 4},
    "warmup": False,
}


class Lists(BaseHandler):
    """Yields the rows above zero once."""

    def inference(self, x):
        yield [row if row[0] > 0 else None for row in x]


class Generators(BaseHandler):
    def inference(self, x):
        return [iter_once(row) for row in x]


class Coroutines(BaseHandler):
    async def inference(self, x):
        return [iter_later(row) for row in x]


def iter_once(row):
    if row[0] > 0:
        yield row


async def iter_later(row):
    if row[0] > 0:
        yield row


@pytest.mark.parametrize("handler", [Lists, Generators, Coroutines])
def test_joined_requests_get_no_numbers_of_each_other(handler):
    with load(handler, **ROWS) as model:
        given, empty, half = model.infer_many(
            [{"x": [[5, 6]]}, {"x": [[0, 0]]}, {"x": [[0, 0], [7, 8]]}]
        )
    assert given["y"].tolist() == [[5, 6]]
    for answer in (empty, half):
        assert isinstance(answer, StreamNeeded)
        assert " is empty" in answer.message


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        ([-1, 2], lambda: np.float32([3, 4])),
        ([-1, 2], lambda: [3, 4.0]),
        ([-1, 2], lambda: torch().tensor([3.0, 4.0])),
        ([-1], lambda: 3.0),
        ([-1], lambda: np.float64(3)),
    ],
)
def test_a_row_without_a_value_is_blank_in_a_chunk_of_numbers(shape, value):
    class Yields(BaseHandler):
        def inference(self, x):
            yield [value(), None]

    outputs = [{"name": "y", "datatype": "FP32", "shape": shape}]
    with load(Yields, **{**ROWS, "outputs": outputs}) as model:
        [part] = model.stream({"x": [[1, 2], [3, 4]]})
    assert part["y"][0].any() and not part["y"][1].any()


def torch():
    return pytest.importorskip("torch")


CLOSES = """
from ksrv import BaseHandler

class Closes(BaseHandler):
    def inference(self, x):
        return [self.words(row, first) for row, (first, _) in enumerate(x)]

    {begin} words(self, row, first):
        try:
            for word in "abc":
                if first == 0:
                    self.context.batch.end(row)
                yield word
        finally:
            if first == 0:
                raise RuntimeError("cannot be closed")
"""
TEXTS = """
inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]
outputs: [{name: y, datatype: BYTES, shape: [-1]}]
batching: {max_batch_size: 2, max_delay_ms: 20000}
warmup: false
"""


@pytest.mark.parametrize("executor", ["inline", "process"])
@pytest.mark.parametrize("begin", ["def", "async def"])
def test_a_generator_that_cannot_be_closed_fails_no_other_request(tmp_path, begin, executor):
    write_model(tmp_path, "closes", CLOSES.format(begin=begin), f"{TEXTS}executor: {executor}\n")
    with Server(tmp_path) as server, Client(server.url) as client, ThreadPoolExecutor(2) as pool:
        left = pool.submit(heard, client, [[0, 0]])
        assert heard(client, [[1, 1]]) == b"abc"
        left.result(60)


def heard(client, x):
    """Return the texts of a stream up to its end, or to its failure."""
    found = b""
    try:
        for part in client.stream("closes", x):
            found += b"".join(part["y"])
    except StreamFailed:
        pass
    return found
