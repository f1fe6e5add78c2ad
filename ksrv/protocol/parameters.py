"""Request, input and output parameters: which names the protocol reserves, and what they must be.

REST and gRPC carry the same parameters in different clothes; both hand them here as a mapping of
plain values. A reserved name is understood or refused; every other scalar reaches the handler.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from ksrv.errors import InvalidRequest, quote
from ksrv.request import Parameter, RequestedOutput

MICROSECOND_NS = 1_000
LONGEST_TIMEOUT_US = 1_000_000_000 * 1_000_000  # about thirty years; more would not fit a clock
UINT64_MAX = 2**64 - 1

SHARED_MEMORY = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")
FINAL_RESPONSE = "triton_enable_empty_final_response"


@dataclass(slots=True)
class RequestParameters:
    """A request's own parameters, sorted.

    Attributes:
        custom: What the handler sees: custom names, and the `sequence_` family.
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
    """Sort the parameters of a request.

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
                timeout = _unsigned(name, value)
                if timeout:
                    wait = min(timeout, LONGEST_TIMEOUT_US) * MICROSECOND_NS
                    found.deadline_ns = time.monotonic_ns() + wait
            case "priority":
                found.priority = _unsigned(name, value)
            case "binary_data_output":
                found.binary_output = _boolean(name, value)
            case "sequence_start" | "sequence_end":
                found.custom[name] = _boolean(name, value)
            case "sequence_id":
                if not isinstance(value, str):
                    value = _unsigned(name, value)
                found.custom[name] = value
            case _ if name == FINAL_RESPONSE:
                found.mark_final = _boolean(name, value)
            case _ if name.startswith("triton_"):
                raise InvalidRequest(
                    f"parameter {quote(name)} is unknown, and the prefix 'triton_' is reserved"
                )
            case _:
                found.custom[name] = _scalar(name, value)
    return found


def take_input_parameters(owner: str, given: Mapping[str, object]) -> dict[str, Parameter]:
    """Return an input's own parameters.

    Args:
        owner: The input's name, for the error's text.
        given: Values by name, without those of the wire form such as `binary_data_size`.

    Raises:
        InvalidRequest: A value is not a scalar, or the input lies in shared memory.
    """
    if not given:
        return {}
    where = f" of input {quote(owner)}"
    for name in SHARED_MEMORY:
        if name in given:
            raise _no_shared_memory(name, where)
    return {name: _scalar(name, value, where) for name, value in given.items()}


def take_requested_output(owner: str, given: Mapping[str, object]) -> RequestedOutput:
    """Return a requested output.

    Args:
        owner: The output's name.
        given: Its parameters by name.

    Raises:
        InvalidRequest: A value is not a scalar, a reserved name has the wrong type, or the output
            would lie in shared memory.
    """
    found = RequestedOutput(owner)
    if not given:
        return found
    where = f" of requested output {quote(owner)}"
    custom: dict[str, Parameter] = {}
    for name, value in given.items():
        if name == "binary_data":
            found.binary = _boolean(name, value, where)
        elif name == "classification":
            found.classification = _unsigned(name, value, where)
        elif name in SHARED_MEMORY:
            raise _no_shared_memory(name, where)
        else:
            custom[name] = _scalar(name, value, where)
    found.parameters = custom
    return found


def _no_shared_memory(name: str, where: str) -> InvalidRequest:
    return InvalidRequest(
        f"parameter {quote(name)}{where} needs shared memory, which this server does not offer"
    )


def _scalar(name: str, value: object, where: str = "") -> Parameter:
    if isinstance(value, bool | int | float | str):
        return value
    kind = "nothing" if value is None else f"a {type(value).__name__}"
    raise InvalidRequest(
        f"parameter {quote(name)}{where} is {kind}; expected a string, a number or a boolean"
    )


def _boolean(name: str, value: object, where: str = "") -> bool:
    if isinstance(value, bool):
        return value
    raise InvalidRequest(
        f"parameter {quote(name)}{where} must be true or false, and is {quote(value)}"
    )


def _unsigned(name: str, value: object, where: str = "") -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= UINT64_MAX:
        return value
    raise InvalidRequest(
        f"parameter {quote(name)}{where} must be an unsigned integer, and is {quote(value)}"
    )
