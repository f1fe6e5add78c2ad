"""The OpenAPI description of the routes generate and generate_stream."""

from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.protocol.documents import SequenceParameters
from ksrv.protocol.openapi import (
    Document,
    Operation,
    example_values,
    json_content,
    schema_of,
    with_sequence,
)


def _generate_body(spec: ModelSpec) -> Document:
    """Return the description of a request's body: an object, or a list of objects."""
    if not spec.inputs or spec.accepts_any_inputs:
        return json_content({"type": "object"})
    row: Document = {
        "type": "object",
        "properties": {entry.name: _plain_schema(entry) for entry in spec.inputs},
    }
    if spec.sequences is not None:
        row["properties"]["parameters"] = schema_of(SequenceParameters)
    content = json_content({"anyOf": [row, {"type": "array", "items": row, "minItems": 1}]})
    example = _plain_example(spec)
    if example is not None:
        content["application/json"]["example"] = example
    return content


def _plain_schema(tensor: TensorSpec) -> Document:
    """Return the schema of an input in plain JSON: the value of one row, or a list with the values of several rows."""
    if tensor.image is not None:
        return {"type": "string", "description": "A picture in base64, or a data URL."}
    shown = f"{tensor.datatype} of the shape {list(tensor.wire_shape)}"
    value: Document = {
        "type": {"BYTES": "string", "BOOL": "boolean"}.get(tensor.datatype, "number")
    }
    for _ in tensor.shape[1 if tensor.batched else 0 :]:
        value = {"type": "array", "items": value}
    if not tensor.batched:
        return {"description": shown} | value
    rows = {"type": "array", "items": value, "minItems": 1}
    return {"description": f"{shown}: the value of a row, or of several", "anyOf": [value, rows]}


def _plain_example(spec: ModelSpec) -> Document | None:
    """Return an example with one row, or None if the model's inputs allow no example."""
    values = example_values(spec)
    if values is None:
        return None
    # `example_values` has a list with one picture for an input of images, batched or not.
    has_rows = {
        entry.name: entry.batched or entry.image is not None for entry in spec.required_inputs
    }
    rows = {name: value[0] if has_rows[name] else value for name, value in values.items()}
    return with_sequence(rows, spec)


GENERATE = Operation(
    summary="Run {name} by plain JSON",
    answer=lambda spec: json_content({"type": ["object", "array"]}),
    body=_generate_body,
)
GENERATE_STREAM = Operation(
    summary="Run {name} by plain JSON, part by part",
    answer=lambda spec: {"text/event-stream": {}},
    body=_generate_body,
)
