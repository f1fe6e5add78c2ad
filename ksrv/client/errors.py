"""The client's exceptions: no answer, no answer in time, or an answer with an error."""

from http import HTTPStatus

__all__ = [
    "AccessDenied",
    "ClientError",
    "ConnectionFailed",
    "DeadlineExceeded",
    "InvalidRequest",
    "NotFound",
    "StatusError",
    "StreamFailed",
    "Unavailable",
    "status_error",
]

NO_SERVER_BEHIND = (HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT)
"""The statuses of a proxy whose server does not answer."""

NOTHING_LISTENS = "nothing listens there; start `ksrv serve`, or give the server's URL"
NAMES_AN_AUTHORITY = "the option --ca FILE, or ca= in Python, names an authority to trust"
"""Remedies in the error texts of failed connections, for REST and gRPC."""


class ClientError(Exception):
    """The base of all failures of calls."""


class ConnectionFailed(ClientError):
    """The server cannot be reached, or the connection broke before the answer was complete."""


class DeadlineExceeded(ClientError, TimeoutError):
    """The call's timeout passed before the answer was complete.

    Over gRPC also if the server ended the call at its deadline. Over REST that is a `StatusError` with 504.
    """


class StreamFailed(ClientError):
    """The server ended a streamed answer with an error. Parts of the answer may have arrived before.

    Such an error has a message of the server, but no status. An error before the first part is a `StatusError` over
    REST, and a `StreamFailed` over gRPC.
    """


class StatusError(ClientError):
    """The server answered with an error.

    Args:
        status: The HTTP status; for gRPC the status with the same meaning.
        message: The server's error text.
        retry_after: Seconds after which the server asks to try again, or None.

    Attributes:
        status: As above.
        message: As above.
        retry_after: As above.
    """

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        # Pickle and copy call the class with these arguments.
        super().__init__(status, message, retry_after)
        self.status = status
        self.message = message
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"


class InvalidRequest(StatusError):
    """400, 413 and 422: the request is wrong, and will fail again if it is repeated."""


class AccessDenied(StatusError):
    """401 and 403: the token is missing or wrong, or the caller may not use this route."""


class NotFound(StatusError):
    """404: the server has no such model or version."""


class Unavailable(StatusError):
    """429 and 503: the queue is full, or the model or the server is not ready."""


_CLASSES: dict[int, type[StatusError]] = {
    HTTPStatus.BAD_REQUEST: InvalidRequest,
    HTTPStatus.UNAUTHORIZED: AccessDenied,
    HTTPStatus.FORBIDDEN: AccessDenied,
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: InvalidRequest,
    HTTPStatus.UNPROCESSABLE_ENTITY: InvalidRequest,
    HTTPStatus.TOO_MANY_REQUESTS: Unavailable,
    HTTPStatus.SERVICE_UNAVAILABLE: Unavailable,
}


def status_error(status: int, message: str, retry_after: float | None = None) -> StatusError:
    """Return the exception for a status.

    Args:
        retry_after: Seconds after which the server asks to try again, or None.
    """
    return _CLASSES.get(status, StatusError)(status, message, retry_after)
