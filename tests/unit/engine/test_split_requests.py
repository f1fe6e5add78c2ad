"""A request that is split into parts counts as one request for its client and in the statistics."""

import time

import numpy as np
import pytest

from ksrv.errors import Cancelled, DeadlineExceeded, HandlerFailed, InferenceError
from ksrv.limits import HANDLER_HEADERS
from ksrv.request import ExecutorOutputs
from tests.support.engine.engine_models import request, source, tensor
from tests.support.wait_until import wait_until


def held(gate, entered):
    """Return a handler that reports its begin and waits for the gate."""

    def run(batch):
        entered.append(batch)
        assert gate.wait(60)
        return batch.tensors["x"].data

    return run


SPLIT = {"batch": 4, "split": True}


def counts(served):
    [found] = served.statistics("m")
    return {
        "success": found.success.count,
        "failed": found.failed,
        "cancelled": found.cancelled,
        "expired": found.expired,
        "rejected": found.rejected["full"],
    }


def only(**wanted):
    return dict.fromkeys(("success", "failed", "cancelled", "expired", "rejected"), 0) | wanted


def test_a_split_request_is_counted_once(engine):
    def run(batch):
        return ExecutorOutputs([tensor("y", batch.tensors["x"].data)], timings={"inference": 1000})

    served = engine(source(**SPLIT), run=run)
    for _ in range(5):
        served.submit(request(10), caller_blocks=True).wait()
    assert counts(served) == only(success=5)
    [found] = served.statistics("m")
    assert (found.inference_count, found.execution_count) == (50, 15)
    assert found.compute_infer.count == found.queue.count == found.compute_input.count == 5
    assert found.compute_infer.ns == 15 * 1000
    assert found.success.ns > 0


def test_a_failed_split_request_is_one_failure_and_no_cancellation(engine):
    def run(batch):
        raise InferenceError("bad", 422)

    served = engine(source(**SPLIT), run=run)
    for _ in range(3):
        with pytest.raises(InferenceError):
            served.submit(request(12), caller_blocks=True).wait()
    assert counts(served) == only(failed=3)


def test_incompatible_parts_count_as_one_failure(engine):
    widths = iter((4, 5))
    served = engine(
        source(batch=1, split=True), run=lambda batch: np.zeros((1, next(widths)), np.float32)
    )
    with pytest.raises(HandlerFailed, match=r"different forms, y FP32\[4\] and y FP32\[5\]"):
        served.submit(request(2), caller_blocks=True).wait()
    assert counts(served) == only(failed=1)


@pytest.mark.parametrize(
    ("error", "outcome"), [(Cancelled, "cancelled"), (DeadlineExceeded, "expired")]
)
def test_a_split_request_that_is_given_up_is_counted_once(engine, gate, error, outcome):
    entered = []
    served = engine(source(**SPLIT), run=held(gate, entered))
    late = time.monotonic_ns() + 500_000_000 if outcome == "expired" else None
    split = served.submit(request(12, deadline_ns=late))
    if outcome == "cancelled":
        wait_until(lambda: entered)
        split.cancel()
    with pytest.raises(error):
        split.wait()
    assert counts(served) == only(**{outcome: 1})


def test_refused_split_request_counts_as_one_refusal(engine, gate):
    entered = []
    served = engine(source(queue_size=3, **SPLIT), run=held(gate, entered))
    first = served.submit(request(4))
    wait_until(lambda: entered)
    waiting = [served.submit(request(4)) for _ in range(2)]
    with pytest.raises(Exception, match="queue"):
        served.submit(request(12))
    gate.set()
    for one in (first, *waiting):
        one.wait()
    assert counts(served) == only(success=3, rejected=1)


def noting(headers, parameters):
    """Return a handler that sets the next headers and parameters for each of its batches."""
    notes = iter(zip(headers, parameters, strict=True))

    def run(batch):
        fields, extra = next(notes)
        outputs = [tensor("y", batch.tensors["x"].data)]
        return ExecutorOutputs(outputs, headers={0: fields}, parameters={0: extra})

    return run


def test_headers_and_parameters_of_every_part_are_answered(engine):
    run = noting([{"A": "1"}, {"B": "2"}, {"A": "3"}], [{"p": 1}, {}, {"q": 2}])
    served = engine(source(**SPLIT), run=run)
    answer = served.submit(request(12), caller_blocks=True).wait()
    assert answer.headers == {"A": "3", "B": "2"}
    assert answer.parameters == {"p": 1, "q": 2}


def test_headers_that_are_too_large_together_fail_the_request(engine):
    large = "x" * (HANDLER_HEADERS // 2)
    served = engine(source(**SPLIT), run=noting([{"A": large}, {"B": large}], [{}, {}]))
    with pytest.raises(HandlerFailed, match="response headers take"):
        served.submit(request(8), caller_blocks=True).wait()
