"""Operations as HTTP requests, and the answers of the REST routes as documents."""

import json
import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from time import time
from typing import Any
from urllib.parse import quote

from ksrv.client.errors import ClientError, status_error
from ksrv.client.operations import Document, InferResult, Operation, compact, infer_document
from ksrv.client.tensors import Block, decode, from_json

HEADER_LENGTH = "Inference-Header-Content-Length"

_ROUTES = {
    "ServerLive": ("GET", "/v2/health/live"),
    "ServerReady": ("GET", "/v2/health/ready"),
    "ServerMetadata": ("GET", "/v2"),
    "ModelReady": ("GET", "{model}/ready"),
    "ModelMetadata": ("GET", "{model}"),
    "ModelStatistics": ("GET", "{model}/stats"),
    "ModelInfer": ("POST", "{model}/infer"),
    "RepositoryIndex": ("POST", "/v2/repository/index"),
    "RepositoryModelLoad": ("POST", "/v2/repository/models/{name}/load"),
    "RepositoryModelUnload": ("POST", "/v2/repository/models/{name}/unload"),
}

_STAGE = re.compile(r"([A-Za-z_]+)[^,]*?;dur=([0-9.]+)")


@dataclass(frozen=True)
class HttpRequest:
    """A request before its connection's own headers.

    Attributes:
        blocks: The body, in order.
    """

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True)
class HttpResponse:
    """An answer.

    Attributes:
        headers: By name in lower case.
    """

    status: int
    headers: dict[str, str]
    body: memoryview


def http_request(operation: Operation) -> HttpRequest:
    """Return the request of an operation.

    Args:
        operation: The operation.
    """
    method, template = _ROUTES[operation.name]
    name = quote(operation.model, safe="")
    model = f"/v2/models/{name}" if name else "/v2/models"
    if operation.version:
        model += f"/versions/{quote(operation.version, safe='')}"
    path = template.format(model=model, name=name)
    if operation.name == "ModelInfer":
        header = compact(infer_document(operation))
        blocks = (header, *(block for tensor in operation.inputs for block in tensor.blocks))
        headers = ((HEADER_LENGTH, str(len(header))), ("Content-Type", "application/octet-stream"))
        return HttpRequest(method, path, headers, blocks)
    if method == "POST":
        return HttpRequest(method, path, (("Content-Type", "application/json"),), (b"{}",))
    return HttpRequest(method, path)


def answer_of(operation: Operation, response: HttpResponse) -> Document:
    """Return an answer's document; an InferResult for an inference.

    Args:
        operation: The operation.
        response: Its answer.

    Raises:
        StatusError: The answer is an error.
        ClientError: It cannot be read.
    """
    if operation.asks_readiness and response.status in (
        HTTPStatus.OK,
        HTTPStatus.SERVICE_UNAVAILABLE,
    ):
        key = "live" if operation.name == "ServerLive" else "ready"
        return {key: response.status == HTTPStatus.OK}
    if response.status != HTTPStatus.OK:
        raise status_error(response.status, _error_text(response), _retry_after(response))
    try:
        if operation.name == "ModelInfer":
            return _infer_result(response)
        return json.loads(bytes(response.body)) if len(response.body) else {}
    except (ValueError, KeyError, TypeError) as error:
        raise ClientError(f"the answer to {operation.name} cannot be read: {error}") from error


def _infer_result(response: HttpResponse) -> InferResult:
    length = int(response.headers.get(HEADER_LENGTH.lower(), len(response.body)))
    document: dict[str, Any] = json.loads(bytes(response.body[:length]))
    offset = length
    outputs = {}
    for entry in document["outputs"]:
        size = (entry.get("parameters") or {}).get("binary_data_size")
        if size is None:
            outputs[entry["name"]] = from_json(entry["datatype"], entry["shape"], entry["data"])
            continue
        block = response.body[offset : offset + size]
        offset += size
        outputs[entry["name"]] = decode(entry["datatype"], entry["shape"], block)
    timing = _STAGE.findall(response.headers.get("server-timing", ""))
    document["timing"] = {stage: float(milliseconds) for stage, milliseconds in timing}
    return InferResult(outputs, document)


def _error_text(response: HttpResponse) -> str:
    content = bytes(response.body[:65536])
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        text = content[:200].decode("utf-8", "replace").strip()
    try:
        return text or HTTPStatus(response.status).phrase
    except ValueError:
        return text or "no reason given"


def _retry_after(response: HttpResponse) -> float | None:
    text = response.headers.get("retry-after")
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time())
    except ValueError:
        return None
