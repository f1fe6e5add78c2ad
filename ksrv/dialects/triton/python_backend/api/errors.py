"""TritonError: the error of one request. TritonModelException: an exception of the API, or of the whole model."""

from enum import IntEnum

from ksrv.errors import InferenceError, KsrvError


class TritonModelException(Exception):
    """An error of the model, or a call that the backend does not allow."""


class ErrorCode(IntEnum):
    """The codes of errors, with the numbers of Triton's C API."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


_STATUS = {
    ErrorCode.UNKNOWN: (500, "UNKNOWN"),
    ErrorCode.INTERNAL: (500, "INTERNAL"),
    ErrorCode.NOT_FOUND: (404, "NOT_FOUND"),
    ErrorCode.INVALID_ARG: (400, "INVALID_ARGUMENT"),
    ErrorCode.UNAVAILABLE: (503, "UNAVAILABLE"),
    ErrorCode.UNSUPPORTED: (501, "UNIMPLEMENTED"),
    ErrorCode.ALREADY_EXISTS: (409, "ALREADY_EXISTS"),
    ErrorCode.CANCELLED: (499, "CANCELLED"),
}
"""The HTTP status and the gRPC code of each code, as Triton's front ends send them."""
_CODES = {grpc: code for code, (_, grpc) in _STATUS.items()}
_CODES |= {
    "DEADLINE_EXCEEDED": ErrorCode.UNAVAILABLE,
    "RESOURCE_EXHAUSTED": ErrorCode.UNAVAILABLE,
    "FAILED_PRECONDITION": ErrorCode.INVALID_ARG,
}


class TritonError:
    """The error of one request.

    Args:
        message: The text for the client.
        code: One of the codes, which are attributes of this class.
    """

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        if not isinstance(message, str):
            raise TypeError(f"the message of a TritonError is a str, not {type(message).__name__}")
        self._message = message
        self._code = ErrorCode(code)

    def code(self) -> ErrorCode:
        """Return the code."""
        return self._code

    def message(self) -> str:
        """Return the text."""
        return self._message


for _code in ErrorCode:
    setattr(TritonError, _code.name, _code)


def to_client(error: TritonError) -> KsrvError:
    """Return the error that a client gets for a model's error."""
    status, grpc_code = _STATUS[error.code()]
    text = error.message() or "the model failed the request and gave no reason"
    converted = InferenceError(text, status)
    converted.grpc_code = grpc_code
    return converted


def of_call(error: KsrvError) -> TritonError:
    """Return the error that a model gets if a model that it called fails."""
    return TritonError(error.message, _CODES.get(error.grpc_code, ErrorCode.INTERNAL))
