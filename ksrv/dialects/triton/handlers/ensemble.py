"""An ensemble of a Triton repository: each request goes from model to model, as its steps say.

The calls are calls of composition: they pass the other models' queues, and are joined there with the requests
of other clients. They have the deadline of the ensemble's request. A step is submitted as soon as its tensors are
there, by the thread that has the last of them; so independent steps run in parallel, and many requests are
under way at a time. While a request is the ensemble's only one, its steps cannot be joined with others. They run on
that thread if their models have proven quick, as for a request of the HTTP server, which saves the changes
of thread. Calls to models that serve sequences carry the sequence of the request.

As in Triton, nothing compares the outputs with config.pbtxt, and a step may leave an output out: the answer and the
steps after it are then made without it. Between models with and without a batch dimension the dimension is added, or a
batch of one row loses it (`ReshapeTensorDims` in Triton's ensemble_scheduler.cc).
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import NamedTuple, TypeAlias

import numpy as np

from ksrv.dialects.foreign_runner import ForeignRunner
from ksrv.dialects.triton.config.backends import ENSEMBLE
from ksrv.dialects.triton.declarations import EnsembleStep, TritonDeclarations
from ksrv.errors import Cancelled, HandlerFailed, InvalidRequest, NotFound, NotReady
from ksrv.handlers.concurrent import Done
from ksrv.handlers.models import Submit, input_tensor
from ksrv.model.config import ModelConfig
from ksrv.model.spec import ModelSpec, TensorSpec, fits
from ksrv.request import (
    ExecutorInputs,
    ExecutorOutputs,
    InferRequest,
    RequestedOutput,
    RequestHandle,
    Tensor,
)

SEQUENCE_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end")


Result: TypeAlias = list[Tensor] | BaseException
"""The outputs, or why the request has none."""


class EnsembleRunner(ForeignRunner):
    """Serves an ensemble, which has neither a handler nor a model file. Each batch is one request."""

    def _load(self, config: ModelConfig) -> ModelSpec:
        self._lock = threading.Lock()
        self._under_way = 0
        self._steps = TritonDeclarations.of(config).steps
        self._spec = replace(
            config.spec(self.source.name, self.source.version),
            platform=ENSEMBLE.name,
            device="cpu",
            calls_models=True,
            concurrency=config.concurrent_batches,
        )
        return self._spec

    def begin(self, inputs: ExecutorInputs, done: Done) -> Callable[[], None]:
        """Begin a request; the error is that of the first step that failed.

        Args:
            done: Called once with its answer, on the thread that learns of it first.
        """
        began = perf_counter_ns()

        def ended(result: Result) -> None:
            with self._lock:
                self._under_way -= 1
            if isinstance(result, Cancelled):
                done(result)
            elif isinstance(result, BaseException):
                done(self.failure_of(result, "inference", inputs))
            else:
                timings = {"inference": perf_counter_ns() - began}
                done(ExecutorOutputs(result, timings=timings, parts={0: (0, len(result))}))

        running = RunningSteps(self._steps, self._spec, self.submit, inputs, ended)
        with self._lock:
            inputs.beside_others = self._under_way > 0
            self._under_way += 1  # from here on every failure is reported to `ended`
        running.submit_ready()
        return running.cancel


class StepTensor(NamedTuple):
    """A tensor of the ensemble.

    Attributes:
        tensor: The tensor; None if the step has left it out.
        rows: The rows of the batch that it belongs to; 0 if the model that gave it has no batch dimension.
        is_given: Whether the client gave it.
    """

    tensor: Tensor | None
    rows: int
    is_given: bool = False


class RunningSteps:
    """The steps of one request.

    Args:
        spec: The description of the ensemble.
        ended: Called once with the outputs, or with the error.
    """

    def __init__(
        self,
        steps: Sequence[EnsembleStep],
        spec: ModelSpec,
        submit: Submit,
        inputs: ExecutorInputs,
        ended: Callable[[Result], None],
    ) -> None:
        self._spec = spec
        self._submit = submit
        self._inputs = inputs
        self._ended = ended
        self._lock = threading.Lock()
        self._waiting = list(steps)
        self._left = len(steps)
        self._calls: list[RequestHandle] = []
        self._rows = inputs.rows if spec.counts_rows else 0
        self._tensors = {
            name: StepTensor(tensor, self._rows, is_given=True)
            for name, tensor in inputs.tensors.items()
        }
        self._is_over = False
        self._submitting: set[int] = set()  # threads
        given = inputs.requests[0].parameters
        self._parameters = {name: given[name] for name in SEQUENCE_PARAMETERS if name in given}
        self._context = copy_context()  # the later steps are submitted by threads of other requests

    def submit_ready(self) -> None:
        """Submit the steps whose tensors are there, and those whose tensors come meanwhile on this thread."""
        thread = threading.get_ident()
        if thread in self._submitting:
            return  # a step ran inline: the loop below continues, so that no chain of steps is too deep
        self._submitting.add(thread)
        try:
            while (step := self._next_ready()) is not None:
                self._begin(step)
        except BaseException as error:  # noqa: BLE001  it is the request's failure, not the thread's
            self._end(error)
        finally:
            self._submitting.discard(thread)

    def _next_ready(self) -> EnsembleStep | None:
        with self._lock:
            if self._is_over:
                return None
            for place, step in enumerate(self._waiting):
                if self._is_ready(step):
                    return self._waiting.pop(place)
        return None

    def cancel(self) -> None:
        """Give the request up."""
        self._end(Cancelled("no client waits for the batch any more"))

    def _is_ready(self, step: EnsembleStep) -> bool:
        return all(tensor in self._tensors for tensor in step.inputs.values())

    def _begin(self, step: EnsembleStep) -> None:
        given = {own: self._tensors[name] for own, name in step.inputs.items()}
        rows: list[int] = []  # of the step's batch, once its model is known
        request = InferRequest(
            step.model,
            step.version,
            outputs=[RequestedOutput(name) for name in step.outputs],
            parameters=dict(self._parameters),
            adapt=partial(_adapt, given, rows),
        )
        try:
            call = self._context.copy().run(self._submit, request, self._inputs)
        except (InvalidRequest, NotFound) as error:
            raise _fault(error, step, given) from None
        with self._lock:
            self._calls.append(call)
            is_over = self._is_over
        if is_over:
            call.cancel()
        call.add_done_callback(partial(self._step_ended, step, given, rows))

    def _step_ended(
        self,
        step: EnsembleStep,
        given: Mapping[str, StepTensor],
        rows: Sequence[int],
        call: RequestHandle,
    ) -> None:
        result: Result
        try:
            outputs = {tensor.name: tensor for tensor in call.wait().outputs}
            with self._lock:
                for own, name in step.outputs.items():
                    self._tensors[name] = StepTensor(outputs.get(own), rows[-1])
                self._left -= 1
                is_last = not self._left
            if not is_last:
                self.submit_ready()
                return
            result = self._answer()
        except BaseException as error:  # noqa: BLE001  the thread is the called model's
            result = _fault(error, step, given)
        self._end(result)

    def _answer(self) -> list[Tensor]:
        has_rows = self._rows > 0
        answer = []
        for spec in self._spec.outputs:
            found = self._tensors[spec.name]
            if found.tensor is not None:
                shape = fitted(found.tensor.shape, found.rows, spec, has_rows)
                answer.append(_renamed(spec.name, found.tensor, shape))
        return answer

    def _end(self, result: Result) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            calls = list(self._calls)
        try:
            if isinstance(result, BaseException):
                for call in calls:
                    call.cancel()
        finally:
            self._ended(result)


def fitted(shape: tuple[int, ...], rows: int, spec: TensorSpec, has_rows: bool) -> tuple[int, ...]:
    """Return the shape of a tensor in a model with or without a batch dimension.

    Args:
        shape: The shape that the tensor has.
        rows: See `StepTensor`.
        spec: The model's tensor.
        has_rows: Whether the model has a batch dimension.
    """
    if has_rows == (rows > 0):
        return shape
    if has_rows:
        return (1, *shape) if fits(shape, spec.shape[1:]) else shape
    return shape[1:] if rows == 1 and not fits(shape, spec.shape) else shape


def _adapt(
    given: Mapping[str, StepTensor], rows: list[int], request: InferRequest, model: ModelSpec
) -> None:
    """Give the request of a step its inputs, in the shapes of the model that takes them."""
    has_rows = model.counts_rows and any(one.batched for one in model.inputs)
    specs = {one.name: one for one in model.inputs}
    request.inputs = []
    for name, found in given.items():
        if found.tensor is None:
            continue
        shape, spec = found.tensor.shape, specs.get(name)
        if spec is not None:
            shape = fitted(shape, found.rows, spec, has_rows)
        request.inputs.append(input_tensor(name, _renamed(name, found.tensor, shape)))
    first = request.inputs[0].shape if request.inputs else ()
    rows.append(first[0] if has_rows and first else 0)


def _renamed(name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    data = tensor.data
    if isinstance(data, np.ndarray):
        data = data.reshape(shape)
    return Tensor(name, tensor.datatype, shape, data)


def _fault(
    error: BaseException, step: EnsembleStep, given: Mapping[str, StepTensor]
) -> BaseException:
    """Return the error of a step as the client of the ensemble gets it, who cannot mend what the steps do."""
    if isinstance(error, NotFound):
        return NotReady(f"the ensemble calls a model that does not serve: {error.message}")
    if isinstance(error, InvalidRequest) and not all(one.is_given for one in given.values()):
        return HandlerFailed(
            f"the ensemble's step {step.model} refused tensors of the steps before: {error.message}"
        )
    return error
