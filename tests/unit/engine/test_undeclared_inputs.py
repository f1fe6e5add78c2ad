"""Models that declare no inputs: what counts as rows, and what happens if the inputs do not agree."""

import gc
import weakref
from contextlib import contextmanager

import numpy as np
import pytest

from ksrv.request import InferRequest
from tests.support.engine.engine_models import engine_of, tensor
from tests.support.models import write_model
from tests.support.wait_until import wait_until

HANDLER = """
from ksrv import BaseHandler

class Handler(BaseHandler):
    def handle(self, batch, context):
        return {name: batch[name] * 2 for name in ("a", "b")} | {"rows": [batch.rows] * batch.rows}
"""


BATCHING = "batching: {max_batch_size: 8}\n"


@contextmanager
def serving(folder, handler=HANDLER, more=""):
    write_model(folder, "m", handler, more)
    with engine_of(folder) as engine:
        assert engine.ready(), engine.index()
        yield engine


def request(a, b):
    return InferRequest("m", inputs=[tensor("a", a), tensor("b", b)])


@pytest.mark.parametrize("more", ["", BATCHING], ids=["alone", "batched"])
def test_shared_first_dimension_counts_the_rows(tmp_path, more):
    with serving(tmp_path, more=more) as engine:
        outputs = engine.submit(request(np.ones((3, 2)), np.ones(3))).wait().outputs
        assert [output.shape for output in outputs] == [(3, 2), (3,), (3,)]


def test_unequal_first_dimensions_are_accepted_without_batching(tmp_path):
    with serving(tmp_path) as engine:
        for a, b in (((3, 2), (5,)), ((4,), (1,))):
            outputs = engine.submit(request(np.ones(a), np.ones(b))).wait().outputs
            # The handler sees it as one row.
            assert [output.shape for output in outputs] == [a, b, (1,)]


class Name(str):
    """A client's name for a tensor, whose deletion can be observed."""

    __slots__ = ("__weakref__",)


def test_clients_names_are_not_stored_with_batch_keys(tmp_path):
    """A name may be as long as a body: thousands of names would use gigabytes."""
    first = """
from ksrv import BaseHandler

class Handler(BaseHandler):
    def handle(self, batch, context):
        return {"rows": [batch.rows] * batch.rows}
"""
    with serving(tmp_path, handler=first, more=BATCHING) as engine:
        name = Name("x" * 1000)
        seen = weakref.ref(name)
        asked = InferRequest("m", inputs=[tensor(name, np.ones((1, 2)))])
        assert len(engine.submit(asked).wait().outputs) == 1
        del name, asked

        def forgotten():
            gc.collect()
            return seen() is None

        wait_until(forgotten)
