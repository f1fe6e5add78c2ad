"""Reads and writes the bodies of the generate extension: flat JSON, which ksrv accepts for every model.

In `{"text_input": "...", "parameters": {...}}` a key that is the name of an input has the value of this input.
`text_input` means the only BYTES input, whatever its name is. All other keys are parameters. A list of such objects is
one request with a row for each object, and its answer is a list too. Outputs keep their names; if the request has
texts, the only BYTES output is also called `text_output`, unless it has files. Files are in base64, and `content_types`
has their types.
"""

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import orjson

from ksrv.dialects.json_rows import numbered_rows, orjson_form, rows_of_table, shaped_values
from ksrv.errors import InvalidRequest, quote
from ksrv.limits import Limits, show_limit
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.protocol import plain_json, rest
from ksrv.protocol.error_texts import read_json
from ksrv.protocol.parameters import take_request_parameters
from ksrv.request import MEDIA_TYPE, InferRequest, InferResponse, Tensor

REQUEST = "a generate request"

TEXT_INPUT = "text_input"
TEXT_OUTPUT = "text_output"
CONTENT_TYPES = "content_types"
"""The field of an answer with the content types of files, by the names of the outputs."""


class GenerateRequest(NamedTuple):
    """A generate request.

    Attributes:
        request: The equivalent infer request.
        form: The form of the answer.
    """

    request: InferRequest
    form: "AnswerForm"


class AnswerForm(NamedTuple):
    """The form of the answer to a generate request, which follows the form of the request.

    Attributes:
        as_text: Whether the only BYTES output is called `text_output`.
        own_names: Whether that output also has its declared name.
        has_rows: Whether values have a batch dimension.
        records: Whether the answer is a list with an object for each row.
        as_base64: Whether the client asked for BYTES in base64.
    """

    as_text: bool = False
    own_names: bool = True
    has_rows: bool = False
    records: bool = False
    as_base64: bool = False


def parse_generate(
    body: memoryview, spec: ModelSpec, limits: Limits, *, headers: Mapping[str, str]
) -> GenerateRequest:
    """Read the body of a generate request.

    Args:
        headers: The request's headers for the handler, names in lower case.

    Raises:
        InvalidRequest: The body is not a well-formed generate request for this model.
        BodyTooLarge: The body is above a limit.
    """
    document = read_json(body)
    if not isinstance(document, dict) and not (isinstance(document, list) and document):
        raise InvalidRequest(
            "the body of a generate request must be a JSON object, or a list of objects, one for each row"
        )
    if spec.accepts_any_inputs or not spec.inputs:
        raise InvalidRequest(
            f"the model {spec.name} declares no inputs, so a generate request cannot name them; use infer"
        )
    text_name = _text_name(spec)
    request = InferRequest(spec.name, spec.version, headers=headers, nbytes=len(body))
    request.accept = headers.get("accept", "")
    if isinstance(document, dict):
        document = rows_of_table(document, spec) or document
    if isinstance(document, list):
        document = numbered_rows(document, spec)
        names = {} if text_name is None else {TEXT_INPUT: text_name}
        request.inputs = _read_records(document, spec, names, limits)
        return GenerateRequest(request, AnswerForm(records=True))
    return GenerateRequest(request, _read_object(document, request, spec, text_name, limits))


def _read_object(
    document: dict[str, Any],
    request: InferRequest,
    spec: ModelSpec,
    text_name: str | None,
    limits: Limits,
) -> AnswerForm:
    """Fill the infer request from a body that is one object."""
    # The native reader, too, takes a key with the name of an input as the input.
    name = None if spec.input("id") else document.pop("id", None)
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(f"'id' of a generate request must be a string, not {quote(name)}")
    request.id = name or ""
    parameters = None if spec.input("parameters") else document.pop("parameters", None)
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        raise InvalidRequest("'parameters' of a generate request must be a JSON object")
    for key, value in parameters.items():
        _check_parameter(key, value, spec)
    inputs: dict[str, Tensor] = {}
    has_texts = has_rows = False
    for key, value in document.items():
        target = text_name if key == TEXT_INPUT and text_name is not None else key
        declared = spec.input(target)
        if declared is None:
            if key in parameters:
                raise InvalidRequest(f"the parameter {quote(key)} is given twice")
            _check_parameter(key, value, spec)
            parameters[key] = value
        elif value is None and declared.may_be_left_out:
            continue  # null means that an optional input is missing
        elif target in inputs:
            raise InvalidRequest(f"the input {quote(target)} is given twice")
        else:
            read = plain_json.read_value(declared, value, len(inputs), limits)
            inputs[target] = read.tensor
            has_rows = has_rows or read.has_rows
            has_texts = has_texts or declared.datatype == "BYTES"
    if len(parameters) > limits.parameters:
        raise InvalidRequest(f"{REQUEST} exceeds the {show_limit('parameters', limits.parameters)}")
    taken = take_request_parameters(parameters)
    request.inputs, request.parameters = list(inputs.values()), taken.custom
    request.deadline_ns, request.priority = taken.deadline_ns, taken.priority
    request.mark_final = taken.mark_final
    as_base64 = rest.wants_base64(taken.custom)
    return AnswerForm(has_texts, TEXT_INPUT not in document, has_rows, as_base64=as_base64)


def _read_records(
    records: list[Any], spec: ModelSpec, names: Mapping[str, str], limits: Limits
) -> list[Tensor]:
    """Return the inputs in a body that is a list of rows.

    Args:
        records: The rows, objects with the same keys.
        names: The inputs' names by the aliases that a row may use, such as `text_input`.

    Raises:
        InvalidRequest: A row is not an object, has an unknown input, or misses an input that another row has.
    """
    if not all(declared.batched for declared in spec.inputs):
        raise InvalidRequest(
            f"the body is a list, and the model {spec.name} takes no rows; send one JSON object"
        )
    rows: list[dict[str, Any]] = []
    inputs: dict[str, TensorSpec] = {}
    for number, record in enumerate(records):
        if not isinstance(record, dict):
            raise InvalidRequest(
                f"row {number} of the body is not a JSON object; expected one such as {_example(spec)}"
            )
        row = {names.get(key, key): value for key, value in record.items()}
        for key in record:
            declared = spec.input(names.get(key, key))
            if declared is None:
                raise InvalidRequest(f"row {number}: {_unknown(key, spec)}")
            inputs[declared.name] = declared
        if len(row) < len(record):
            raise InvalidRequest(
                f"row {number} has the same input twice, as {' and '.join(map(quote, record))}"
            )
        rows.append(row)
    columns: dict[str, list[Any]] = {}
    for name, declared in inputs.items():
        values = [row.get(name) for row in rows]
        if declared.may_be_left_out and all(value is None for value in values):
            continue
        # null means that an optional input is missing, unless null can mean NaN for this input.
        may_miss = declared.may_be_left_out and not plain_json.has_nan(declared)
        missing = [name not in row or (may_miss and row[name] is None) for row in rows]
        if any(missing):
            raise InvalidRequest(
                f"row {missing.index(True)} has no {quote(name)}, and row {missing.index(False)} has; the rows of one "
                f"request have the same inputs"
            )
        columns[name] = values
    return [
        plain_json.read_rows(inputs[name], values, index, limits)
        for index, (name, values) in enumerate(columns.items())
    ]


def _unknown(key: str, spec: ModelSpec) -> str:
    """Return the error text for a key that is not an input of the model."""
    names = [declared.name for declared in spec.inputs]
    near = get_close_matches(key, names, n=1)
    hint = f"did you mean {quote(near[0])}?" if near else f"it has {', '.join(map(quote, names))}"
    return f"{quote(key)} is not an input of the model; {hint}"


def _example(spec: ModelSpec) -> str:
    return "{" + ", ".join(f'"{declared.name}": ...' for declared in spec.inputs) + "}"


def _check_parameter(key: str, value: Any, spec: ModelSpec) -> None:
    if isinstance(value, list | dict):
        found = "an array" if isinstance(value, list) else "an object"
        infer = "; send a request with 'inputs' to the same path with /infer in place of /generate"
        raise InvalidRequest(
            f"{_unknown(key, spec)}; as a parameter {quote(key)} is {found}, and expected is a string, a "
            f"number or a boolean{infer if key == 'inputs' else ''}"
        )


def _text_name(spec: ModelSpec) -> str | None:
    """Return the name of the input that `text_input` means: the only BYTES input, or the only required BYTES input."""
    if spec.input(TEXT_INPUT) is not None:
        return TEXT_INPUT
    texts = [entry.name for entry in spec.inputs if entry.datatype == "BYTES"]
    if len(texts) > 1:
        texts = [entry.name for entry in spec.required_inputs if entry.datatype == "BYTES"]
    return texts[0] if len(texts) == 1 else None


def render_generate(response: InferResponse, spec: ModelSpec, *, form: AnswerForm) -> bytes:
    """Write one answer as flat JSON.

    Raises:
        InvalidRequest: An output cannot be written as JSON.
    """
    if form.records:
        return orjson.dumps(_records(response), option=orjson.OPT_SERIALIZE_NUMPY)
    document: dict[str, Any] = {}
    if response.id:
        document["id"] = response.id
    document["model_name"] = response.model_name
    if response.model_version:
        document["model_version"] = response.model_version
    texts = [
        output.name
        for output in response.outputs
        if output.datatype == "BYTES" and MEDIA_TYPE not in output.parameters
    ]
    for tensor in response.outputs:
        value = _value(tensor, spec, form)
        is_text = form.as_text and texts == [tensor.name] and spec.output(TEXT_OUTPUT) is None
        if is_text:
            document[TEXT_OUTPUT] = value
        if form.own_names or not is_text:
            document[tensor.name] = value
    if types := _content_types(response):
        document.setdefault(CONTENT_TYPES, types)
    for name, value in response.parameters.items():
        document.setdefault(name, value)
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _content_types(response: InferResponse) -> dict[str, Any]:
    """Return the content types of the outputs that are files, which are in base64."""
    return {
        output.name: output.parameters[MEDIA_TYPE]
        for output in response.outputs
        if MEDIA_TYPE in output.parameters
    }


def _records(response: InferResponse) -> list[dict[str, Any]]:
    """Return an object for each row of an answer."""
    types = _content_types(response)
    values = {
        output.name: shaped_values(output, as_base64=output.name in types)
        for output in response.outputs
    }
    more = {CONTENT_TYPES: types} if types else {}
    rows = {output.shape[0] if output.shape else 1 for output in response.outputs}
    if len(rows) > 1:
        raise InvalidRequest(
            "the outputs have different numbers of rows, so the answer cannot be a list of objects; send one object "
            "with a list for each input"
        )
    return [
        more | {name: orjson_form(value[row]) for name, value in values.items()}
        for row in range(*rows)
    ]


def _value(tensor: Tensor, spec: ModelSpec, form: AnswerForm) -> Any:
    """Return a tensor's value, without the batch dimension if the request had none."""
    as_base64 = form.as_base64 or MEDIA_TYPE in tensor.parameters
    if math.prod(tensor.shape) == 1 and not form.has_rows:
        flat: Any = rest.json_values(tensor, as_base64=as_base64)
        return flat[0]
    values = shaped_values(tensor, as_base64=as_base64)
    if form.has_rows:
        return orjson_form(values)
    declared = spec.output(tensor.name)
    one_row = tensor.shape[:1] == (1,) and (declared is None or declared.batched)
    return orjson_form(values[0] if one_row else values)
