"""A client that has its answer finds it counted, because counting happens first."""

import threading
from contextlib import suppress

import pytest

from ksrv.errors import InferenceError, KsrvError
from tests.support.engine.engine_models import engine, request, source


def refuse(batch):
    raise InferenceError("refused", 422)


@pytest.fixture
def gate():
    """Holds the handler back until the test watches the end of its request."""
    event = threading.Event()
    yield event
    event.set()


def counts_at_the_end(gate, run=lambda batch: batch.tensors["x"].data, images=None, **settings):
    """Run two rows. Return successes, failures and rows as counted when the request ends."""

    def held(batch):
        assert gate.wait(60)
        return run(batch)

    seen = []
    served = engine(source(**settings), run=held)

    def look(_):
        [found] = served.statistics("m")
        seen.append((found.success.count, found.failed, found.inference_count))

    submitted = request(2)
    submitted.images = images
    handle = served.submit(submitted)
    handle.add_done_callback(look)
    gate.set()
    with suppress(KsrvError):
        handle.wait()
    served.close()
    return seen


@pytest.mark.parametrize("batch", [0, 4])
def test_answer_is_counted_before_delivery(gate, batch):
    assert counts_at_the_end(gate, batch=batch) == [(1, 0, 2)]


def test_failure_is_counted_before_delivery(gate):
    assert counts_at_the_end(gate, refuse) == [(0, 1, 2)]


def test_assembly_failure_is_counted_before_delivery(gate):
    class Unreadable(dict):
        def __bool__(self):
            assert gate.wait(60)
            raise MemoryError

    assert counts_at_the_end(gate, images=Unreadable()) == [(0, 1, 0)]
