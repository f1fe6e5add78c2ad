"""Turning answers and errors into Falcon responses.

Every error body is `{"error": "..."}`. Answers below 1 MiB are sent as one piece of bytes, larger answers
as slices with a Content-Length, because WSGI takes nothing but bytes.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

import falcon
import orjson

from ksrv._native.memory.memory_budget import AnswerBytes, MemoryBudget
from ksrv.errors import (
    HEADER_NAME,
    HEADER_VALUE,
    RESERVED_HEADERS,
    KsrvError,
    Unauthenticated,
    UnsupportedEncoding,
    quote,
)
from ksrv.limits import MIB
from ksrv.request import InferResponse
from ksrv.server.call import report
from ksrv.server.http.byte_budget import hold_answer
from ksrv.server.http.compression import chosen_encoding, compressed
from ksrv.server.http.received_body import MESSAGE
from ksrv.server.http.request_ids import REQUEST_ID

log = logging.getLogger(__name__)

JOINED = MIB
WORTH_COMPRESSING = 1024
JSON = "application/json"


def status_line(status: int) -> str:
    """Return the status as Falcon writes it, with the standard phrase if it has a phrase."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Error"


def send_json(resp: falcon.Response, document: object, status: int = 200) -> None:
    """Answer with a JSON document, which may hold arrays."""
    resp.status = status_line(status)
    resp.content_type = JSON
    resp.data = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def error_headers(error: KsrvError) -> list[tuple[str, str]]:
    """Return the headers that belong to an error, in the order in which they are sent."""
    headers = usable_headers(getattr(error, "headers", {}))
    if error.retry_after is not None:
        headers.append(("Retry-After", str(error.retry_after)))
    if isinstance(error, UnsupportedEncoding):
        headers.append(("Accept-Encoding", "gzip, deflate"))
    if error.http_status == HTTPStatus.UNAUTHORIZED:
        headers.append(("WWW-Authenticate", getattr(error, "challenge", Unauthenticated.challenge)))
    return headers


def report_http(error: Exception, environ: dict[str, Any]) -> KsrvError:
    """Log and count a failure of a WSGI resource; return the error that its client gets."""
    name = f"{environ['REQUEST_METHOD']} {quote(environ['PATH_INFO'])}"
    return report(error, "http", name, {"request_id": environ.get(REQUEST_ID, "")})


def send_error(resp: falcon.Response, error: KsrvError) -> None:
    """Answer with an error, its status and the headers that belong to it."""
    send_json(resp, {"error": error.message}, error.http_status)
    set_fields(resp, error_headers(error))


def set_fields(resp: falcon.Response, fields: Iterable[tuple[str, str]]) -> None:
    """Set header fields; Falcon takes a `Set-Cookie` by another method."""
    for name, value in fields:
        (resp.append_header if name.lower() == "set-cookie" else resp.set_header)(name, value)


def usable_headers(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the headers that a handler chose; a header that would break the message is logged."""
    usable = []
    for name, value in headers.items():
        if (
            name.lower() in RESERVED_HEADERS
            or not HEADER_NAME.fullmatch(name)
            or not HEADER_VALUE.fullmatch(str(value))
        ):
            log.warning("response header %.64r of a handler was left out", name)
            continue
        usable.append((name, str(value)))
    return usable


def set_handler_headers(resp: falcon.Response, headers: Mapping[str, str]) -> None:
    """Set the headers that a handler chose."""
    set_fields(resp, usable_headers(headers))


def server_timing(response: InferResponse) -> str:
    """Return the `Server-Timing` header that shows the stages in milliseconds."""
    return ", ".join(
        f"{stage};dur={_milliseconds(nanoseconds)}"
        for stage, nanoseconds in response.timings.items()
    )


def _milliseconds(nanoseconds: int) -> str:
    """Three places, a half rounded up: what native/base/text_writer.hpp writes."""
    whole, places = divmod((nanoseconds + 500) // 1000, 1000)
    return f"{whole}.{places:03d}"


def _slices(parts: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Yield the parts as bytes of at most 1 MiB each."""
    for part in parts:
        view = memoryview(part).cast("B")
        for start in range(0, len(view), JOINED):
            yield bytes(view[start : start + JOINED])


class _Held:
    """The pieces of an answer, which holds its bytes of the budget until the server is done with it."""

    def __init__(self, pieces: Iterator[bytes], held: AnswerBytes) -> None:
        self._pieces = pieces
        self._held = held

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        self._held.close()


def send_parts(
    resp: falcon.Response,
    parts: Sequence[bytes | memoryview],
    content_length: int,
    budget: MemoryBudget,
    environ: dict[str, Any],
    *,
    accept_encoding: str | None = None,
) -> None:
    """Answer with `parts`, one after the other.

    Args:
        resp: Falcon's response for the answer.
        parts: Contiguous buffers; they are held until the last byte was written.
        content_length: Their bytes together.
        budget: The budget that they are charged to until the client has them.
        accept_encoding: The client's `Accept-Encoding` if answers may be compressed, else None.

    Raises:
        Overloaded: The budget has no room for them.
    """
    message = MESSAGE in environ  # the native HTTP server charges its answers
    held = None if message else hold_answer(budget, content_length)
    encoding = chosen_encoding(accept_encoding) if content_length >= WORTH_COMPRESSING else None
    if encoding is not None:
        resp.set_header("Content-Encoding", encoding)
        resp.set_header("Vary", "Accept-Encoding")
        pieces = compressed(_slices(parts), encoding)
        if message:
            resp.data = b"".join(pieces)
            return
    elif message:
        resp.content_length = content_length
        resp.stream = cast(Iterator[bytes], iter(parts))  # the native server copies none of them
        return
    elif held is None:
        resp.data = b"".join(parts)
        return
    else:
        resp.content_length = content_length
        pieces = iter([b"".join(parts)]) if content_length < JOINED else _slices(parts)
    resp.stream = pieces if held is None else _Held(pieces, held)
