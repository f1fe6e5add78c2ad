"""How the request of an ensemble ends: once, whatever its calls do."""

import numpy as np
import pytest

from ksrv.errors import Cancelled
from ksrv.handlers.triton.ensemble import RunningSteps
from ksrv.request import BatchInputs, BatchRequest, InferResponse, Tensor
from ksrv.source import EnsembleStep


class Call:
    """A call to a model, which ends when the test says so.

    Args:
        cancelling: What `cancel` raises, or None.
    """

    def __init__(self, cancelling=None):
        self._cancelling = cancelling
        self._callbacks = []

    def add_done_callback(self, callback):
        self._callbacks.append(callback)

    def cancel(self):
        if self._cancelling is not None:
            raise self._cancelling
        return True

    def wait(self):
        return InferResponse("m", "", "", [self.output])

    def end(self, output):
        self.output = output
        for callback in self._callbacks:
            callback(self)


@pytest.fixture
def request_of():
    """Begin the request of an ensemble with one step, and return it with the list of its ends."""

    def begin(call):
        x = Tensor("x", "FP32", (1, 1), np.zeros((1, 1), np.float32))
        inputs = BatchInputs({"x": x}, 1, [BatchRequest(slice(0, 1))])
        step = EnsembleStep(model="m", version="", inputs={"x": "x"}, outputs={"y": "y"})
        ends = []
        steps = RunningSteps([step], ["y"], lambda request, caller: call, inputs, ends.append)
        steps.submit_ready()
        return steps, ends

    return begin


def test_an_output_that_cannot_be_read_fails_the_request(request_of):
    call = Call()
    steps, ends = request_of(call)
    call.end(Tensor("y", "BYTES", (1, 2), [b"one of two"]))
    assert [type(end) for end in ends] == [ValueError]
    steps.cancel()
    assert len(ends) == 1, "it has ended before"


def test_a_call_that_cannot_be_cancelled_does_not_keep_the_request(request_of):
    steps, ends = request_of(Call(cancelling=OSError("the channel is closed")))
    with pytest.raises(OSError, match="channel"):
        steps.cancel()
    assert [type(end) for end in ends] == [Cancelled]
