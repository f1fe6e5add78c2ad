"""The request of an ensemble ends once, for all outcomes of its calls."""

from itertools import pairwise

import numpy as np
import pytest

from ksrv.dialects.triton.declarations import EnsembleStep, TritonDeclarations
from ksrv.dialects.triton.handlers.ensemble import EnsembleRunner, RunningSteps
from ksrv.errors import Cancelled
from ksrv.model.config import ModelConfig, ModelSource
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.request import ExecutorInputs, InferResponse, RequestPart, Tensor


def spec_of(output):
    """The description of an ensemble with one output, or of the model of a step."""
    tensor = TensorSpec("x", "FP32", (-1, 1))
    return ModelSpec("m", inputs=(tensor,), outputs=(TensorSpec(output, "FP32", (-1, 1)),))


class Call:
    """A call to a model, which the test ends. `cancelling` is the error that `cancel` raises."""

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


def one_request():
    x = Tensor("x", "FP32", (1, 1), np.zeros((1, 1), np.float32))
    inputs = ExecutorInputs({"x": x}, 1, [RequestPart(slice(0, 1))])
    return inputs, EnsembleStep(model="m", version="", inputs={"x": "x"}, outputs={"y": "y"})


@pytest.fixture
def request_of():
    """Begin the request of an ensemble with one step, and return it with the list of its ends."""

    def begin(call):
        inputs, step = one_request()
        ends = []

        def submit(request, caller):
            request.adapt(request, spec_of("y"))
            return call

        steps = RunningSteps([step], spec_of("y"), submit, inputs, ends.append)
        steps.submit_ready()
        return steps, ends

    return begin


def test_an_output_that_cannot_be_read_fails_the_request(request_of):
    call = Call()
    steps, ends = request_of(call)
    call.end(None)  # which has no name
    assert [type(end) for end in ends] == [AttributeError]
    steps.cancel()
    assert len(ends) == 1, "it has ended before"


def test_a_call_that_cannot_be_cancelled_does_not_keep_the_request(request_of):
    steps, ends = request_of(Call(cancelling=OSError("the channel is closed")))
    with pytest.raises(OSError, match="channel"):
        steps.cancel()
    assert [type(end) for end in ends] == [Cancelled]


@pytest.mark.parametrize("gives_up", [False, True], ids=["answered", "given up"])
def test_only_the_calls_of_a_request_without_others_may_keep_the_thread(gives_up, tmp_path):
    calls, may_keep = [], []

    def submit(request, caller):
        may_keep.append(not caller.beside_others)
        request.adapt(request, spec_of("y"))
        calls.append(Call())
        return calls[-1]

    _, step = one_request()
    spec = spec_of("y")
    declared = TritonDeclarations(steps=(step,)).mapping()
    config = ModelConfig(inputs=spec.inputs, outputs=spec.outputs, dialect=declared)
    ensemble = EnsembleRunner(
        ModelSource(name="m", version="1", folder=tmp_path, root=tmp_path, config=config)
    )
    ensemble.submit = submit
    ensemble.load()
    ends = []

    def begin():
        return ensemble.begin(one_request()[0], ends.append)

    def end(number, cancel):
        if gives_up:
            cancel()
        calls[number].end(Tensor("y", "FP32", (1, 1), np.ones((1, 1), np.float32)))

    first, second = begin(), begin()
    end(0, first)
    end(1, second)
    begin()
    assert may_keep == [True, False, True]
    assert len(ends) == 2


def test_a_long_chain_of_steps_that_run_inline_is_not_deep():
    class Ended(Call):
        output = Tensor("y", "FP32", (1, 1), np.ones((1, 1), np.float32))

        def add_done_callback(self, callback):
            callback(self)

    inputs, _ = one_request()
    names = ["x", *(f"y{number}" for number in range(2000))]
    steps = [
        EnsembleStep(model="m", version="", inputs={"x": given}, outputs={"y": made})
        for given, made in pairwise(names)
    ]
    ends = []

    def submit(request, caller):
        request.adapt(request, spec_of("y"))
        return Ended()

    RunningSteps(steps, spec_of(names[-1]), submit, inputs, ends.append).submit_ready()
    assert [[tensor.name for tensor in end] for end in ends] == [names[-1:]]
