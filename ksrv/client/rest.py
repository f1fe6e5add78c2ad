"""Converts operations to HTTP requests, and HTTP responses to answers, without any input or output."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from operator import itemgetter
from typing import Any
from urllib.parse import quote

from ksrv.client.errors import ClientError, StreamFailed, status_error
from ksrv.client.operations import (
    Document,
    InferResult,
    Operation,
    Progress,
    compact,
    infer_document,
)
from ksrv.client.retries import retry_after
from ksrv.client.tensors import Block, declared_inputs, decode, from_json

HEADER_LENGTH = "Inference-Header-Content-Length"
EVENT_STREAM = "text/event-stream"

_ROUTES = {
    "ServerLive": ("GET", "/v2/health/live"),
    "ServerReady": ("GET", "/v2/health/ready"),
    "ServerMetadata": ("GET", "/v2"),
    "ModelReady": ("GET", "{model}/ready"),
    "ModelMetadata": ("GET", "{model}"),
    "ModelStatistics": ("GET", "{model}/stats"),
    "ModelInfer": ("POST", "{model}/infer"),
    "ModelStreamInfer": ("POST", "{model}/infer"),
    "RepositoryIndex": ("POST", "/v2/repository/index"),
    "RepositoryModelLoad": ("POST", "/v2/repository/models/{name}/load"),
    "RepositoryModelUnload": ("POST", "/v2/repository/models/{name}/unload"),
    "ModelPromote": ("POST", "/v2/repository/models/{name}/promote"),
}

UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""The exceptions that can occur while reading an answer that does not have the protocol's form."""

_CHECKS: dict[str, Callable[[Any], object]] = {
    "ModelMetadata": declared_inputs,
    "RepositoryIndex": lambda entries: [dict(**entry) for entry in entries],
    "ModelStatistics": itemgetter("model_stats"),
}
"""Checks of answers that are returned as they are. Each raises one of `UNREADABLE` if the answer has another form."""

# A stage of the header Server-Timing, such as `inference;dur=1.5`, in milliseconds.
_STAGE = re.compile(r"([A-Za-z_]+)[^,]*?;dur=([0-9]+(?:\.[0-9]*)?)")


@dataclass(frozen=True)
class HttpRequest:
    """A request, without the headers that all requests of a connection have.

    Attributes:
        blocks: The parts of the body, in order.
        progress: Called with the bytes sent so far, or None.
    """

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    blocks: tuple[Block, ...] = ()
    progress: Progress | None = None


@dataclass(frozen=True)
class HttpResponse:
    """A response.

    Attributes:
        headers: Values by name in lower case.
    """

    status: int
    headers: dict[str, str]
    body: memoryview


def http_request(operation: Operation) -> HttpRequest:
    """Return the request of an operation."""
    method, template = _ROUTES[operation.name]
    name = quote(operation.model, safe="")
    model = f"/v2/models/{name}" if name else "/v2/models"
    if operation.version:
        model += f"/versions/{quote(operation.version, safe='')}"
    path = template.format(model=model, name=name)
    if operation.name in ("ModelInfer", "ModelStreamInfer"):
        header = compact(infer_document(operation))
        blocks = (header, *(block for tensor in operation.inputs for block in tensor.blocks))
        headers = [(HEADER_LENGTH, str(len(header))), ("Content-Type", "application/octet-stream")]
        if operation.name == "ModelStreamInfer":
            headers.append(("Accept", EVENT_STREAM))
        return HttpRequest(method, path, tuple(headers), blocks, operation.progress)
    if method == "POST":
        body = compact(operation.parameters or {})
        return HttpRequest(method, path, (("Content-Type", "application/json"),), (body,))
    return HttpRequest(method, path)


def answer_of(operation: Operation, response: HttpResponse) -> Document:
    """Return the answer to an operation; for an inference an `InferResult`.

    Raises:
        StatusError: The answer is an error.
        ClientError: The answer cannot be read.
    """
    if operation.asks_readiness and response.status in (
        HTTPStatus.OK,
        HTTPStatus.SERVICE_UNAVAILABLE,
    ):
        key = "live" if operation.name == "ServerLive" else "ready"
        return {key: response.status == HTTPStatus.OK}
    if response.status != HTTPStatus.OK:
        pause = retry_after(response.headers.get("retry-after"))
        raise status_error(response.status, _error_text(response), pause)
    try:
        if operation.name in ("ModelInfer", "ModelStreamInfer"):
            return _infer_result(response)
        document = json.loads(bytes(response.body)) if len(response.body) else {}
        _CHECKS.get(operation.name, bool)(document)  # bool checks nothing
        return document
    except UNREADABLE as error:
        raise ClientError(f"the answer to {operation.name} cannot be read: {error!r}") from error


def with_body(response: HttpResponse, pieces: Iterable[Block]) -> HttpResponse:
    """Return a response with its body, which arrived in pieces."""
    blocks = list(pieces)
    body = blocks[0] if len(blocks) == 1 else b"".join(blocks)
    return replace(response, body=memoryview(body))


def is_event_stream(response: HttpResponse) -> bool:
    """Whether an answer is sent in parts. A model that does not stream answers with one plain JSON body."""
    content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return response.status == HTTPStatus.OK and content_type == EVENT_STREAM


class EventReader:
    """Reads answers from an event stream, whose bytes arrive in pieces of any size.

    The format is that of the WHATWG HTML standard, section "Server-sent events": lines of `field: value`, an empty line
    after each event, and comments, which begin with a colon.
    """

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._rest = bytearray()
        self._event = b""
        self._data: list[bytes] = []

    def feed(self, piece: Block) -> Iterator[InferResult]:
        """Yield the answers that the next piece completes.

        Raises:
            StreamFailed: The event is an error.
            ClientError: An event cannot be read.
        """
        begin = len(self._rest)
        self._rest += piece
        if self._rest.find(b"\n", begin) < 0:  # a long line that has not ended
            return
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            elif field == b"event":
                self._event = value.strip()
            elif not line.strip():
                event, data = self._event, b"\n".join(self._data)
                self._event, self._data = b"", []
                if data:
                    yield self._answer(event, data)

    def _answer(self, event: bytes, data: bytes) -> InferResult:
        response = HttpResponse(HTTPStatus.OK, {}, memoryview(data))
        if event == b"error":
            raise StreamFailed(_error_text(response))
        answer: InferResult = answer_of(self._operation, response)
        return answer


def _infer_result(response: HttpResponse) -> InferResult:
    """Read an answer: a JSON header, and the outputs in it or as binary data after it."""
    offset = int(response.headers.get(HEADER_LENGTH.lower(), len(response.body)))
    if not 0 <= offset <= len(response.body):
        raise ValueError(f"{HEADER_LENGTH} is {offset} of {len(response.body)} bytes")
    document: dict[str, Any] = json.loads(bytes(response.body[:offset]))
    outputs = {}
    for entry in document["outputs"]:
        if not isinstance(entry["name"], str):
            raise ValueError(f"an output has the name {entry['name']!r:.40}; expected a text")
        parameters = entry.get("parameters") or {}
        size = parameters.get("binary_data_size")
        if size is None:
            is_base64 = parameters.get("content_type") == "base64"
            outputs[entry["name"]] = from_json(
                entry["datatype"], entry["shape"], entry["data"], is_base64=is_base64
            )
            continue
        if not 0 <= size <= len(response.body) - offset:
            raise ValueError(f"the output {entry['name']!r} has {size} bytes, beyond the answer's")
        block = response.body[offset : offset + size]
        offset += size
        outputs[entry["name"]] = decode(entry["datatype"], entry["shape"], block)
    timing = _STAGE.findall(response.headers.get("server-timing", ""))
    document["timing"] = {stage: float(milliseconds) for stage, milliseconds in timing}
    return InferResult(outputs, document)


def _error_text(response: HttpResponse) -> str:
    """Return the error of a response: in ksrv's JSON, else the beginning of the body, else the status's phrase."""
    content = bytes(response.body[:65536])
    try:
        return str(json.loads(content)["error"])
    except UNREADABLE:
        text = content[:200].decode("utf-8", "replace").strip()
    try:
        return text or HTTPStatus(response.status).phrase
    except ValueError:
        return text or "no reason given"
