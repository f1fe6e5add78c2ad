"""Makes the rows that a TorchServe handler gets as `data` from a batch of requests.

A request over TorchServe's routes is one row, as in TorchServe: a dict of its parts by name, decoded by their content
types. A request over KServe v2 has as many rows as its tensors have: BYTES as bytearrays, numbers as nested lists.
"""

import json
from typing import Any

import numpy as np

from ksrv.dialects.torchserve.base64_text import without_base64
from ksrv.errors import InvalidRequest
from ksrv.model.datatypes import widened
from ksrv.request import Element, ExecutorInputs, RequestPart, Tensor


def is_description(inputs: ExecutorInputs) -> bool:
    """Tell whether the batch is a request for the handler's description of its model."""
    return len(inputs.requests) == 1 and inputs.requests[0].facts.get("describe", False)


def described(answer: bytes) -> Any:
    """Return the description that a handler answered, `{}` if it has none."""
    document = json.loads(answer)
    return {} if document is None else document


def torchserve_row(inputs: ExecutorInputs, request: RequestPart, decode: bool) -> dict[str, Any]:
    """Return the row of a request over one of TorchServe's routes: its parts by name.

    Args:
        decode: Whether JSON and text are decoded.
    """
    kinds = request.facts.get("content_types", {}) if decode else {}
    return {
        name: decoded_part(tensor.data[request.slice.start], kinds.get(name, ""))
        for name, tensor in inputs.tensors.items()
    }


def decoded_part(value: Element, content_type: str) -> Any:
    """Return a part as a handler gets it from TorchServe.

    Returns:
        The parsed value for `application/json`, a str for `text...`, else a bytearray; also a
        bytearray if JSON or text cannot be decoded.
    """
    raw = bytearray(value)
    try:
        if media_type(content_type) == "application/json":
            return json.loads(raw)
        if content_type.startswith("text"):
            return raw.decode("utf-8")
    except (ValueError, RecursionError):
        pass  # the handler gets the undecoded bytes, as in TorchServe
    return raw


def predict_document(row: dict[str, Any], *, needs_instances: bool) -> dict[str, Any]:
    """Return the document of a request over KServe v1.

    Args:
        row: The request's row, whose body may be undecoded.
        needs_instances: Whether the document must have `instances`.

    Raises:
        InvalidRequest: The body is not such a document.
    """
    body = row["body"]
    try:
        document = json.loads(body) if isinstance(body, bytearray) else body
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidRequest('a predict request is a JSON object, such as {"instances": [...]}')
    instances = document.get("instances")
    if needs_instances and not (isinstance(instances, list) and instances):
        raise InvalidRequest(
            "a predict request is a JSON object whose 'instances' are an array of at least one row"
        )
    return document


def instance_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a document of KServe v1: objects as they are, other values as the row's body.

    Raises:
        InvalidRequest: The value of a `b64` is not base64.
    """
    found: list[dict[str, Any]] = []
    for index, instance in enumerate(document["instances"]):
        try:
            value = without_base64(instance) if isinstance(instance, dict) else instance
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"instance {index}: its 'b64' is not base64: {error}") from None
        found.append(value if isinstance(value, dict) else {"body": value})
    return found


def media_type(content_type: str) -> str:
    """Return a content type without its parameters."""
    return content_type.partition(";")[0].strip()


def kserve_rows(inputs: ExecutorInputs) -> list[tuple[int, Any]]:
    """Return the rows of a batch of requests over KServe v2, each with the index of its request.

    If the tensors do not share a first dimension, the request is a single row. A row with one tensor is the value of
    this tensor, else a dict of values by name.
    """
    owned: list[tuple[int, Any]] = []
    for index, request in enumerate(inputs.requests):
        owned.extend((index, value) for value in _values_by_row(inputs, request))
    return owned


def _values_by_row(inputs: ExecutorInputs, request: RequestPart) -> list[Any]:
    tensors = inputs.tensors
    if any(not tensor.shape or tensor.shape[0] != inputs.rows for tensor in tensors.values()):
        whole = {name: _whole(tensor) for name, tensor in tensors.items()}
        return [next(iter(whole.values())) if len(whole) == 1 else whole]
    first, last = request.slice.start, request.slice.stop
    columns = {name: _values(tensor.rows(first, last)) for name, tensor in tensors.items()}
    if len(columns) == 1:
        return next(iter(columns.values()))
    count = request.rows
    return [{name: values[row] for name, values in columns.items()} for row in range(count)]


def _whole(tensor: Tensor) -> Any:
    """Return all values of a tensor: numbers as nested lists, BYTES as a flat list."""
    if isinstance(tensor.data, np.ndarray):
        return widened(tensor.data, tensor.datatype).tolist()
    return [bytearray(element) for element in tensor.data]


def _values(tensor: Tensor) -> list[Any]:
    """Return the value of each row of a tensor."""
    values: list[Any] = _whole(tensor)
    if isinstance(tensor.data, np.ndarray) or len(tensor.shape) == 1:
        return values
    count = tensor.shape[0]
    width = len(values) // max(count, 1)
    return [values[row * width : (row + 1) * width] for row in range(count)]


def kserve_document(inputs: ExecutorInputs) -> dict[str, Any]:
    """Return a request over KServe v2 as the JSON document that the `kservev2` envelope reads."""
    request = inputs.requests[0]
    document: dict[str, Any] = {
        "inputs": [_kserve_input(tensor) for tensor in inputs.tensors.values()]
    }
    if request.id:
        document["id"] = request.id
    if request.parameters:
        document["parameters"] = dict(request.parameters)
    return document


def _kserve_input(tensor: Tensor) -> dict[str, Any]:
    if isinstance(tensor.data, np.ndarray):
        data: list[Any] = widened(tensor.data, tensor.datatype).ravel().tolist()
    else:
        data = [_text(element) for element in tensor.data]
    entry = {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "datatype": tensor.datatype,
        "data": data,
    }
    return entry | {"parameters": dict(tensor.parameters)} if tensor.parameters else entry


def _text(element: Element) -> str | bytearray:
    raw = bytearray(element)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw
