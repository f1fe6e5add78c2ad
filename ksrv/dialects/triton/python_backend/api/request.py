"""InferenceRequest: a request that `execute` gets, or that a model makes to call another model."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ksrv._native.batch.stages import bound_batch
from ksrv._native.queue.request_handle import deadline_of
from ksrv.dialects.triton.python_backend.api.calls import ResponseIterator, call
from ksrv.dialects.triton.python_backend.api.errors import TritonModelException
from ksrv.dialects.triton.python_backend.api.response import (
    InferenceResponse,
    InferenceResponseSender,
    Receiver,
    checked_parameters,
)
from ksrv.dialects.triton.python_backend.api.tensor import Tensor
from ksrv.handlers.models import input_tensor
from ksrv.request import InferRequest, RequestedOutput

SEQUENCE_START = 1
SEQUENCE_END = 2
RELEASE_ALL = 1
RELEASE_RESCHEDULE = 2
"""The numbers of TRITONSERVER_REQUEST_FLAG_... and TRITONSERVER_REQUEST_RELEASE_...."""


class MemoryType(IntEnum):
    """The memory that the outputs of a call should be in."""

    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_GPU = 2


@dataclass(frozen=True)
class PreferredMemory:
    """The memory that the outputs of a call should be in. ksrv ignores it: outputs are in the CPU's memory."""

    preferred_memory_type: MemoryType
    preferred_device_id: int = 0


class InferenceTrace:
    """The trace that a request belongs to.

    Args:
        context: Its context as a JSON object, or "".
    """

    def __init__(self, context: str = "") -> None:
        self._context = context

    def get_context(self) -> str | None:
        """Return the context as OpenTelemetry propagates it, as a JSON object; None without one."""
        return self._context or None


def text_of(argument: str, value: Any) -> str:
    """Return a str; decodes bytes, because models pass the bytes of a tensor as a name.

    Args:
        argument: The name of the argument, for errors.

    Raises:
        TypeError: The value is neither str nor bytes.
        TritonModelException: The bytes are not UTF-8.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise TypeError(f"{argument}: expected a str, found {type(value).__name__}")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise TritonModelException(f"{argument}: the bytes are not UTF-8") from None


class InferenceRequest:
    """A request.

    Args:
        correlation_id: The id of its sequence; 0 or "" for no sequence.
        requested_output_names: The wanted outputs; all if it is empty.
        model_name: The model to call.
        model_version: The version of the model; -1 for the highest.
        flags: TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END.
        timeout: Microseconds that the request may take; 0 for no limit.
        preferred_memory: The memory that its outputs should be in.
        trace: The trace that it belongs to.
        parameters: Names with bools, ints, floats or strs.

    Raises:
        TypeError: An argument is missing or of another type.
    """

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] | None = None,
        requested_output_names: Sequence[str] | None = None,
        model_name: str | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        if inputs is None or requested_output_names is None or model_name is None:
            raise TypeError(
                "InferenceRequest() needs the arguments 'inputs', 'requested_output_names' and 'model_name'"
            )
        if not isinstance(correlation_id, (int, str)):
            raise TypeError("Correlation ID must be integer or string")
        if not all(isinstance(tensor, Tensor) for tensor in inputs):
            raise TritonModelException(
                f"Input tensor for request with id {request_id!r} and model name {model_name!r} should not be empty."
            )
        self._id = text_of("request_id", request_id)
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._outputs = [text_of("requested_output_names", name) for name in requested_output_names]
        self._model = text_of("model_name", model_name)
        self._version = model_version
        self._flags = flags
        self._timeout = timeout
        self._priority = 0
        self._memory = preferred_memory
        self._trace = trace or InferenceTrace()
        self._parameters = checked_parameters(parameters)
        self._made_for = bound_batch()
        self._receiver: Receiver | None = None
        self._has_sender = False
        self._release = RELEASE_ALL

    def deliver_to(self, receiver: Receiver, priority: int = 0) -> None:
        """Make this a request for `execute`, whose responses `receiver` takes."""
        self._receiver = receiver
        self._priority = priority

    # ---- contents ---------------------------------------------------------------------------

    def inputs(self) -> list[Tensor]:
        """Return the inputs."""
        return self._inputs

    def request_id(self) -> str:
        """Return the id."""
        return self._id

    def correlation_id(self) -> int | str:
        """Return the id of its sequence; 0 for no sequence."""
        return self._correlation_id

    def model_name(self) -> str:
        """Return the name of the model that the request is for."""
        return self._model

    def model_version(self) -> int:
        """Return the version that the request is for; -1 for the highest."""
        return self._version

    def flags(self) -> int:
        """Return the flags: whether it is the first or the last request of its sequence."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Set whether it is the first or the last request of its sequence.

        Args:
            flags: TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END.
        """
        self._flags = flags

    def timeout(self) -> int:
        """Return the microseconds that it may take; 0 for no limit."""
        return self._timeout

    def priority(self) -> int:
        """Return the priority; 0 for the default."""
        return self._priority

    def parameters(self) -> str:
        """Return the parameters as a JSON object, which may be empty."""
        return json.dumps(self._parameters)

    def given_parameters(self) -> dict[str, Any]:
        """Return the parameters as values."""
        return self._parameters

    def requested_output_names(self) -> list[str]:
        """Return the names of the wanted outputs."""
        return self._outputs

    def preferred_memory(self) -> PreferredMemory | None:
        """Return the memory that the outputs of a call should be in, or None."""
        return self._memory

    def trace(self) -> InferenceTrace:
        """Return the trace that it belongs to."""
        return self._trace

    # ---- answering --------------------------------------------------------------------------

    def is_cancelled(self) -> bool:
        """Tell whether nobody waits for the request any more."""
        return self._receiver is not None and self._receiver.is_cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender of the request's responses.

        Raises:
            TritonModelException: The request was made to call another model.
        """
        if self._receiver is None:
            raise TritonModelException(
                "a request that the model made itself has no response sender; its responses are what exec() returns"
            )
        self._has_sender = True
        return InferenceResponseSender(self._receiver)

    def has_sender(self) -> bool:
        """Tell whether the model has asked for the sender of its responses."""
        return self._has_sender

    def set_release_flags(self, flags: int) -> None:
        """Set what happens to the request when `execute` returns.

        Args:
            flags: TRITONSERVER_REQUEST_RELEASE_ALL, or TRITONSERVER_REQUEST_RELEASE_RESCHEDULE to get it once more.

        Raises:
            TritonModelException: The flag is unknown.
        """
        if flags not in (RELEASE_ALL, RELEASE_RESCHEDULE):
            raise TritonModelException(f"{flags} is not a flag of a request's release")
        self._release = flags

    def take_release_flags(self) -> int:
        """Return the release flags, and reset them."""
        flags, self._release = self._release, RELEASE_ALL
        return flags

    # ---- calling ----------------------------------------------------------------------------

    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:
        """Call the model and wait for its answer; a failure is a response with an error.

        The call has the deadline and the ids of the batch for which the request was made. If that batch has been
        answered, it has the deadline and ids of the batch that this thread works for, or none outside of a batch.

        Args:
            decoupled: Whether to return an iterator over any number of responses.

        Raises:
            TritonModelException: A model is called outside of `execute`.
        """
        batches = (self._made_for, bound_batch())
        callers = (b.inputs for b in batches if b is not None and b.inputs is not None)
        return call(self._on_wire(), decoupled, next(callers, None))

    def async_exec(self, decoupled: bool = False) -> Any:
        """Call the model without blocking the event loop.

        Args:
            decoupled: See `exec`.

        Returns:
            An awaitable of what `exec` returns.

        Raises:
            RuntimeError: No event loop runs.
        """
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(None, self.exec, decoupled)

    def _on_wire(self) -> InferRequest:
        """Return the request of a call in the engine's form."""
        parameters = dict(self._parameters)
        if self._correlation_id:
            parameters["sequence_id"] = self._correlation_id
            parameters["sequence_start"] = bool(self._flags & SEQUENCE_START)
            parameters["sequence_end"] = bool(self._flags & SEQUENCE_END)
        sent = InferRequest(
            self._model,
            "" if self._version < 0 else str(self._version),
            self._id,
            [input_tensor(tensor.name(), tensor.on_wire()) for tensor in self._inputs],
            [RequestedOutput(name) for name in self._outputs],
            parameters,
        )
        if self._timeout > 0:
            sent.deadline_ns = deadline_of(self._timeout)
        return sent
