"""The generate extension of Triton and KServe: flat JSON in, flat JSON out.

`{"text_input": "...", "parameters": {...}}` becomes an infer request of the model's own inputs: each key that
is the name of an input is its value, `text_input` is the only BYTES input whatever its name, and all
other keys are parameters. The only BYTES output is `text_output`, and has its own name beside that where the request
gives its texts by the names of the inputs, as Triton's clients do.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson

from ksrv.errors import InvalidRequest, quote
from ksrv.limits import Limits, show_limit
from ksrv.protocol import rest
from ksrv.request import InferRequest, InferResponse, Tensor
from ksrv.spec import ModelSpec, TensorSpec

MOST_BYTES = 1024 * 1024
"""Bytes of a request: it is read as objects of Python, which take up to thirty times as many."""

REQUEST = "a generate request"

TEXT_INPUT = "text_input"
TEXT_OUTPUT = "text_output"


class GenerateRequest(NamedTuple):
    """A generate request.

    Attributes:
        request: The infer request that it stands for.
        own_names: Whether its texts stand under the names of the inputs, and the answer's is to as well.
    """

    request: InferRequest
    own_names: bool


def parse_generate(
    body: memoryview, spec: ModelSpec, limits: Limits, *, headers: Mapping[str, str]
) -> GenerateRequest:
    """Read the body of a generate request.

    Args:
        headers: The request's headers for the handler, names in lower case.

    Raises:
        InvalidRequest: The body is not a well-formed generate request for this model.
        BodyTooLarge: It is above a limit.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidRequest("the body of a generate request must be a JSON object")
    if spec.accepts_any_inputs or not spec.inputs:
        raise InvalidRequest(
            f"the model {spec.name} declares no inputs, so a generate request cannot name them; use infer"
        )
    made: dict[str, Any] = {}
    name = document.pop("id", None)
    if name is not None:
        made["id"] = name
    parameters = document.pop("parameters", None)
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        raise InvalidRequest("'parameters' of a generate request must be a JSON object")
    for key, value in parameters.items():
        _check_parameter(key, value)
    parameters = dict(parameters)
    inputs: dict[str, Any] = {}
    own_names = False
    text_name = _text_name(spec)
    for key, value in document.items():
        target = text_name if key == TEXT_INPUT and text_name is not None else key
        declared = spec.input(target)
        if declared is None:
            if key in parameters:
                raise InvalidRequest(f"the parameter {quote(key)} is given twice")
            _check_parameter(key, value)
            parameters[key] = value
        elif value is None and declared.optional:
            continue  # as if it were left out
        elif target in inputs:
            raise InvalidRequest(f"the input {quote(target)} is given twice")
        else:
            inputs[target] = _entry(declared, value)
            own_names = own_names or declared.datatype == "BYTES"
    own_names = own_names and TEXT_INPUT not in document
    if parameters:
        made["parameters"] = parameters
    made["inputs"] = list(inputs.values())
    try:
        text = orjson.dumps(made)
    except orjson.JSONEncodeError:  # it writes fewer levels than it reads
        raise InvalidRequest(
            f"the inputs are nested above the {show_limit('json_depth', limits.json_depth)}"
        ) from None
    request = rest.parse_infer(text, None, spec, limits, headers=headers)
    return GenerateRequest(request, own_names)


def _check_parameter(key: str, value: Any) -> None:
    if isinstance(value, list | dict):
        found = "an array" if isinstance(value, list) else "an object"
        raise InvalidRequest(
            f"{quote(key)} is no input of the model, and as a parameter it is {found}; expected a "
            f"string, a number or a boolean"
        )


def _text_name(spec: ModelSpec) -> str | None:
    """Return the input that `text_input` stands for."""
    if spec.input(TEXT_INPUT) is not None:
        return TEXT_INPUT
    texts = [entry.name for entry in spec.inputs if entry.datatype == "BYTES"]
    if len(texts) > 1:
        texts = [entry.name for entry in spec.required_inputs if entry.datatype == "BYTES"]
    return texts[0] if len(texts) == 1 else None


def _entry(declared: TensorSpec, value: Any) -> dict[str, Any]:
    """Return an input's entry of an infer request; missing dimensions in front are 1."""
    shape = _shape_of(declared.name, value)
    rank = len(declared.shape)
    shape = [1] * max(rank - len(shape), 0) + shape
    return {
        "name": declared.name,
        "datatype": declared.datatype,
        "shape": shape,
        "data": value if isinstance(value, list) else [value],
    }


def _shape_of(name: str, value: Any) -> list[int]:
    shape: list[int] = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            raise InvalidRequest(f"the input {quote(name)} is an empty list")
        value = value[0]
    if value is None or isinstance(value, dict):
        found = "null" if value is None else "an object"
        raise InvalidRequest(
            f"the input {quote(name)} holds {found}; expected a text, a number, or a list of them"
        )
    return shape


def render_generate(response: InferResponse, spec: ModelSpec, *, own_names: bool) -> bytes:
    """Write one answer as flat JSON.

    Args:
        own_names: Whether the only text stands under its output's name too, beside `text_output`.

    Raises:
        InvalidRequest: An output cannot be written as JSON.
    """
    document: dict[str, Any] = {}
    if response.id:
        document["id"] = response.id
    document["model_name"] = response.model_name
    if response.model_version:
        document["model_version"] = response.model_version
    texts = [one.name for one in response.outputs if one.datatype == "BYTES"]
    for tensor in response.outputs:
        value = _value(tensor)
        is_text = len(texts) == 1 and tensor.name == texts[0] and spec.output(TEXT_OUTPUT) is None
        if is_text:
            document[TEXT_OUTPUT] = value
        if own_names or not is_text:
            document[tensor.name] = value
    for name, value in response.parameters.items():
        document.setdefault(name, value)
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _value(tensor: Tensor) -> Any:
    values = rest.json_values(tensor)
    count = math.prod(tensor.shape)
    if isinstance(values, list):
        return values[0] if count == 1 else values
    flat = np.asarray(values)
    return flat.reshape(-1)[0].item() if count == 1 else flat
