"""Runs an ensemble of a Triton repository: each step is a call to another model.

A call enters the queue of the other model, and can join a batch with requests of other clients. It has the
deadline of the ensemble's request, and the request's sequence if the other model serves sequences. A step is submitted
as soon as all its inputs exist, by the thread that got the last of them. So independent steps run in parallel, no
thread waits, and an ensemble runs many requests at a time. If the ensemble has only one request, no other request can
join the batches of its steps; then a step runs on the submitting thread if its model is quick, which saves the switches
between threads.

As in Triton, the outputs are not compared with config.pbtxt. A step may leave out an output; later steps and the answer
then do not have it. If only one of two models has a batch dimension, the dimension is added, or removed from a batch of
one row (`ReshapeTensorDims` in Triton's ensemble_scheduler.cc).
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
"""The outputs of an ensemble, or its error."""


class EnsembleRunner(ForeignRunner):
    """Serves an ensemble, which has neither a handler nor a model file. Each batch is one request."""

    def _load(self, config: ModelConfig) -> ModelSpec:
        self._lock = threading.Lock()
        self._under_way = 0  # requests that run
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
        """Begin a request, and return the function that cancels it.

        Args:
            done: Called once with the answer or the error of the first step that failed, on the thread that ends the
                request.
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
            # False: no other request can join the steps' batches, so a step may run on the thread that submits it.
            inputs.beside_others = self._under_way > 0
            self._under_way += 1  # from here on every failure is reported to `ended`
        running.submit_ready()
        return running.cancel


class StepTensor(NamedTuple):
    """A tensor of the ensemble.

    Attributes:
        tensor: The tensor, or None if the step that should give it left it out.
        rows: The rows of its batch; 0 if its model has no batch dimension.
        is_given: Whether it is an input of the client.
    """

    tensor: Tensor | None
    rows: int
    is_given: bool = False


class RunningSteps:
    """The steps of one request. Any thread that ends a step may call it; `_lock` guards the state.

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
        self._left = len(steps)  # steps that have not ended
        self._calls: list[RequestHandle] = []
        self._rows = inputs.rows if spec.counts_rows else 0
        self._tensors = {
            name: StepTensor(tensor, self._rows, is_given=True)
            for name, tensor in inputs.tensors.items()
        }
        self._is_over = False
        self._submitting: set[int] = set()  # the ids of the threads in `submit_ready`
        given = inputs.requests[0].parameters
        self._parameters = {name: given[name] for name in SEQUENCE_PARAMETERS if name in given}
        self._context = copy_context()  # for later steps, which threads of other requests submit

    def submit_ready(self) -> None:
        """Submit the steps whose inputs exist, including steps whose inputs this thread produces meanwhile."""
        thread = threading.get_ident()
        if thread in self._submitting:
            # A step ran on this thread and has called this method again. The outer loop continues, because a long
            # chain of steps would otherwise exceed the recursion limit.
            return
        self._submitting.add(thread)
        try:
            while (step := self._next_ready()) is not None:
                self._begin(step)
        except BaseException as error:  # noqa: BLE001  the request fails, and the thread continues
            self._end(error)
        finally:
            self._submitting.discard(thread)

    def _next_ready(self) -> EnsembleStep | None:
        with self._lock:
            if self._is_over:
                return None
            for index, step in enumerate(self._waiting):
                if self._tensors.keys() >= set(step.inputs.values()):
                    return self._waiting.pop(index)
        return None

    def cancel(self) -> None:
        """Cancel the request."""
        self._end(Cancelled("no client waits for the batch any more"))

    def _begin(self, step: EnsembleStep) -> None:
        """Submit the call of a step."""
        given = {own: self._tensors[name] for own, name in step.inputs.items()}
        # `_adapt`, which knows the model, appends the rows of the step's batch. It is called again if the model is
        # reloaded meanwhile, so the last entry counts.
        rows: list[int] = []
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
        if is_over:  # the request ended after `_next_ready`, and `_end` did not see this call
            call.cancel()
        call.add_done_callback(partial(self._step_ended, step, given, rows))

    def _step_ended(
        self,
        step: EnsembleStep,
        given: Mapping[str, StepTensor],
        rows: Sequence[int],
        call: RequestHandle,
    ) -> None:
        """Store the outputs of a step, and submit the steps that they make ready; or end the request."""
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
        except BaseException as error:  # noqa: BLE001  the thread belongs to the called model
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
        """Report the result once; after an error cancel the calls that still run."""
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
    """Fill in the inputs of a step's request, in the shapes of the model that gets them.

    The engine calls this once it has chosen the version of the model.

    Args:
        rows: Gets the number of rows of the batch.
    """
    has_rows = model.counts_rows and any(spec.batched for spec in model.inputs)
    specs = {spec.name: spec for spec in model.inputs}
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
    """Return the error of a step as the ensemble's client gets it.

    A model that is missing, or refuses tensors of another step, is not a fault of the client, so the status is not 4xx.
    """
    if isinstance(error, NotFound):
        return NotReady(f"the ensemble calls a model that does not serve: {error.message}")
    if isinstance(error, InvalidRequest) and not all(tensor.is_given for tensor in given.values()):
        return HandlerFailed(
            f"the ensemble's step {step.model} refused tensors of the steps before: {error.message}"
        )
    return error
