"""InferenceResponse, and the sender of the responses of one request."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ksrv.dialects.triton.python_backend.api.errors import TritonError, TritonModelException
from ksrv.dialects.triton.python_backend.api.tensor import Tensor
from ksrv.handlers.batch import parameter_of

COMPLETE_FINAL = 1
"""TRITONSERVER_RESPONSE_COMPLETE_FINAL"""


class InferenceResponse:
    """One answer to a request.

    Args:
        output_tensors: The outputs; they are not sent if `error` is set.
        error: The error of the request, or None.
        parameters: Response parameters: names with bools, ints or strs.
    """

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        for tensor in output_tensors:
            if not isinstance(tensor, Tensor):
                raise TypeError(f"an output is a Tensor, not {type(tensor).__name__}")
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"an error is a TritonError, not {type(error).__name__}")
        self._outputs = list(output_tensors)
        self._error = error
        self._parameters = checked_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        """Return the outputs."""
        return self._outputs

    def has_error(self) -> bool:
        """Tell whether the request failed."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error, or None."""
        return self._error

    def parameters(self) -> str:
        """Return the parameters as a JSON object, or "" without parameters."""
        return json.dumps(self._parameters) if self._parameters else ""

    def given_parameters(self) -> dict[str, Any]:
        """Return the parameters as values."""
        return self._parameters


def checked_parameters(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Check that a request or response can carry these parameters, and return them.

    Args:
        parameters: Names and values, or None.

    Raises:
        TypeError: The parameters are not a dict.
        TritonModelException: A name is not a str, or a value is not a bool, int or str that the protocol can carry.
    """
    if parameters is not None and not isinstance(parameters, dict):
        raise TypeError(f"parameters are a dict, got {type(parameters)}")
    found: dict[str, Any] = {}
    for name, value in (parameters or {}).items():
        if not isinstance(name, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(name)}"
            )
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
        try:
            key, plain = parameter_of(name, value)
        except ValueError as error:
            raise TritonModelException(f"Failed to set parameters: {error}") from None
        found[key] = plain
    return found


class Receiver(Protocol):
    """Takes the responses of one request."""

    def send(self, response: InferenceResponse | None, *, final: bool) -> None:
        """Take a response, or None with `final` for the end of the responses.

        Raises:
            TritonModelException: The request cannot take this response now.
        """

    def is_cancelled(self) -> bool:
        """Tell whether nobody waits for the request any more."""


class InferenceResponseSender:
    """Sends the responses of one request, from any thread, also after `execute` has returned.

    Args:
        receiver: Takes them.
    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, or mark the end of the responses.

        Args:
            response: The response; None only with the flag.
            flags: 0, or TRITONSERVER_RESPONSE_COMPLETE_FINAL with the last response.

        Raises:
            TritonModelException: The flag is unknown, nothing was given to send, or the last response has been sent.
        """
        if flags not in (0, COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"a response is an InferenceResponse, not {type(response).__name__}")
        self._receiver.send(response, final=flags == COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Tell whether nobody waits for the request any more."""
        return self._receiver.is_cancelled()
