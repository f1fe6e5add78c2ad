"""A client that has its answer finds it counted, because counting happens first."""

from contextlib import suppress

import pytest

from ksrv.errors import InferenceError, KsrvError
from tests.support.engine.engine_models import request, source


def refuse(batch):
    raise InferenceError("refused", 422)


def counts_at_the_end(
    engine, gate, run=lambda batch: batch.tensors["x"].data, images=None, **settings
):
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
def test_answer_is_counted_before_delivery(engine, gate, batch):
    assert counts_at_the_end(engine, gate, batch=batch) == [(1, 0, 2)]


def test_failure_is_counted_before_delivery(engine, gate):
    assert counts_at_the_end(engine, gate, refuse) == [(0, 1, 2)]


def test_assembly_failure_is_counted_before_delivery(engine, gate):
    class Unreadable(dict):
        def __bool__(self):
            assert gate.wait(60)
            raise MemoryError

    assert counts_at_the_end(engine, gate, images=Unreadable()) == [(0, 1, 0)]
