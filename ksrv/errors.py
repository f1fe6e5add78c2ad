"""Every way a request can fail, with the HTTP status and the gRPC code that the client sees.

Protocol, engine and handlers raise these classes, and the front ends render them. No other module
chooses a status. Texts are sentences: the fault, its place, the expected value. A value of a client
is quoted with at most 64 characters (`quote`), and a text is at most 1 KiB long.
"""

import re
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path

QUOTED_CHARACTERS = 64
TEXT_BYTES = 1024
LEADS_OUT = "leads out of the model's folder; put what its link leads to in its place"
"""The end of an error about a file or folder of a model that is outside of the model's folder."""

HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""The allowed names and values of a header field of HTTP (RFC 9110 5.1 and 5.5)."""

RESERVED_HEADERS = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "date",
        "host",
        "inference-header-content-length",
        "keep-alive",
        "proxy-connection",
        "server",
        "server-timing",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-request-id",
    }
)
"""Headers that no handler can set, over any protocol: they frame the message (RFC 9110 7.6.1, RFC 9113 8.2.2) or only
the server may set them."""


def quote(text: object) -> str:
    """Return a client's string in quotes, escaped to printable ASCII and cut to 64 characters.

    Args:
        text: A value of the client; anything but a `str` is shown by its `repr`.

    Returns:
        The quoted string; an ellipsis marks a cut.
    """
    raw = text if isinstance(text, str) else repr(text)
    shown = ascii(raw[: QUOTED_CHARACTERS + 1])[1:-1]
    if len(raw) > QUOTED_CHARACTERS or len(shown) > QUOTED_CHARACTERS:
        shown = shown[:QUOTED_CHARACTERS].rstrip("\\") + "..."
    return f"'{shown}'"


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """Return " (did you mean NAME?)" for a value close to a known name, else ""."""
    from difflib import get_close_matches  # imported late, because only errors need it

    close = get_close_matches(str(value), list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def cut(text: str) -> str:
    """Return `text`, shortened so that its UTF-8 form fits into 1 KiB; half a surrogate pair becomes `?`."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= TEXT_BYTES:
        return text if text.isascii() else encoded.decode("utf-8")
    return encoded[: TEXT_BYTES - 3].decode("utf-8", "ignore") + "..."


def check_text(what: str, text: str) -> None:
    """Refuse a text that has no UTF-8 form.

    Args:
        what: How the error names the text.
        text: The text.

    Raises:
        ValueError: It has half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} has {text[error.start]!a} at {error.start}, half of a surrogate pair, which UTF-8 "
            f"cannot express; decode bytes with errors='replace'"
        ) from None


_QUOTED_PATH = re.compile(r"""(?<=['"`])/[^'"`\n]*(?=['"`])""")
_PATH = re.compile(r"""(?:file://|(?<![\w:/.~-]))/[^\s'"`<>|:;,()\[\]{}]+""")


def without_paths(text: str, *folders: Path) -> str:
    """Return a text without absolute paths, because clients must not learn where a server keeps its files.

    Args:
        text: A sentence for clients, which may contain texts of libraries.
        folders: Paths below these are shown as relative paths, other paths by their last part.
    """
    for folder in sorted(folders, key=lambda path: len(str(path)), reverse=True):
        if folder.is_absolute() and folder.name:
            text = text.replace(f"{folder}/", "").replace(str(folder), folder.name)
    for pattern in (_QUOTED_PATH, _PATH):
        text = pattern.sub(lambda found: found[0].rstrip("/").rpartition("/")[2], text)
    return text


def check_field(name: str, value: str) -> None:
    """Refuse a header that no answer can carry.

    Raises:
        ValueError: The name or the value has a character that is not allowed; the text names the first.
    """
    if not HEADER_NAME.fullmatch(name):
        raise ValueError(
            f"the name of a header is {_shown(name)}; a name has letters, digits and "
            f"!#$%&'*+.^_`|~- only, and at least one"
        )
    begin = HEADER_VALUE.match(value)
    end = 0 if begin is None else begin.end()
    if end < len(value):
        raise ValueError(
            f"the header {_shown(name)} has the character {value[end]!a} at {end}; a value has no line "
            f"break or other control character, and none above U+00FF"
        )


def _shown(text: str) -> str:
    """Return a text of a handler in quotes, escaped to ASCII, and cut."""
    return ascii(text if len(text) <= QUOTED_CHARACTERS else text[:QUOTED_CHARACTERS] + "...")


class KsrvError(Exception):
    """A failure that has an answer for the client.

    Attributes:
        message: The text for the client, at most 1 KiB.
        http_status: The REST status.
        grpc_code: The name of the `grpc.StatusCode`.
        retry_after: Seconds for the `Retry-After` header, or None.
        was_logged: Whether the log has the failure already, with its traceback.
        reason: The label in the counter of refusals (`ksrv_refused_requests_total`), for requests that were refused
            although they may be valid; "" for every other failure.
    """

    http_status: int = HTTPStatus.INTERNAL_SERVER_ERROR
    grpc_code: str = "INTERNAL"
    retry_after: int | None = None
    was_logged: bool = False
    reason: str = ""

    def __init_subclass__(cls, *, status: int = 0, grpc: str = "", reason: str = "") -> None:
        """Set the answer for a class of failures; an argument that is left out is inherited."""
        cls.http_status = HTTPStatus(status) if status else cls.http_status
        cls.grpc_code = grpc or cls.grpc_code
        cls.reason = reason or cls.reason

    def __init__(self, message: str) -> None:
        self.message = cut(message)
        super().__init__(self.message)


class InvalidRequest(KsrvError, status=400, grpc="INVALID_ARGUMENT"):
    """The request is wrong, and the client can correct it: framing, names, datatypes, shapes, counts or bytes."""


class StreamNeeded(InvalidRequest):
    """The answers of a stream have no form as one answer, and the client asked for one."""


class Unauthenticated(KsrvError, status=401, grpc="UNAUTHENTICATED", reason="unauthenticated"):
    """The caller showed no token.

    Attributes:
        challenge: The value of `WWW-Authenticate` (RFC 6750 3).
    """

    challenge = "Bearer"


class InvalidToken(Unauthenticated):
    """The caller showed a token that is not accepted."""

    challenge = 'Bearer error="invalid_token"'  # RFC 6750 3.1: only where a token was sent


class Forbidden(KsrvError, status=403, grpc="PERMISSION_DENIED", reason="forbidden"):
    """The caller may not use this route."""


class NotFound(KsrvError, status=404, grpc="NOT_FOUND"):
    """No such model, version or route."""


class SequenceEnded(KsrvError, status=409, grpc="ABORTED", reason="sequence_ended"):
    """The sequence of a request has ended before its time, and its state is gone."""


class BodyTooLarge(KsrvError, status=413, grpc="RESOURCE_EXHAUSTED", reason="too_large"):
    """The body, before or after decompression, is above a limit."""


class HeadTooLarge(KsrvError, status=431, grpc="RESOURCE_EXHAUSTED", reason="head_too_large"):
    """The headers of a request are above the limit."""


class RequestTooSlow(KsrvError, status=408, grpc="DEADLINE_EXCEEDED", reason="too_slow"):
    """The head or the body of a request did not arrive in time."""


class UnsupportedEncoding(KsrvError, status=415, grpc="UNIMPLEMENTED"):
    """A `Content-Encoding` other than identity, gzip or deflate."""


class NotImplementedByKsrv(KsrvError, status=501, grpc="UNIMPLEMENTED"):
    """An operation of the protocol that ksrv leaves out on purpose."""


class Overloaded(KsrvError, status=503, grpc="RESOURCE_EXHAUSTED"):
    """A queue, the bytes in flight or another bound is reached; the request was not accepted.

    Args:
        message: The text for the client.
        reason: The bound, for the counter of refusals.
    """

    retry_after = 1

    def __init__(self, message: str, reason: str = "overloaded") -> None:
        super().__init__(message)
        self.reason = reason


class TooManyRequests(KsrvError, status=429, grpc="RESOURCE_EXHAUSTED"):
    """A model or a client has used up its limit on rate or concurrency.

    Args:
        message: The text for the client.
        reason: The limit, for the counter of refusals.
        retry_after: Seconds after which a request may be accepted again.
    """

    def __init__(self, message: str, reason: str = "rate_limit", retry_after: int = 1) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after


class NotReady(KsrvError, status=503, grpc="UNAVAILABLE", reason="not_ready"):
    """The model exists but is not serving, or the server is draining."""

    retry_after = 1


class NotLoaded(NotReady):
    """The model is dormant: it is not loaded, and the first request that names it loads it.

    Args:
        message: The text for the client.
        model: The model's name.
    """

    def __init__(self, message: str, model: str = "") -> None:
        super().__init__(message)
        self.model = model


class DeadlineExceeded(KsrvError, status=504, grpc="DEADLINE_EXCEEDED"):
    """The request's deadline passed before its answer was ready."""


class Cancelled(KsrvError, status=400, grpc="CANCELLED"):
    """The client disconnected; over REST no client reads this answer."""


class HandlerFailed(KsrvError):
    """The handler, its process or the server itself is at fault."""


class FilesChanged(HandlerFailed):
    """A version cannot be loaded again, because a file of the model has changed since."""


class ProgramError(HandlerFailed):
    """The handler's code failed with an error of the program, which other values would not mend, such as a
    TypeError.
    """


class FileFailed(HandlerFailed):
    """The model file failed on inputs as it declares them, without code of a handler around it."""


class PromiseBroken(HandlerFailed):
    """The handler answered other names, shapes or datatypes than the model's settings declare."""


class DeviceLost(HandlerFailed):
    """The handler's device works no more in its process, which has to be replaced."""


class ModelFailed(HandlerFailed):
    """No request can be answered, because something that the model's settings require failed."""


_GRPC_CODE_BY_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    413: "RESOURCE_EXHAUSTED",
    415: "UNIMPLEMENTED",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class InferenceError(KsrvError):
    """The error that a handler raises, or passes to `batch.fail`, to choose the status.

    Args:
        message: The text for the client.
        status: An HTTP status from 400 to 599; gRPC sees the code nearest to it.
        headers: Extra response headers for REST, trailing metadata for gRPC.

    Raises:
        ValueError: The status is not an error status, or the message or a header cannot be sent.
    """

    def __init__(
        self, message: str, status: int = 400, headers: dict[str, str] | None = None
    ) -> None:
        if not 400 <= status <= 599:
            raise ValueError(f"an error status lies between 400 and 599, not {status}")
        check_text("the message of an error", message)
        for name, value in (headers or {}).items():
            check_field(name, str(value))
        super().__init__(message)
        self.http_status = status
        self.headers = dict(headers or {})
        fallback = "INVALID_ARGUMENT" if status < 500 else "INTERNAL"
        self.grpc_code = _GRPC_CODE_BY_STATUS.get(status, fallback)
