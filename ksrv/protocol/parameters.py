"""Checks the parameters of requests, inputs and outputs, and takes out the names that the protocol reserves.

A parameter with a reserved name is applied or refused; any other scalar reaches the handler. REST and gRPC use the same
functions. The fast path (`native/infer/fast_request.cpp`) accepts only some of these names, and leaves requests with
any other parameter to this module.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ksrv._native.queue.request_handle import deadline_of
from ksrv.errors import InvalidRequest, quote
from ksrv.protocol.shared_memory import CallerMemory, enabled
from ksrv.request import Parameter, RequestedOutput, SharedMemoryRef

UINT64_MAX = 2**64 - 1
PRIORITY_MAX = 2**32 - 1
"""The largest priority that the queue keeps: 32 bits."""

SHARED_MEMORY = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")
BINARY_DATA, BASE64 = "binary_data", "base64"
"""The parameter of an output, or of a request, that asks for BYTES in base64, and its value."""
REQUEST = "the request"
FINAL_RESPONSE = "triton_enable_empty_final_response"


@dataclass(slots=True)
class RequestParameters:
    """The parameters of a request: the reserved names as fields, the others in `custom`.

    Attributes:
        custom: The parameters for the handler: custom names, and the `sequence_` family.
        deadline_ns: From `timeout`, on the clock of `time.monotonic_ns`, or None.
        binary_output: From `binary_data_output`.
        mark_final: From `triton_enable_empty_final_response`.
    """

    custom: dict[str, Parameter]
    deadline_ns: int | None = None
    priority: int = 0
    binary_output: bool = False
    mark_final: bool = False


def take_request_parameters(given: Mapping[str, object]) -> RequestParameters:
    """Check the parameters of a request, and separate the reserved names from the others.

    Args:
        given: Values by name, as the client sent them.

    Raises:
        InvalidRequest: A value is not a scalar, a reserved name has the wrong type, or a `triton_`
            name is unknown.
    """
    found = RequestParameters({})
    for name, value in given.items():
        match name:
            case "timeout":
                timeout = _unsigned(REQUEST, name, value)
                if timeout:
                    found.deadline_ns = deadline_of(timeout)
            case "priority":
                found.priority = check_priority(_unsigned(REQUEST, name, value))
            case "binary_data_output":
                found.binary_output = _boolean(REQUEST, name, value)
            case "sequence_start" | "sequence_end":
                found.custom[name] = _boolean(REQUEST, name, value)
            case "sequence_id":
                if not isinstance(value, str):
                    value = _unsigned(REQUEST, name, value)
                found.custom[name] = value
            case _ if name == FINAL_RESPONSE:
                found.mark_final = _boolean(REQUEST, name, value)
            case _ if name.startswith("triton_"):
                raise InvalidRequest(
                    f"{REQUEST}: the parameter {quote(name)} is unknown; names that begin with "
                    f"'triton_' are reserved"
                )
            case _:
                found.custom[name] = _scalar(REQUEST, name, value)
    return found


def check_priority(value: int) -> int:
    """Return a request's priority if the queue can keep it.

    Args:
        value: The unsigned integer that the client sent.

    Raises:
        InvalidRequest: The value is above the largest priority.
    """
    if value > PRIORITY_MAX:
        raise InvalidRequest(
            f"{REQUEST}: 'priority' must be an integer from 0 to {PRIORITY_MAX}, not {quote(value)}"
        )
    return value


def take_input_parameters(
    owner: str, index: int, given: Mapping[str, object]
) -> tuple[dict[str, Parameter], SharedMemoryRef | None]:
    """Return an input's parameters, and its reference into shared memory, if it has one.

    Args:
        given: Values by name, without parameters of the wire form such as `binary_data_size`.

    Raises:
        InvalidRequest: A value is not a scalar, or a reserved name has the wrong type.
    """
    if not given:
        return {}, None
    subject = f"input {quote(owner)} (index {index})"
    custom = {
        name: _scalar(subject, name, value)
        for name, value in given.items()
        if name not in SHARED_MEMORY
    }
    return custom, _shared_memory_ref(subject, given)


def take_requested_outputs(
    given: Iterable[tuple[str, Mapping[str, object]]], memory: CallerMemory | None
) -> list[RequestedOutput]:
    """Return the requested outputs.

    Args:
        given: Their names, with their parameters by name.
        memory: The shared memory that the request may name; None if that is off.

    Raises:
        InvalidRequest: A value is not a scalar, a reserved name has the wrong type, or shared memory is off.
    """
    return [_requested(name, at, values, memory) for at, (name, values) in enumerate(given)]


def _requested(
    owner: str, index: int, given: Mapping[str, object], memory: CallerMemory | None
) -> RequestedOutput:
    found = RequestedOutput(owner)
    if not given:
        return found
    subject = f"output {quote(owner)} (index {index})"
    found.shared_memory = _shared_memory_ref(subject, given)
    if found.shared_memory is not None:
        enabled(memory, subject)
    custom: dict[str, Parameter] = {}
    for name, value in given.items():
        if name == BINARY_DATA and value != BASE64:
            found.binary = _boolean(subject, name, value, f'true, false or "{BASE64}"')
        elif name == "classification":
            found.classification = _unsigned(subject, name, value)
        elif name not in SHARED_MEMORY:
            custom[name] = _scalar(subject, name, value)
    found.parameters = custom
    return found


def _shared_memory_ref(subject: str, given: Mapping[str, object]) -> SharedMemoryRef | None:
    region_key, offset_key, size_key = SHARED_MEMORY
    if not any(name in given for name in SHARED_MEMORY):
        return None
    region = given.get(region_key, "")
    if not isinstance(region, str):
        raise InvalidRequest(
            f"{subject}: {quote(region_key)} must be a string, not {quote(region)}"
        )
    return SharedMemoryRef(
        region,
        _unsigned(subject, offset_key, given.get(offset_key, 0)),
        _unsigned(subject, size_key, given.get(size_key, 0)),
    )


def _scalar(subject: str, name: str, value: object) -> Parameter:
    if isinstance(value, bool | int | float | str):
        return value
    raise InvalidRequest(
        f"{subject}: parameter {quote(name)} must be a string, a number or a boolean, not "
        f"{'empty' if value is None else quote(value)}"
    )


def _boolean(subject: str, name: str, value: object, wanted: str = "true or false") -> bool:
    if isinstance(value, bool):
        return value
    raise InvalidRequest(f"{subject}: {quote(name)} must be {wanted}, not {quote(value)}")


def _unsigned(subject: str, name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= UINT64_MAX:
        return value
    raise InvalidRequest(
        f"{subject}: {quote(name)} must be an unsigned integer, not {quote(value)}"
    )
