"""The JSON of KServe's older protocol, v1, and of TensorFlow Serving: `instances` and `predictions` have an entry for
each row, `inputs` and `outputs` whole tensors.

{"instances": [[1, 2, 3, 4]]}                      one input: each entry is a row
{"instances": [{"x": [1, 2], "y": 3}]}             several inputs: each entry is an object with a row of each input
{"instances": [{"b64": "..."}]}                    images and other bytes, as in TensorFlow Serving
{"inputs": {"x": [[1, 2], [5, 6]], "y": [3, 7]}}   the whole tensor of each input
{"inputs": [[1, 2, 3, 4]]}                         the whole tensor of the only input
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Annotated, Any, TypedDict

import numpy as np
import orjson
from msgspec import Meta

from ksrv.dialects.json_rows import orjson_form, shaped_values
from ksrv.errors import InvalidRequest, quote
from ksrv.limits import Limits, show_limit
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.protocol import plain_json
from ksrv.protocol.accept import JSON_TYPE
from ksrv.protocol.error_texts import json_refusal, read_json
from ksrv.protocol.json_data import B64
from ksrv.protocol.openapi import Operation
from ksrv.protocol.rest import RenderedBody, file_body
from ksrv.protocol.tensors import subject
from ksrv.request import Array, InferRequest, InferResponse, Tensor

MOST_BYTES = 4 * 1024 * 1024
"""The most bytes of a request. It becomes Python objects, which take up to thirty times as much memory."""

REQUEST = "a request of protocol v1"

BY_COLUMN = {"form": "columns"}
"""The facts of a request of whole tensors."""


class PredictRequest(TypedDict):
    """A predict request."""

    instances: Annotated[list[Any], Meta(min_length=1)]


class PredictResponse(TypedDict):
    """A predict response."""

    predictions: list[Any] | dict[str, Any]


PREDICT = Operation("Run {name} by protocol v1", "", PredictResponse, PredictRequest)
"""The description of a predict route."""


def parse_predict(
    body: memoryview,
    header_length: str | None,
    spec: ModelSpec,
    limits: Limits,
    *,
    headers: Mapping[str, str],
) -> InferRequest:
    """Read the body of a predict request.

    Args:
        header_length: The header of v2 for binary data. It is refused, because v1 has no binary form.

    Raises:
        InvalidRequest: The body is not a predict request.
        BodyTooLarge: The body exceeds `MOST_BYTES`, or the limit on JSON.
    """
    if header_length is not None:
        raise InvalidRequest(
            "a predict request of protocol v1 is JSON alone; send binary data to /v2/models/M/infer"
        )
    most = min(limits.json, MOST_BYTES)
    if len(body) > most:
        raise json_refusal(REQUEST, MOST_BYTES, limits)(len(body), most)
    document = read_json(body)
    document = document if isinstance(document, dict) else {}
    instances, inputs = document.get("instances"), document.get("inputs")
    if instances is not None and inputs is not None:
        raise InvalidRequest("a predict request has 'instances' or 'inputs', not both")
    facts = {}
    if isinstance(instances, list) and instances:
        tensors = read_rows(instances, spec, limits)
    elif instances is None and inputs is not None and not _is_v2(inputs):
        tensors, facts = _read_columns(inputs, spec, limits), BY_COLUMN
    else:
        raise InvalidRequest(
            "a predict request is a JSON object whose 'instances' are an array of at least one row, or whose 'inputs' are "
            "whole tensors by name; the 'inputs' of KServe v2 go to /v2/models/NAME/infer"
        )
    return InferRequest(
        spec.name,
        spec.version,
        accept=headers.get("accept", ""),
        inputs=tensors,
        headers=headers,
        nbytes=len(body),
        facts=facts,
    )


def read_rows(instances: list[Any], spec: ModelSpec, limits: Limits) -> list[Tensor]:
    """Return the inputs for rows.

    Raises:
        InvalidRequest: The rows do not fit the model.
    """
    columns = _columns(instances, spec)
    if len(columns) > limits.inputs:
        raise InvalidRequest(f"an instance exceeds the {show_limit('inputs', limits.inputs)}")
    return [
        _tensor(name, rows, index, spec, limits)
        for index, (name, rows) in enumerate(columns.items())
    ]


def _read_columns(inputs: Any, spec: ModelSpec, limits: Limits) -> list[Tensor]:
    """Return the inputs for whole tensors: by name, or the only input's."""
    if not isinstance(inputs, dict) or inputs.keys() == {B64}:
        inputs = {_only_input(spec): inputs}
    if len(inputs) > limits.inputs:
        raise InvalidRequest(f"the request exceeds the {show_limit('inputs', limits.inputs)}")
    return [
        plain_json.read_value(declared, value, index, limits).tensor
        if (declared := spec.input(name))
        else _tensor(name, value if isinstance(value, list) else [value], index, spec, limits)
        for index, (name, value) in enumerate(inputs.items())
    ]


def _is_v2(inputs: Any) -> bool:
    """Tell whether `inputs` are tensors of KServe v2, which have a datatype."""
    first = inputs[0] if isinstance(inputs, list) and inputs else None
    return inputs == [] or (isinstance(first, dict) and "datatype" in first)


def read_predict(
    body: memoryview, spec: ModelSpec, limits: Limits, headers: Mapping[str, str]
) -> tuple[InferRequest, Callable[[InferResponse], RenderedBody]]:
    """Read a predict request; see `ksrv.server.shared.plain_route.PlainRoute`."""
    request = parse_predict(body, None, spec, limits, headers=headers)
    return request, partial(render_predict, request=request)


def _columns(instances: list[Any], spec: ModelSpec) -> dict[str, list[Any]]:
    """Return the rows of each input, by the input's name."""
    first = instances[0]
    if not isinstance(first, dict) or first.keys() == {B64}:
        return {_only_input(spec): instances}
    names = first.keys()
    # If inputs are declared, the validator names the missing inputs.
    if not names and not spec.inputs:
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
    # An optional input that is null in every row counts as left out.
    optional = {entry.name for entry in spec.inputs if entry.may_be_left_out}
    return {
        name: rows
        for name, rows in columns.items()
        if name not in optional or any(row is not None for row in rows)
    }


def _only_input(spec: ModelSpec) -> str:
    """Return the input of rows that are not objects."""
    inputs = spec.required_inputs or spec.inputs
    if len(inputs) == 1:
        return inputs[0].name
    known = ", ".join(quote(entry.name) for entry in spec.inputs) or "no declared inputs"
    raise InvalidRequest(
        f"the model {spec.name} has {known}; each instance must be an object of inputs by name"
    )


def _tensor(name: str, rows: list[Any], index: int, spec: ModelSpec, limits: Limits) -> Tensor:
    """Return the tensor of one input. `index` is the input's place in the request, for error texts."""
    declared = spec.input(name)
    values, given = plain_json.flat(rows, name, index, limits)
    if plain_json.are_files(declared, values):  # one for each row
        row = _checked([], given, name, index)
    else:
        row = _row_shape(declared, given, name, index)
    return plain_json.read_tensor(name, declared, [len(rows), *row], values, index, limits)


def _row_shape(declared: TensorSpec | None, given: list[int], name: str, index: int) -> list[int]:
    """Return the shape of a row: the declared shape if it is fixed, else the shape of the given rows."""
    if declared is None:
        return given
    fixed = [size for size in declared.shape[1:] if isinstance(size, int) and size >= 0]
    if len(fixed) != len(declared.shape[1:]):
        return given
    return _checked(fixed, given, name, index)


def _checked(expected: list[int], given: list[int], name: str, index: int) -> list[int]:
    """Return the expected shape of a row, if the given rows fit it.

    Rows with fewer dimensions than expected are accepted if they have as many values.
    """
    if given != expected and (len(given) >= len(expected) or prod(given) != prod(expected)):
        raise InvalidRequest(
            f"{subject(name, index)}: each row has the shape {given}, but the model expects {expected}"
        )
    return expected


def render_predict(response: InferResponse, request: InferRequest) -> RenderedBody:
    """Write the answer to a predict request. NaN and Infinity become null.

    If every output has a row for each row of the request, `predictions` is a list of rows; else it is an object of
    outputs. A request of whole tensors gets `outputs`: the only output, or an object. An output whose name ends with
    "_bytes" is written in base64, as in TensorFlow Serving.

    Raises:
        InvalidRequest: JSON cannot represent an output.
    """
    file = file_body(response, request)
    if file is not None:  # the client's Accept asks for an image or another file
        return file
    key, rows = "predictions", request.inputs[0].shape[0]
    outputs = {tensor.name: orjson_form(_values(tensor)) for tensor in response.outputs}
    predictions: object = outputs
    if request.facts == BY_COLUMN:
        key, predictions = "outputs", outputs if len(outputs) > 1 else next(iter(outputs.values()))
    elif all(tensor.shape[:1] == (rows,) for tensor in response.outputs) and outputs:
        columns: Sequence[Any] = list(outputs.values())
        if len(columns) == 1:
            predictions = columns[0]
        else:
            predictions = [
                dict(zip(outputs, row, strict=True)) for row in zip(*columns, strict=True)
            ]
    text = orjson.dumps({key: predictions}, option=orjson.OPT_SERIALIZE_NUMPY)
    return RenderedBody([text], len(text), None, JSON_TYPE)


def _values(tensor: Tensor) -> Array:
    """Return the values of an output in the shape of the answer."""
    if not (tensor.datatype == "BYTES" and tensor.name.endswith("_bytes")):
        return shaped_values(tensor)
    texts = shaped_values(tensor, as_base64=True)
    found: Array = np.empty(texts.shape, dtype=object)
    found.reshape(-1)[:] = [{B64: text} for text in texts.flat]
    return found
