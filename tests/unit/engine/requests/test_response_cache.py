"""The response cache: which answers it keeps, when, and how changes of a model affect them."""

import gc
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest

from ksrv import BaseHandler
from ksrv.engine.requests.response_cache import ResponseCache
from ksrv.model.config import Cache
from ksrv.request import InferRequest, InferResponse, Tensor
from ksrv.testing import load

VECTOR = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
}
ROW = np.arange(4, dtype=np.float32).reshape(1, 4)
REQUEST = InferRequest("m", inputs=[Tensor("x", "FP32", (1, 4), ROW)])


def answer(number, **fields):
    data = np.full((1, 4), number, np.float32)
    return InferResponse("m", "", "", [Tensor("y", "FP32", (1, 4), data)], **fields)


@pytest.fixture
def cache():
    return ResponseCache(Cache())


def test_the_id_of_the_request_that_was_answered_is_not_kept(cache):
    class Id(str):
        """An id that may be as long as a body, and whose deletion can be observed."""

        __slots__ = ("__weakref__",)

    given = Id("x" * 1000)
    seen = weakref.ref(given)
    cache.keep(cache.key(REQUEST), 0, replace(answer(1), id=given))
    del given
    gc.collect()
    assert seen() is None
    assert cache.find(cache.key(REQUEST), REQUEST).wait().id == REQUEST.id


def test_answer_is_cached_before_it_is_delivered(monkeypatch):
    """A thread that gets the answer, such as a handler that called the model, may modify it at once."""

    class Twice(BaseHandler):
        def inference(self, x):
            return {"y": x * 2}

    submitted = threading.Event()
    handles, done = [], []
    keep = ResponseCache.keep

    def noted(*arguments):
        assert submitted.wait(60)
        done.append(handles[0].done())
        keep(*arguments)

    monkeypatch.setattr(ResponseCache, "keep", noted)
    with load(Twice, cache={}, **VECTOR) as model:
        handles.append(model.engine.submit(model._request(ROW)))
        submitted.set()
        handles[0].wait().outputs[0].data[:] = 7
        assert done == [False]
        assert model.infer(ROW)["y"].tolist() == (ROW * 2).tolist()


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_split_request_is_cached_as_one(rows):
    class Counts(BaseHandler):
        calls = 0

        def inference(self, x):
            self.calls += 1
            return {"y": x + self.calls}

    settings = {"cache": {}, "batching": {"max_batch_size": 2, "split": True}}
    asked = np.zeros((rows, 4), np.float32)
    with load(Counts, **settings, **VECTOR) as model:
        first = model.infer(asked)["y"]
        assert first.shape == (rows, 4)
        np.testing.assert_array_equal(model.infer(asked)["y"], first)
        assert model.infer(asked[:1] + 1)["y"][0, 0] > 1


def test_late_changes_to_a_batch_do_not_reach_the_cache():
    class Keeps:
        def __init__(self):
            self.kept = None

        def handle(self, batch, context):
            batch.set_parameter(0, "of", str(batch["x"][0, 0]))
            if self.kept is not None:
                self.kept.set_parameter(0, "of", "late")
                self.kept.set_header(0, "x-of", "late")
            self.kept = batch
            return {"y": batch["x"]}

    with load(Keeps, cache={}, **VECTOR) as model:
        first = model.infer(ROW)
        model.infer(ROW + 1)
        again = model.infer(ROW)
        assert (first.parameters, again.parameters) == ({"of": "0.0"}, {"of": "0.0"})
        assert again.headers == {}
