"""Turning answers and errors into Falcon responses.

Every error body is `{"error": "..."}`. The native HTTP server sends the parts of an answer, and charges them to the
memory budget; other WSGI servers get one piece of bytes.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

import falcon
import orjson

from ksrv.errors import (
    HEADER_NAME,
    HEADER_VALUE,
    RESERVED_HEADERS,
    KsrvError,
    Unauthenticated,
    UnsupportedEncoding,
    quote,
)
from ksrv.protocol.rest import HEADER_LENGTH, RenderedBody
from ksrv.request import InferResponse
from ksrv.server.call import report
from ksrv.server.http.compression import chosen_encoding, compressed
from ksrv.server.http.received_body import MESSAGE
from ksrv.server.http.request_ids import REQUEST_ID

log = logging.getLogger(__name__)

WORTH_COMPRESSING = 1024
"""Bytes; a shorter answer is not compressed."""

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
        if name.lower() == "content-type":  # of the output, see `ksrv/engine/batches/split.py`
            continue
        if (
            name.lower() in RESERVED_HEADERS
            or not HEADER_NAME.fullmatch(name)
            or not HEADER_VALUE.fullmatch(str(value))
        ):
            log.warning("response header %.64r of a handler was left out", name)
            continue
        usable.append((name, str(value)))
    return usable


def server_timing(response: InferResponse) -> str:
    """Return the `Server-Timing` header that shows the stages in milliseconds."""
    return ", ".join(
        f"{stage};dur={_milliseconds(nanoseconds)}"
        for stage, nanoseconds in response.timings.items()
    )


def _milliseconds(nanoseconds: int) -> str:
    """Return milliseconds with three decimals, a half rounded up, like native/base/text_writer.hpp."""
    whole, places = divmod((nanoseconds + 500) // 1000, 1000)
    return f"{whole}.{places:03d}"


def answer_fields(response: InferResponse, rendered: RenderedBody) -> list[tuple[str, str]]:
    """Return the header fields of an answer, without Content-Length."""
    fields = [*usable_headers(response.headers), ("content-type", rendered.content_type)]
    if rendered.header_length is not None:
        fields.append((HEADER_LENGTH, str(rendered.header_length)))
    if response.timings:
        fields.append(("server-timing", server_timing(response)))
    return fields


def send_parts(
    resp: falcon.Response,
    parts: Sequence[bytes | memoryview],
    content_length: int,
    environ: dict[str, Any],
    *,
    accept_encoding: str | None = None,
) -> None:
    """Answer with `parts`, one after the other.

    Args:
        resp: Falcon's response for the answer.
        parts: Contiguous buffers; they are held until the last byte was written.
        content_length: Their bytes together.
        accept_encoding: The client's `Accept-Encoding` if answers may be compressed, else None.
    """
    encoding = chosen_encoding(accept_encoding) if content_length >= WORTH_COMPRESSING else None
    if encoding is not None:
        resp.set_header("Content-Encoding", encoding)
        resp.set_header("Vary", "Accept-Encoding")
        resp.data = b"".join(compressed(parts, encoding))
    elif MESSAGE in environ:
        resp.content_length = content_length
        # The native server sends the parts without a copy.
        resp.stream = cast(Iterator[bytes], iter(parts))
    else:
        resp.data = b"".join(parts)
