"""KServe's older protocol, v1: rows of `instances` in JSON become inputs, outputs become `predictions`.

    {"instances": [[1, 2, 3, 4]]}                      one input, a row each
    {"instances": [{"x": [1, 2], "y": 3}]}             several inputs, an object a row
    {"instances": [{"b64": "..."}]}                    images and other bytes, as in TensorFlow Serving

Numbers are read by the reader of v2's `data`, so the same text means the same values.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ksrv._native.json import number_array
from ksrv._native.json.number_array import NumbersError
from ksrv.datatypes import OutOfRange, cast
from ksrv.errors import InvalidRequest, quote
from ksrv.limits import Limits, show_limit
from ksrv.protocol.error_texts import json_refusal, numbers_fault
from ksrv.protocol.json_data import B64, to_element
from ksrv.protocol.rest import JSON_TYPE, RenderedBody, json_values
from ksrv.protocol.shared_memory import SharedMemoryRegistry
from ksrv.request import InferRequest, InferResponse, Tensor
from ksrv.spec import ModelSpec, TensorSpec

if TYPE_CHECKING:
    from typing_extensions import Buffer

MOST_BYTES = 4 * 1024 * 1024
"""Bytes of a request: it is read as objects of Python, which take up to thirty times as many."""

REQUEST = "a request of protocol v1"


def parse_predict(
    body: "Buffer",
    header_length: str | None,
    spec: ModelSpec,
    limits: Limits,
    *,
    headers: Mapping[str, str],
    regions: SharedMemoryRegistry | None = None,
    input_name: str | None = None,
) -> InferRequest:
    """Read the body of a predict request.

    Args:
        header_length: As in v2; this protocol has no binary form.
        regions: As in v2; this protocol has no shared memory.
        input_name: As in v2; an instance names its inputs itself.

    Raises:
        InvalidRequest: It is no such request.
        BodyTooLarge: It is above `MOST_BYTES`, or the limit on JSON.
    """
    view = memoryview(body)
    if header_length is not None:
        raise InvalidRequest(
            "a predict request of protocol v1 is JSON alone; binary data goes to /v2/models/M/infer"
        )
    most = min(limits.json, MOST_BYTES)
    if len(view) > most:
        raise json_refusal(REQUEST, MOST_BYTES, limits)(len(view), most)
    try:
        document = orjson.loads(view)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    instances = document.get("instances") if isinstance(document, dict) else None
    if not isinstance(instances, list) or not instances:
        raise InvalidRequest(
            "a predict request is a JSON object whose 'instances' are an array of at least one row"
        )
    columns = _columns(instances, spec)
    if len(columns) > limits.inputs:
        raise InvalidRequest(f"an instance has more than {limits.inputs} inputs, the limit")
    return InferRequest(
        spec.name,
        spec.version,
        inputs=[
            _tensor(name, rows, index, spec, limits)
            for index, (name, rows) in enumerate(columns.items())
        ],
        headers=headers,
        nbytes=len(view),
    )


def _columns(instances: list[Any], spec: ModelSpec) -> dict[str, list[Any]]:
    """Return the rows of each input by its name."""
    first = instances[0]
    if not isinstance(first, dict) or first.keys() == {B64}:
        return {_only_input(spec): instances}
    names = first.keys()
    if not names and not spec.inputs:  # else the validator names what is missing
        raise InvalidRequest(
            "instance 0 is an empty object; it holds the inputs of its row by name"
        )
    for place, row in enumerate(instances):
        if not isinstance(row, dict) or row.keys() != names:
            raise InvalidRequest(
                f"instance {place} does not have the inputs of instance 0: "
                f"{', '.join(quote(name) for name in list(names)[:8])}"
            )
    columns = {name: [row[name] for row in instances] for name in names}
    absent = {one.name for one in spec.inputs if one.optional}
    return {
        name: rows
        for name, rows in columns.items()
        if name not in absent or any(row is not None for row in rows)
    }


def _only_input(spec: ModelSpec) -> str:
    inputs = spec.required_inputs or spec.inputs
    if len(inputs) == 1:
        return inputs[0].name
    known = ", ".join(quote(entry.name) for entry in spec.inputs) or "no declared inputs"
    raise InvalidRequest(
        f"the model {spec.name} has {known}; each instance must be an object of inputs by their names"
    )


def _tensor(name: str, rows: list[Any], index: int, spec: ModelSpec, limits: Limits) -> Tensor:
    declared = spec.input(name)
    subject = f"input {quote(name)} (index {index})"
    values, own = _flat(rows, subject, limits)
    is_image = declared is not None and declared.image is not None
    if values and isinstance(values[0], str | dict):
        tail = _checked((), own, subject) if is_image else _tail(declared, own, subject)
        shape = (len(rows), *tail)
        elements = [
            to_element(value, is_image, subject, place) for place, value in enumerate(values)
        ]
        return Tensor(name, "BYTES", shape, elements)
    shape = (len(rows), *_tail(declared, own, subject))
    datatype = "FP64" if declared is None else declared.datatype
    widened = {"FP16": "FP32", "BF16": "FP32", "BYTES": "FP64"}.get(datatype, datatype)
    try:
        text = memoryview(orjson.dumps(values))
    except orjson.JSONEncodeError:  # it writes fewer levels than it reads
        raise InvalidRequest(
            f"{subject}: an object among the numbers is nested above the "
            f"{show_limit('json_depth', limits.json_depth)}"
        ) from None
    count = prod(shape)
    try:
        numbers = number_array.read(text, 0, len(text), widened, count)
    except NumbersError as error:
        raise numbers_fault(error, text, 0, name, index, widened, count) from None
    if datatype == "FP16":
        try:
            numbers = cast(numbers, widened, datatype)
        except OutOfRange as error:
            raise InvalidRequest(f"{subject}: {error}") from None
    elif widened != datatype:
        datatype = widened  # refused by the model's validator, which says what it expects
    return Tensor(name, datatype, shape, numbers.reshape(shape))


def _flat(rows: list[Any], subject: str, limits: Limits) -> tuple[list[Any], tuple[int, ...]]:
    """Return the values of all rows one after the other, and the shape of each row."""
    most = min(limits.rank, limits.json_depth)
    shape: list[int] = []
    values = rows
    while any(isinstance(value, list) for value in values):
        shape.append(len(values[0]) if isinstance(values[0], list) else 0)
        if len(shape) >= most:
            name = "rank" if most == limits.rank else "json_depth"
            raise InvalidRequest(f"a row has more dimensions than the {show_limit(name, most)}")
        if any(not isinstance(value, list) or len(value) != shape[-1] for value in values):
            raise InvalidRequest(f"{subject}: the rows are not of one shape")
        values = [inner for value in values for inner in value]
    return values, tuple(shape)


def _tail(declared: TensorSpec | None, own: tuple[int, ...], subject: str) -> tuple[int, ...]:
    """Return the shape of a row: the declared one where it is fixed, else its own.

    A row may have fewer dimensions than the declared ones where it holds as many values.
    """
    if declared is None:
        return own
    fixed = tuple(size for size in declared.shape[1:] if isinstance(size, int) and size >= 0)
    if len(fixed) != len(declared.shape[1:]):
        return own
    return _checked(fixed, own, subject)


def _checked(tail: tuple[int, ...], own: tuple[int, ...], subject: str) -> tuple[int, ...]:
    if own != tail and (len(own) >= len(tail) or prod(own) != prod(tail)):
        raise InvalidRequest(
            f"{subject}: each row has the shape {list(own)}, but the model expects {list(tail)}"
        )
    return tail


def render_predict(
    response: InferResponse,
    request: InferRequest,
    *,
    nan_literals: bool = False,
    regions: SharedMemoryRegistry | None = None,
) -> RenderedBody:
    """Write the answer to a predict request.

    Args:
        nan_literals: As in v2; here NaN and Infinity are null.
        regions: As in v2; this protocol has no shared memory.

    Raises:
        InvalidRequest: JSON cannot carry an output.
    """
    rows = request.inputs[0].shape[0]
    outputs = {tensor.name: _values(tensor) for tensor in response.outputs}
    predictions: object = outputs
    if all(tensor.shape[:1] == (rows,) for tensor in response.outputs) and outputs:
        columns: Sequence[Any] = list(outputs.values())
        if len(columns) == 1:
            predictions = columns[0]
        else:
            predictions = [
                dict(zip(outputs, row, strict=True)) for row in zip(*columns, strict=True)
            ]
    text = orjson.dumps({"predictions": predictions}, option=orjson.OPT_SERIALIZE_NUMPY)
    return RenderedBody([text], len(text), None, JSON_TYPE)


def _values(tensor: Tensor) -> Any:
    values = json_values(tensor)
    if isinstance(values, np.ndarray):
        return values.reshape(tensor.shape)
    return np.array(values, dtype=object).reshape(tensor.shape).tolist()
