"""Joined requests whose answers have other sizes, or are wrong: each gets what it would get alone."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ksrv import BaseHandler
from ksrv.client import Client
from ksrv.errors import HandlerFailed, StreamNeeded
from ksrv.testing import Server
from ksrv.testing.models import load
from tests.support.models import write_model

ROWS = {
    "inputs": [{"name": "x", "datatype": "INT64", "shape": [-1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, -1]}],
    "batching": {"max_batch_size": 4},
    "warmup": False,
}


def ones(size):
    return np.ones(size, np.float32)


class Listed(BaseHandler):
    def inference(self, x):
        return [ones(size) for size in x]


class Named(BaseHandler):
    def inference(self, x):
        return {"y": [ones(size) for size in x]}


class Generators(BaseHandler):
    def inference(self, x):
        return [self.row(size) for size in x]

    def row(self, size):
        yield ones(size)


class Coroutines(BaseHandler):
    async def inference(self, x):
        return [self.row(size) for size in x]

    async def row(self, size):
        yield ones(size)


class Yields(BaseHandler):
    def inference(self, x):
        yield [ones(size) for size in x]


FORMS = [Listed, Named, Generators, Coroutines, Yields]


@pytest.mark.parametrize("handler", FORMS)
def test_joined_requests_get_rows_of_their_own_sizes(handler):
    with load(handler, **ROWS) as model:
        short, long = model.infer_many([{"x": [2]}, {"x": [3, 3]}])
    assert short["y"].shape == (1, 2)
    assert long["y"].shape == (2, 3)


@pytest.mark.parametrize("handler", FORMS)
def test_a_request_whose_own_rows_differ_fails_alone(handler):
    with load(handler, **ROWS) as model:
        good, bad = model.infer_many([{"x": [2]}, {"x": [3, 1]}])
    assert good["y"].shape == (1, 2)
    assert isinstance(bad, HandlerFailed)
    assert "values of one shape" in bad.message


class Misshapen(BaseHandler):
    def inference(self, x):
        return [["a text"] if size == 9 else ones(size) for size in x]


class TooLarge(BaseHandler):
    def inference(self, x):
        return x[:, None]


@pytest.mark.parametrize(
    ("handler", "outputs"),
    [
        (Misshapen, ROWS["outputs"]),
        (TooLarge, [{"name": "y", "datatype": "INT8", "shape": [-1, 1]}]),
    ],
)
def test_an_answer_that_does_not_fit_fails_its_request_alone(handler, outputs):
    with load(handler, **{**ROWS, "outputs": outputs}) as model:
        good, bad = model.infer_many([{"x": [2]}, {"x": [9 if handler is Misshapen else 2000]}])
    assert len(good["y"]) == 1
    assert isinstance(bad, HandlerFailed)


class OncePerRow(BaseHandler):
    """Yields as often as the row says."""

    def inference(self, x):
        return [self.row(count) for count in x]

    def row(self, count):
        for _ in range(count):
            yield ones(1)


def test_a_stream_of_numbers_fails_no_joined_request_with_one_chunk():
    with load(OncePerRow, **ROWS) as model:
        once, twice, never = model.infer_many([{"x": [1]}, {"x": [2]}, {"x": [0]}])
    assert once["y"].tolist() == [[1.0]]
    assert isinstance(twice, StreamNeeded)
    assert "a stream of FP32 tensors" in twice.message
    assert isinstance(never, StreamNeeded)


class Texts(BaseHandler):
    def inference(self, x):
        return [self.row(count) for count in x]

    def row(self, count):
        yield from "abcdef"[:count]


def test_joined_texts_of_streams_stay_with_their_requests():
    outputs = [{"name": "y", "datatype": "BYTES", "shape": [-1]}]
    with load(Texts, **{**ROWS, "outputs": outputs}) as model:
        first, second, third = model.infer_many([{"x": [2]}, {"x": [4, 1]}, {"x": [0]}])
    assert first["y"].tolist() == [b"ab"]
    assert second["y"].tolist() == [b"abcd", b"a"]
    assert third["y"].tolist() == [b""]


HANDLER = """
import numpy as np
from ksrv import BaseHandler

class Sizes(BaseHandler):
    def inference(self, x):
        return [self.row(size) for size in x]

    {begin} row(self, size):
        for step in range(2):
            yield np.full(size + step, size, np.float32)
"""
SETTINGS = """
inputs: [{name: x, datatype: INT64, shape: [-1]}]
outputs: [{name: y, datatype: FP32, shape: [-1, -1]}]
batching: {max_batch_size: 2, max_delay_ms: 20000}
warmup: false
"""


@pytest.mark.parametrize("executor", ["inline", "process"])
@pytest.mark.parametrize("begin", ["def", "async def"])
def test_joined_streams_get_rows_of_their_own_sizes(tmp_path, begin, executor):
    write_model(tmp_path, "sizes", HANDLER.format(begin=begin), f"{SETTINGS}executor: {executor}\n")
    with Server(tmp_path) as server, Client(server.url) as client, ThreadPoolExecutor(2) as pool:
        other = pool.submit(chunks, client, 5)
        assert chunks(client, 2) == [[[2, 2]], [[2, 2, 2]]]
        assert other.result(60) == [[[5] * 5], [[5] * 6]]


def chunks(client, size):
    return [part["y"].tolist() for part in client.stream("sizes", np.array([size]))]
