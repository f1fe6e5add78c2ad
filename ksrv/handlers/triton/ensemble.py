"""An ensemble of a Triton repository: each request goes from model to model, as its steps say.

The calls are those of composition: through the other models' queues, joined there with the requests
of other clients, with the deadline of the ensemble's request. A step is submitted as soon as its tensors are
there, by the thread that has the last of them; so independent steps run side by side, and many requests are
under way at a time. A request that has the ensemble to itself has no others to be joined with: its steps run on
that thread where their models have proven quick, as for a request of the HTTP server, which saves the changes
of thread. The sequence of a request is that of its calls, for steps whose models serve sequences.
"""

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import cached_property, partial
from typing import Any

from ksrv.errors import Cancelled
from ksrv.handlers.deferred import DeferredHandler, Ended, Result
from ksrv.handlers.models import Submit, array_of, input_tensor
from ksrv.handlers.outputs import BFloat16Bits
from ksrv.handlers.triton.dialect import EnsembleStep, TritonDialect
from ksrv.request import BatchInputs, InferRequest, RequestedOutput, RequestHandle, Tensor

SEQUENCE_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end")


class Ensemble(DeferredHandler):
    """Serves an ensemble; it has no model of its own."""

    calls_models = True

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._under_way = 0

    @cached_property
    def _steps(self) -> tuple[EnsembleStep, ...]:
        context: Any = self.context
        return TritonDialect.of(context.config).steps

    def begin(self, inputs: BatchInputs, ended: Ended) -> Callable[[], None]:
        """See `DeferredHandler.begin`; the error is that of the first step that failed.

        Args:
            ended: Takes the ensemble's outputs by name.
        """
        context: Any = self.context
        names = [spec.name for spec in context.spec.outputs]

        def has_ended(result: Result) -> None:
            with self._lock:
                self._under_way -= 1
            ended(result)

        running = RunningSteps(self._steps, names, context.submit, inputs, has_ended)
        with self._lock:
            inputs.beside_others = self._under_way > 0
            self._under_way += 1  # from here on every failure is told to `has_ended`
        running.submit_ready()
        return running.cancel


class RunningSteps:
    """The steps of one request.

    Args:
        ended: Called once with the outputs, or with why there are none.
    """

    def __init__(
        self,
        steps: Sequence[EnsembleStep],
        outputs: Sequence[str],
        submit: Submit,
        inputs: BatchInputs,
        ended: Ended,
    ) -> None:
        self._outputs = outputs
        self._submit = submit
        self._inputs = inputs
        self._ended = ended
        self._lock = threading.Lock()
        self._waiting = list(steps)
        self._left = len(steps)
        self._calls: list[RequestHandle] = []
        self._tensors = dict(inputs.tensors)
        self._is_over = False
        self._submitting: set[int] = set()  # threads
        given = inputs.requests[0].parameters
        self._parameters = {name: given[name] for name in SEQUENCE_PARAMETERS if name in given}
        self._context = copy_context()  # the later steps are submitted by threads of other requests

    def submit_ready(self) -> None:
        """Submit the steps whose tensors are there, and those whose tensors come meanwhile on this thread."""
        thread = threading.get_ident()
        if thread in self._submitting:
            return  # a step ran inline: the loop below goes on, so that no chain of steps is too deep
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
        request = InferRequest(
            step.model,
            step.version,
            inputs=[input_tensor(own, self._tensors[name]) for own, name in step.inputs.items()],
            outputs=[RequestedOutput(name) for name in step.outputs],
            parameters=dict(self._parameters),
        )
        call = self._context.copy().run(self._submit, request, self._inputs)
        with self._lock:
            self._calls.append(call)
            is_over = self._is_over
        if is_over:
            call.cancel()
        call.add_done_callback(partial(self._step_ended, step))

    def _step_ended(self, step: EnsembleStep, call: RequestHandle) -> None:
        result: Result
        try:
            outputs = {tensor.name: tensor for tensor in call.wait().outputs}
            with self._lock:
                for own, name in step.outputs.items():
                    self._tensors[name] = outputs[own]
                self._left -= 1
                is_last = not self._left
            if not is_last:
                self.submit_ready()
                return
            result = {name: _value(self._tensors[name]) for name in self._outputs}
        except BaseException as error:  # noqa: BLE001  the thread is the called model's
            result = error
        self._end(result)

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


def _value(tensor: Tensor) -> Any:
    """Return what a step gave as handlers return it."""
    array = array_of(tensor)
    return BFloat16Bits(array) if tensor.datatype == "BF16" else array
