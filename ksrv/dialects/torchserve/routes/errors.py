"""The error answers of TorchServe's routes: TorchServe's statuses and error bodies.

The texts in this module are TorchServe's, word for word, because clients may compare them. All other errors have
ksrv's text in TorchServe's form.
"""

import json
from http import HTTPStatus

from ksrv.engine.executor import ExecutorDied
from ksrv.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    Forbidden,
    HandlerFailed,
    InferenceError,
    KsrvError,
    NotFound,
    Unauthenticated,
)

JSON = "application/json"
BAD_REQUEST = "BadRequestException"
INTERNAL = "InternalServerException"
INVALID_KEY = "InvalidKeyException"
UNAVAILABLE = "ServiceUnavailableException"

LONGEST_QUOTED = 128
"""Characters of a client's text that an answer repeats. gRPC sends the answer in trailers, whose size clients bound."""

WORKER_DIED = "Worker died."
PREDICTION_FAILED = "Prediction failed"
NO_WORKER = (
    'Model "{name}" has no worker to serve inference request. Please use scale workers API to add '
    "workers. If this is a sequence inference, please check if it is closed, or expired; or exceeds "
    "maxSequenceJobQueueSize"
)
NO_RESOURCE = "Requested resource is not found, please refer to API document."
NO_METHOD = "Requested method is not allowed, please refer to API document."


class TorchServeError(InferenceError):
    """An error answer in TorchServe's form.

    Args:
        code: The HTTP status.
        type: The exception's name as TorchServe's clients know it.
        message: The text; None for an answer without a body.
        retry_after: Seconds for the `Retry-After` header, or None.
        reason: Why the request was refused; see `ksrv.errors.KsrvError`.
        challenge: The value of `WWW-Authenticate`, or None.
    """

    def __init__(
        self,
        code: int,
        type: str,
        message: str | None,
        retry_after: int | None = None,
        reason: str = "",
        challenge: str | None = None,
    ) -> None:
        super().__init__(message or "", code)
        self.type, self._has_body = type, message is not None
        self.retry_after, self.reason, self.challenge = retry_after, reason, challenge

    def body(self) -> bytes:
        """Return the answer's body."""
        if not self._has_body:
            return b""
        return render({"code": self.http_status, "type": self.type, "message": self.message})


def render(document: object) -> bytes:
    """Return a JSON document, indented as TorchServe writes its answers."""
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def bad_request(text: str) -> TorchServeError:
    """Return the answer to a wrong request."""
    return TorchServeError(400, BAD_REQUEST, text)


def not_found(text: str) -> TorchServeError:
    """Return the answer to a request for something unknown."""
    return TorchServeError(404, "ModelNotFoundException", text)


def model_not_found(name: str) -> TorchServeError:
    """Return the answer to a request for an unknown model."""
    return not_found(f"Model not found: {name[:LONGEST_QUOTED]}")


def version_not_found(name: str, version: str) -> TorchServeError:
    """Return the answer to a request for an unknown version."""
    text = (
        f"Model version: {version[:LONGEST_QUOTED]} does not exist for model: "
        f"{name[:LONGEST_QUOTED]}"
    )
    return TorchServeError(404, "ModelVersionNotFoundException", text)


def queue_full(name: str, reason: str) -> TorchServeError:
    """Return the answer to a request that the model's full queue refused.

    Args:
        reason: The limit that refused it; see `ksrv.errors.Overloaded`.
    """
    return TorchServeError(503, UNAVAILABLE, NO_WORKER.format(name=name), 1, reason)


def translated(error: KsrvError) -> TorchServeError:
    """Return an error of ksrv in TorchServe's form; a TorchServeError is returned unchanged."""
    if isinstance(error, TorchServeError):
        return error
    converted = _converted(error)
    converted.reason = error.reason
    return converted


def _converted(error: KsrvError) -> TorchServeError:
    status = int(error.http_status)
    if isinstance(error, BodyTooLarge):
        return TorchServeError(status, INTERNAL, None)
    if isinstance(error, InferenceError):
        return TorchServeError(status, INTERNAL, error.message)
    if isinstance(error, ExecutorDied | DeadlineExceeded):
        return TorchServeError(500, INTERNAL, WORKER_DIED)
    if isinstance(error, HandlerFailed):
        return TorchServeError(503, INTERNAL, PREDICTION_FAILED)
    if isinstance(error, NotFound):
        return TorchServeError(status, "ResourceNotFoundException", NO_RESOURCE)
    if isinstance(error, Unauthenticated | Forbidden):
        return TorchServeError(
            status, INVALID_KEY, error.message, challenge=getattr(error, "challenge", None)
        )
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return TorchServeError(status, UNAVAILABLE, error.message, error.retry_after)
    kind = BAD_REQUEST if status < HTTPStatus.INTERNAL_SERVER_ERROR else INTERNAL
    return TorchServeError(status, kind, error.message)


def for_status(status: int) -> TorchServeError:
    """Return the answer if no route takes the request: an unknown path or method."""
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        return TorchServeError(status, "MethodNotAllowedException", NO_METHOD)
    return TorchServeError(404, "ResourceNotFoundException", NO_RESOURCE)
