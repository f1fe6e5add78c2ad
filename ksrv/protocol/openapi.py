"""The OpenAPI description of the REST routes, with the inputs and outputs of the models that serve.

A pure function of the models' descriptions: clients are generated from it, and try requests out by it.
"""

import base64
import math
import struct
import zlib
from collections.abc import Iterable
from typing import Any

from ksrv import __version__
from ksrv.model.datatypes import DTYPES
from ksrv.model.spec import Dimension, ModelSpec, TensorSpec
from ksrv.request import LARGEST_SEQUENCE_ID, LONGEST_SEQUENCE_ID

Document = dict[str, Any]

EXAMPLE_VALUES = 64
"""Values that an example writes out; larger inputs have none."""

_TEXT: Document = {"type": "string"}
_OBJECT: Document = {"type": "object"}
_FILE: Document = {"type": "string", "format": "binary"}
_IMAGE_TYPES = {"jpeg": "image/jpeg", "png": "image/png"}


def _ref(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: Document) -> Document:
    return {"application/json": {"schema": schema}}


def _answer(description: str, content: Document | None = None) -> Document:
    return {"description": description} | ({"content": content} if content else {})


def _operation(
    summary: str, tag: str, answer: Document, *, is_open: bool = False, **more: Any
) -> Document:
    refused = _answer("An error, with its reason.", _json(_ref("Error")))
    responses = {"200": _answer("The answer.", answer), "default": refused}
    operation = {"summary": summary, "tags": [tag], "responses": responses, **more}
    return operation | ({"security": []} if is_open else {})


def _parameter(name: str, where: str, description: str, **schema: Any) -> Document:
    return {
        "name": name,
        "in": where,
        "description": description,
        "required": where == "path",
        "schema": _TEXT | schema,
    }


def openapi(specs: Iterable[ModelSpec], *, needs_token: bool, metrics: bool = True) -> Document:
    """Describe the routes.

    Args:
        needs_token: Whether callers need a token.
        metrics: Whether the metrics page is served.
    """
    document: Document = {
        "openapi": "3.1.0",
        "info": {
            "title": "ksrv",
            "version": __version__,
            "description": "Inference by KServe's protocols v2 and v1.",
        },
        "paths": _server_paths(metrics),
        "components": {"schemas": dict(_SCHEMAS)},
    }
    for spec in specs:
        document["paths"] |= _model_paths(spec)
    if needs_token:
        bearer = {"type": "http", "scheme": "bearer"}
        document["components"]["securitySchemes"] = {"token": bearer}
        document["security"] = [{"token": []}]
    return document


def _server_paths(metrics: bool) -> Document:
    model = {
        "parameters": [
            _parameter("model", "path", "The model's name.", pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")
        ]
    }
    unready = _answer("Not ready, and why.", _json(_OBJECT))
    ready = _operation("Whether the models serve", "health", _json(_OBJECT), is_open=True)
    ready["responses"]["503"] = unready
    index: Document = {"requestBody": {"content": _json(_ref("IndexRequest"))}}
    change: Document = {"requestBody": {"content": _json(_ref("LoadRequest"))}}
    paths: Document = {
        "/v2": {"get": _operation("The server and its extensions", "server", _json(_OBJECT))},
        "/v2/health/live": {
            "get": _operation("Whether the server lives", "health", _json(_OBJECT), is_open=True)
        },
        "/v2/health/ready": {"get": ready},
        "/v2/models": {"get": _operation("The models", "server", _json(_ref("Models")))},
        "/v2/models/stats": {
            "get": _operation("The statistics of all models", "server", _json(_OBJECT))
        },
        "/v2/repository/index": {
            "post": _operation(
                "Every model and version with its state",
                "repository",
                _json({"type": "array", "items": _OBJECT}),
                **index,
            )
        },
        "/v2/logging": {
            "get": _operation("The log settings", "server", _json(_ref("LogSettings"))),
            "post": _operation(
                "Change the log settings",
                "server",
                _json(_ref("LogSettings")),
                requestBody={"content": _json(_ref("LogSettings"))},
            ),
        },
        "/v2/trace/setting": _trace_operations("server"),
        "/v1/models": {"get": _operation("The models", "v1", _json(_ref("Models")))},
        "/v1/embeddings": _openai_operation("Vectors of texts", ["model", "input"]),
        "/v1/rerank": _openai_operation("Documents by a query", ["model", "query", "documents"]),
    }
    for verb in ("load", "unload"):
        operation = _operation(f"{verb.title()} a model", "repository", _json(_OBJECT), **change)
        paths[f"/v2/repository/models/{{model}}/{verb}"] = {**model, "post": operation}
    if metrics:
        page = {"text/plain": {"schema": _TEXT}}
        paths["/metrics"] = {"get": _operation("Metrics for Prometheus", "server", page)}
    return paths


def _openai_operation(summary: str, required: list[str]) -> Document:
    schema = {
        "type": "object",
        "required": required,
        "properties": {"model": _TEXT},
    }
    body = {"required": True, "content": _json(schema)}
    operation = _operation(summary, "openai", _json(_OBJECT), requestBody=body)
    # Errors of the route have OpenAI's form; errors of every route (credentials, limits) have ksrv's.
    either = {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"oneOf": [_TEXT, _OBJECT]}},
    }
    operation["responses"]["default"] = _answer("An error, with its reason.", _json(either))
    return {"post": operation}


def _trace_operations(tag: str) -> Document:
    settings = _json(_ref("TraceSettings"))
    change = _operation(
        "Change the trace settings", tag, settings, requestBody={"content": settings}
    )
    return {"get": _operation("The trace settings", tag, settings), "post": change}


def _model_paths(spec: ModelSpec) -> Document:
    name = spec.name
    base = f"/v2/models/{name}"
    ready = _operation("Whether the model serves", name, _json(_OBJECT))
    return {
        base: {"get": _operation("Inputs and outputs", name, _json(_ref("ModelMetadata")))},
        f"{base}/ready": {"get": ready},
        f"{base}/config": {"get": _operation("Configuration", name, _json(_OBJECT))},
        f"{base}/trace/setting": _trace_operations(name),
        f"{base}/stats": {"get": _operation("The model's statistics", name, _json(_OBJECT))},
        f"{base}/infer": {"post": _infer(spec)},
        f"{base}/generate": {"post": _generate(spec, _json({"type": ["object", "array"]}))},
        f"{base}/generate_stream": {"post": _generate(spec, {"text/event-stream": {}})},
        f"/v1/models/{name}": {"get": _operation("Whether the model serves", name, _json(_OBJECT))},
        f"/v1/models/{name}:predict": {"post": _predict(spec)},
    }


def _infer(spec: ModelSpec) -> Document:
    content: Document = {"application/json": {"schema": _request_schema(spec)}}
    example = _example(spec)
    if example is not None:
        content["application/json"]["example"] = example
    content["application/octet-stream"] = {"schema": _FILE}
    images = [entry for entry in spec.inputs if entry.image is not None]
    parameters = [
        _parameter(
            "Inference-Header-Content-Length",
            "header",
            "Bytes of the JSON in front of binary tensors.",
            pattern="^[0-9]{1,10}$",
        )
    ]
    if images:
        for entry in images:
            for form in entry.image.formats if entry.image else ():
                content[_IMAGE_TYPES[form]] = {"schema": _FILE}
        parameters.append(_parameter("input", "query", "The input that an image alone is for."))
        names = [entry.name for entry in spec.required_inputs]
        content["multipart/form-data"] = {
            "schema": {
                "type": "object",
                "properties": {entry.name: _form_field(entry) for entry in spec.inputs},
                "required": names,
            }
        }
    answer = _json(_response_schema(spec)) | {"application/octet-stream": {"schema": _FILE}}
    if [entry.datatype for entry in spec.outputs] == ["BYTES"]:  # of one element, alone
        answer |= {"audio/*": {"schema": _FILE}, "image/*": {"schema": _FILE}}
    return _operation(
        f"Run {spec.name}",
        spec.name,
        answer,
        parameters=parameters,
        requestBody={"required": True, "content": content},
    )


def _form_field(tensor: TensorSpec) -> Document:
    if tensor.image is None and tensor.datatype != "BYTES":
        return {"type": "string", "description": "A number, or a list of numbers, in JSON."}
    return {"type": "array", "items": _FILE}


def _generate(spec: ModelSpec, answer: Document) -> Document:
    content = _json(_OBJECT)
    if spec.inputs and not spec.accepts_any_inputs:
        row: Document = {
            "type": "object",
            "properties": {entry.name: _plain_schema(entry) for entry in spec.inputs},
        }
        if spec.sequences is not None:
            row["properties"]["parameters"] = _ref("SequenceParameters")
        several = {"type": "array", "items": row, "minItems": 1}
        content = _json({"anyOf": [row, several]})
        example = _plain_example(spec)
        if example is not None:
            content["application/json"]["example"] = example
    body = {"required": True, "content": content}
    summary = f"Run {spec.name} by plain JSON" + (
        ", part by part" if "text/event-stream" in answer else ""
    )
    return _operation(summary, spec.name, answer, requestBody=body)


def _plain_schema(tensor: TensorSpec) -> Document:
    """Return the schema of an input in plain JSON: the value of one row, or of several."""
    kind = "string" if tensor.datatype == "BYTES" or tensor.image is not None else "number"
    kind = "boolean" if tensor.datatype == "BOOL" else kind
    shown = f"{tensor.datatype} of the shape {list(tensor.wire_shape)}"
    if tensor.image is not None:
        return {"type": "string", "description": "A picture in base64, or a data URL."}
    value: Document = {"type": kind}
    for _ in tensor.shape[1 if tensor.batched else 0 :]:
        value = {"type": "array", "items": value}
    if not tensor.batched:
        return {"description": shown} | value
    rows = {"type": "array", "items": value, "minItems": 1}
    return {"description": f"{shown}: the value of a row, or of several", "anyOf": [value, rows]}


def _plain_example(spec: ModelSpec) -> Document | None:
    """Return one row in plain JSON, or None where it would be long."""
    example: Document = {}
    for tensor in spec.required_inputs:
        if tensor.image is not None:
            value: object = _picture(tensor)
        else:
            sizes = _sizes(tensor)
            if math.prod(sizes) > EXAMPLE_VALUES:
                return None
            value = _ONE_VALUE.get(tensor.datatype, 0)
            for size in reversed(sizes[1:] if tensor.batched else sizes):
                value = [value] * size
        if value is None:
            return None
        example[tensor.name] = value
    return example | ({"parameters": _ONE_SEQUENCE} if spec.sequences else {})


def _sizes(tensor: TensorSpec) -> list[int]:
    """Return the sizes of an example, the dimension of rows among them."""
    return [
        max(1, size[0]) if isinstance(size, tuple) else (1 if size == -1 else size)
        for size in tensor.shape
    ]


def _picture(tensor: TensorSpec) -> str | None:
    """Return a grey picture that the input takes, as a data URL; None where it takes no PNG."""
    if tensor.image is None or "png" not in tensor.image.formats:
        return None
    *_, height, width, channels = _sizes(tensor)
    if tensor.image.resize != "none" or 1 in (height, width):
        height = width = 8
    colours = 0 if channels == 1 else 2
    rows = (b"\0" + b"\x80" * (width * (1 if channels == 1 else 3))) * height
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def _predict(spec: ModelSpec) -> Document:
    body = _json(_ref("PredictRequest"))
    return _operation(
        f"Run {spec.name} by protocol v1",
        spec.name,
        _json(_ref("PredictResponse")),
        requestBody={"required": True, "content": body},
    )


def _dimension(size: Dimension) -> Document:
    if isinstance(size, tuple):
        return {"type": "integer", "minimum": size[0], "maximum": size[1]}
    if size == -1:
        return {"type": "integer", "minimum": 1}
    return {"type": "integer", "const": size}


def _shape(shape: tuple[Dimension, ...]) -> Document:
    return {
        "type": "array",
        "prefixItems": [_dimension(size) for size in shape],
        "minItems": len(shape),
        "maxItems": len(shape),
    }


def _datatype(tensor: TensorSpec) -> list[str]:
    return [tensor.datatype] + (["BYTES"] if tensor.image is not None else [])


def _request_schema(spec: ModelSpec) -> Document:
    inputs: Document = {"type": "array", "items": _ref("Input")}
    if spec.inputs and not spec.accepts_any_inputs:
        inputs = {
            "type": "array",
            "items": {"anyOf": [_input_schema(entry) for entry in spec.inputs]},
            "minItems": len(spec.required_inputs),
            "maxItems": len(spec.inputs),
        }
    outputs: Document = {"type": "array", "items": _ref("Output")}
    has_sequences = spec.sequences is not None
    return {
        "type": "object",
        "required": ["inputs", "parameters"] if has_sequences else ["inputs"],
        "properties": {
            "id": _TEXT,
            "parameters": _ref("SequenceParameters" if has_sequences else "Parameters"),
            "inputs": inputs,
            "outputs": outputs,
        },
    }


def _input_schema(tensor: TensorSpec) -> Document:
    properties: Document = {
        "name": {"const": tensor.name},
        "datatype": {"enum": _datatype(tensor)},
        "shape": _shape(tensor.shape),
        "parameters": _ref("Parameters"),
        "data": {"type": "array", "description": _data_text(tensor)},
    }
    if tensor.image is not None:
        properties["shape"] = {"anyOf": [_shape(tensor.shape), _shape((-1,))]}
    return {
        "type": "object",
        "title": tensor.name,
        "required": ["name", "shape", "datatype"],
        "properties": properties,
    }


def _data_text(tensor: TensorSpec) -> str:
    if tensor.image is not None:
        return "The numbers, or for BYTES the images in base64."
    return "One string for each element." if tensor.datatype == "BYTES" else "The numbers."


def _response_schema(spec: ModelSpec) -> Document:
    output: Document = {
        "type": "object",
        "required": ["name", "shape", "datatype"],
        "properties": {
            "name": _TEXT,
            "shape": {"type": "array", "items": {"type": "integer"}},
            "datatype": {"enum": [*DTYPES, "BYTES"]},
            "parameters": _OBJECT,
            "data": {
                "type": "array",
                "description": 'Texts that are not UTF-8 are {"b64": ...}; "binary_data": "base64" asks for base64.',
            },
        },
    }
    if spec.outputs:
        output["properties"]["name"] = {"enum": [entry.name for entry in spec.outputs]}
    return {
        "type": "object",
        "required": ["model_name", "outputs"],
        "properties": {
            "model_name": _TEXT,
            "model_version": _TEXT,
            "id": _TEXT,
            "parameters": _OBJECT,
            "outputs": {"type": "array", "items": output},
        },
    }


def _example(spec: ModelSpec) -> Document | None:
    """Return a request of one row, or None where it would be long."""
    inputs = []
    for tensor in spec.required_inputs:
        entry: Document
        if tensor.image is not None:
            picture = _picture(tensor)
            if picture is None:
                return None
            entry = {"name": tensor.name, "shape": [1], "datatype": "BYTES", "data": [picture]}
        else:
            shape = _sizes(tensor)
            count = math.prod(shape)
            if count > EXAMPLE_VALUES:
                return None
            values = [_ONE_VALUE.get(tensor.datatype, 0)] * count
            entry = {"name": tensor.name, "shape": shape, "datatype": tensor.datatype}
            entry["data"] = values
        inputs.append(entry)
    if not inputs:
        return None
    return {"inputs": inputs} | ({"parameters": _ONE_SEQUENCE} if spec.sequences else {})


_ONE_VALUE: Document = {"BYTES": "text", "BOOL": True}
_PARAMETER: Document = {"type": ["string", "number", "boolean"]}
_ONE_SEQUENCE: Document = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
_SCHEMAS: Document = {
    "Error": {"type": "object", "required": ["error"], "properties": {"error": _TEXT}},
    "Models": {
        "type": "object",
        "required": ["models"],
        "properties": {"models": {"type": "array", "items": _TEXT}},
    },
    "Parameters": {"type": "object", "additionalProperties": _PARAMETER},
    "SequenceParameters": {
        "type": "object",
        "required": ["sequence_id"],
        "properties": {
            "sequence_id": {
                "description": "The sequence; the bound of a text is in bytes.",
                "anyOf": [
                    {"type": "integer", "minimum": 1, "maximum": LARGEST_SEQUENCE_ID},
                    {"type": "string", "minLength": 1, "maxLength": LONGEST_SEQUENCE_ID},
                ],
            },
            "sequence_start": {"type": "boolean", "description": "Whether a sequence begins."},
            "sequence_end": {"type": "boolean", "description": "Whether the sequence ends."},
        },
        "additionalProperties": _PARAMETER,
    },
    "Input": {
        "type": "object",
        "required": ["name", "shape", "datatype"],
        "properties": {
            "name": _TEXT,
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "datatype": {"enum": [*DTYPES, "BYTES"]},
            "parameters": _ref("Parameters"),
            "data": {"type": "array"},
        },
    },
    "Output": {
        "type": "object",
        "required": ["name"],
        "properties": {"name": _TEXT, "parameters": _ref("Parameters")},
    },
    "ModelMetadata": {
        "type": "object",
        "required": ["name", "platform", "inputs", "outputs"],
        "properties": {
            "name": _TEXT,
            "versions": {"type": "array", "items": _TEXT},
            "platform": _TEXT,
            "inputs": {"type": "array", "items": _OBJECT},
            "outputs": {"type": "array", "items": _OBJECT},
            "properties": _OBJECT,
        },
    },
    "IndexRequest": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
    "LoadRequest": _OBJECT,
    "LogSettings": {
        "type": "object",
        "properties": {
            "log_info": {"type": "boolean"},
            "log_warning": {"type": "boolean"},
            "log_error": {"type": "boolean"},
            "log_verbose_level": {"type": "integer", "minimum": 0},
        },
    },
    "TraceSettings": {
        "type": "object",
        "properties": {
            "trace_level": {
                "type": ["array", "null"],
                "items": {"type": "string", "enum": ["OFF", "TIMESTAMPS"]},
                "minItems": 1,
                "maxItems": 1,
            },
            "trace_rate": {"type": ["string", "null"], "pattern": "^[1-9][0-9]{0,8}$"},
        },
    },
    "PredictRequest": {
        "type": "object",
        "required": ["instances"],
        "properties": {"instances": {"type": "array", "minItems": 1}},
    },
    "PredictResponse": {
        "type": "object",
        "required": ["predictions"],
        "properties": {"predictions": {"type": ["array", "object"]}},
    },
}
