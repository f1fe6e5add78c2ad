"""What a TorchServe handler gets as `data`, made from a batch of requests.

Requests that came over TorchServe's own routes become one row each, as TorchServe makes it: its parts
by name, decoded by their content types. Requests over KServe v2 become one row for each of their batch
rows, under `body`: BYTES as the undecoded bytearray, numbers as nested lists.

The front end says what a part was, and the rest of what is no HTTP header, in pseudo-headers whose
names begin with a colon, which no client can send.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ksrv.request import BatchInputs, BatchRequest, Tensor

SURFACE = ":surface"
URL_PATH = ":url_path"
PART = ":part:"
TORCHSERVE = "torchserve"


def is_torchserve(request: BatchRequest) -> bool:
    """Tell whether the request came over one of TorchServe's own routes."""
    return request.headers.get(SURFACE) == TORCHSERVE


def batch_rows(inputs: BatchInputs) -> list[tuple[int, dict[str, Any]]]:
    """Return the rows of a batch, each with the index of the request that owns it."""
    rows: list[tuple[int, dict[str, Any]]] = []
    for index, request in enumerate(inputs.requests):
        if is_torchserve(request):
            rows.append((index, _parts(inputs.tensors, request)))
        else:
            rows.extend((index, row) for row in _wire_rows(inputs, request))
    return rows


def _parts(tensors: Mapping[str, Tensor], request: BatchRequest) -> dict[str, Any]:
    return {
        name: decoded_part(
            bytes(tensor.data[request.rows.start]), request.headers.get(PART + name, "")
        )
        for name, tensor in tensors.items()
    }


def decoded_part(value: bytes, content_type: str) -> Any:
    """Return a part as TorchServe hands it over.

    Args:
        value: The part's bytes.
        content_type: Its content type, or "".

    Returns:
        The parsed value for `application/json`, a str for `text...`, else a bytearray; also a
        bytearray where JSON or text cannot be decoded.
    """
    plain = content_type.split(";")[0].rstrip()
    try:
        if plain == "application/json":
            return json.loads(value)
        if content_type.startswith("text"):
            return value.decode("utf-8")
    except ValueError:
        pass  # TorchServe goes on with the undecoded bytes, and so do its handlers
    return bytearray(value)


def _wire_rows(inputs: BatchInputs, request: BatchRequest) -> list[dict[str, Any]]:
    columns = {name: _values(tensor, request.rows) for name, tensor in inputs.tensors.items()}
    if len(columns) == 1:
        (values,) = columns.values()
        return [{"body": value} for value in values]
    count = request.rows.stop - request.rows.start
    return [
        {"body": {name: values[row] for name, values in columns.items()}} for row in range(count)
    ]


def _values(tensor: Tensor, rows: slice) -> list[Any]:
    if isinstance(tensor.data, np.ndarray):
        numbers: list[Any] = tensor.data[rows].tolist()
        return numbers
    width = len(tensor.data) // max(tensor.shape[0], 1) if tensor.shape else 1
    elements = [
        bytearray(element) for element in tensor.data[rows.start * width : rows.stop * width]
    ]
    if width == 1:
        return elements
    return [elements[first : first + width] for first in range(0, len(elements), width)]


def request_headers(
    request: BatchRequest, parts: Mapping[str, Tensor], explain: bool
) -> dict[str, Any]:
    """Return what `context.get_all_request_header` shows for a request."""
    headers: dict[str, Any] = {
        name: {"content-type": request.headers.get(PART + name, "")}
        for name in (parts if is_torchserve(request) else ("body",))
    }
    headers["explain"] = str(explain)
    headers |= {name: value for name, value in request.headers.items() if not name.startswith(":")}
    headers["url_path"] = request.headers.get(URL_PATH, "")
    return headers
