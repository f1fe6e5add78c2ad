"""Makes the OpenAPI document of the REST routes, with the inputs and outputs of each model that serves.

Code generators and Swagger UI read it. The call that adds a route to the app describes it by `Operation`s; `openapi`
makes the document from the described routes. The classes in `ksrv.protocol.documents` give the schemas, which are
completed with each model's inputs and outputs.
"""

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from ksrv import __version__
from ksrv.model.spec import Dimension, ModelSpec, TensorSpec
from ksrv.protocol.documents import (
    Error,
    InferRequest,
    InferResponse,
    Input,
    Output,
    ResponseOutput,
    SequenceParameters,
)

Document = dict[str, Any]

EXAMPLE_VALUES = 64
"""The most values of an input in an example; a model with a larger input has no example."""

_TEXT: Document = {"type": "string"}
_FILE: Document = {"type": "string", "format": "binary"}
_REF = "#/components/schemas/{name}"

Body: TypeAlias = Any
"""The class of a JSON body, or a function that returns the bodies for a model, by their media types."""


class Operation(NamedTuple):
    """The description of one method of a route.

    Attributes:
        summary: Its purpose; `{name}` becomes the name of the model.
        tag: The group of operations in the document; "" for the group of the model.
        answer: The body of the answer.
        body: The body of the request; None without one.
        error: The class of the answer to a request that failed.
        parameters: Returns the parameters of a request to a model, except the parameters in the path.
    """

    summary: str
    tag: str = ""
    answer: Body = dict
    body: Body = None
    error: type[Any] = Error
    parameters: Callable[[ModelSpec], list[Document]] = lambda spec: []


class DescribedRoute(NamedTuple):
    """A route and its operations by the names of their methods in lower case.

    Attributes:
        path: The template of its path. If it has `{name}` and an operation without a tag, each model has the route.
        is_open: Whether callers need no credentials.
    """

    path: str
    operations: Mapping[str, Operation]
    is_open: bool = False


def openapi(
    routes: Iterable[DescribedRoute], specs: Iterable[ModelSpec], *, needs_token: bool
) -> Document:
    """Describe the routes.

    Args:
        specs: The models that serve.
        needs_token: Whether callers need a token.
    """
    paths: Document = {}
    kinds: list[Any] = [Error, Input, Output, SequenceParameters]
    models = list(specs)
    for route in routes:
        of_model = any(not op.tag for op in route.operations.values())
        for spec in models if of_model else (None,):
            path = route.path if spec is None else route.path.replace("{name}", spec.name)
            paths[path] = {
                method: _operation(op, route, spec) for method, op in route.operations.items()
            }
            if fields := re.findall(r"{(\w+)}", path):
                paths[path]["parameters"] = [_path_field(name) for name in fields]
        for op in route.operations.values():
            kinds += [kind for kind in (op.answer, op.body, op.error) if _is_class(kind)]
    _, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    document: Document = {
        "openapi": "3.1.0",
        "info": {
            "title": "ksrv",
            "version": __version__,
            "description": "Inference by KServe's protocols v2 and v1.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }
    if needs_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _is_class(kind: Any) -> bool:
    return kind is not None and not isinstance(kind, FunctionType)


def _operation(operation: Operation, route: DescribedRoute, spec: ModelSpec | None) -> Document:
    error = {
        "description": "An error, with its reason.",
        "content": json_content(schema_of(operation.error)),
    }
    answer = {"description": "The answer.", "content": _content(operation.answer, spec)}
    name = "" if spec is None else spec.name
    document: Document = {
        "summary": operation.summary.format(name=name),
        "tags": [operation.tag or name],
        "responses": {"200": answer, "default": error},
    }
    if operation.body is not None:
        # Control calls, which are read into structs, take an empty body.
        optional = _is_class(operation.body) and issubclass(operation.body, msgspec.Struct)
        content = _content(operation.body, spec)
        document["requestBody"] = {"required": not optional, "content": content}
    if spec is not None and (parameters := operation.parameters(spec)):
        document["parameters"] = parameters
    return document | ({"security": []} if route.is_open else {})


def _content(body: Body, spec: ModelSpec | None) -> Document:
    return json_content(schema_of(body)) if _is_class(body) else body(spec)


def _inline(kind: type[Any]) -> Document:
    """Return the schema of a class as a new dictionary, not as a reference, so that it can be changed for a model."""
    _, components = msgspec.json.schema_components([kind], ref_template=_REF)
    found: Document = components[kind.__name__]
    return found


def schema_of(kind: Any) -> Document:
    """Return the schema of a class; for a class with a name it is a reference to the components."""
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF)
    return schema


def json_content(schema: Document) -> Document:
    """Return the content of a JSON body."""
    return {"application/json": {"schema": schema}}


def _path_field(name: str) -> Document:
    schema = _TEXT | {"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$"}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _infer_body(spec: ModelSpec) -> Document:
    content = json_content(_request_schema(spec))
    example = _infer_example(spec)
    if example is not None:
        content["application/json"]["example"] = example
    content["application/octet-stream"] = {"schema": _FILE}
    images = [entry.image for entry in spec.inputs if entry.image is not None]
    content |= {f"image/{form}": {"schema": _FILE} for image in images for form in image.formats}
    if any(entry.audio is not None for entry in spec.inputs):
        content["audio/*"] = {"schema": _FILE}
    if any(entry.takes_files for entry in spec.inputs):
        content["multipart/form-data"] = {
            "schema": {
                "type": "object",
                "properties": {entry.name: _form_field(entry) for entry in spec.inputs},
                "required": [entry.name for entry in spec.required_inputs],
            }
        }
    return content


def _infer_parameters(spec: ModelSpec) -> list[Document]:
    """Return the parameters of an infer request, except the parameters in the path."""
    parameters: list[Document] = [
        {
            "name": "Inference-Header-Content-Length",
            "in": "header",
            "description": "Bytes of the JSON in front of binary tensors.",
            "schema": _TEXT | {"pattern": "^[0-9]{1,10}$"},
        }
    ]
    if any(entry.takes_files for entry in spec.inputs):
        text = "The input that gets the file, if the body is only a file."
        parameters.append({"name": "input", "in": "query", "description": text, "schema": _TEXT})
    return parameters


def _infer_answer(spec: ModelSpec) -> Document:
    content = json_content(_response_schema(spec)) | {"application/octet-stream": {"schema": _FILE}}
    if [entry.datatype for entry in spec.outputs] == ["BYTES"]:  # one element can be the whole body
        declared = spec.outputs[0].content_type
        types = [declared] if declared else ["audio/*", "image/*"]
        content |= {kind: {"schema": _FILE} for kind in types}
    return content


def _form_field(tensor: TensorSpec) -> Document:
    if not tensor.takes_files and tensor.datatype != "BYTES":
        return {"type": "string", "description": "A number, or a list of numbers, in JSON."}
    return {"type": "array", "items": _FILE}


def _sizes(tensor: TensorSpec) -> list[int]:
    """Return the shape of an example: the smallest sizes that the input takes, and one row."""
    return [
        max(1, size[0]) if isinstance(size, tuple) else (1 if size == -1 else size)
        for size in tensor.shape
    ]


def _picture(tensor: TensorSpec) -> str | None:
    """Return a grey PNG that the input accepts, as a data URL; None if it accepts no PNG."""
    if tensor.image is None or "png" not in tensor.image.formats:
        return None
    *_, height, width, channels = _sizes(tensor)
    if tensor.image.resize != "none" or 1 in (height, width):
        height = width = 8
    import cv2  # here, because it takes long to import

    grey = np.full((height, width, 1 if channels == 1 else 3), 128, np.uint8)
    _, content = cv2.imencode(".png", grey)
    return f"data:image/png;base64,{base64.b64encode(content.tobytes()).decode()}"


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


def _request_schema(spec: ModelSpec) -> Document:
    schema = _inline(InferRequest)
    properties = schema["properties"]
    if spec.inputs and not spec.accepts_any_inputs:
        properties["inputs"] = {
            "type": "array",
            "items": {"anyOf": [_input_schema(entry) for entry in spec.inputs]},
            "minItems": len(spec.required_inputs),
            "maxItems": len(spec.inputs),
        }
    if spec.sequences is not None:
        schema["required"].append("parameters")
        properties["parameters"] = schema_of(SequenceParameters)
    return schema


def _input_schema(tensor: TensorSpec) -> Document:
    schema = _inline(Input)
    schema["title"] = tensor.name
    shape, datatypes = _shape(tensor.shape), [tensor.datatype]
    text = "One string for each element." if tensor.datatype == "BYTES" else "The numbers."
    if tensor.takes_files:
        shape, datatypes = {"anyOf": [shape, _shape((-1,))]}, [tensor.datatype, "BYTES"]
        text = "The numbers, or for BYTES the files in base64."
    schema["properties"] |= {
        "name": {"const": tensor.name},
        "datatype": {"enum": datatypes},
        "shape": shape,
        "data": {"type": "array", "description": text},
    }
    return schema


def _response_schema(spec: ModelSpec) -> Document:
    schema, output = _inline(InferResponse), _inline(ResponseOutput)
    if spec.outputs:
        output["properties"]["name"] = {"enum": [entry.name for entry in spec.outputs]}
    schema["properties"]["outputs"]["items"] = output
    return schema


def example_values(spec: ModelSpec) -> Document | None:
    """Return the values of each required input for one row, nested by its shape, or None if an input is too large."""
    found: Document = {}
    for tensor in spec.required_inputs:
        sizes = _sizes(tensor)
        value: Any = _picture(tensor)
        if tensor.image is None and math.prod(sizes) <= EXAMPLE_VALUES:
            value = {"BYTES": "text", "BOOL": True}.get(tensor.datatype, 0)
        if value is None:
            return None
        for size in [1] if tensor.image is not None else reversed(sizes):
            value = [value] * size
        found[tensor.name] = value
    return found


def with_sequence(example: Document, spec: ModelSpec) -> Document:
    """Return an example with the parameters that a model with sequences needs."""
    of_sequence = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    return example | ({"parameters": of_sequence} if spec.sequences else {})


def _infer_example(spec: ModelSpec) -> Document | None:
    values = example_values(spec)
    if not values:
        return None
    inputs = [
        {"name": tensor.name, "shape": [1], "datatype": "BYTES", "data": values[tensor.name]}
        if tensor.image is not None
        else {
            "name": tensor.name,
            "shape": _sizes(tensor),
            "datatype": tensor.datatype,
            "data": values[tensor.name] if tensor.shape else [values[tensor.name]],
        }
        for tensor in spec.required_inputs
    ]
    return with_sequence({"inputs": inputs}, spec)


INFER = Operation("Run {name}", "", _infer_answer, _infer_body, parameters=_infer_parameters)
METRICS = Operation(
    "Metrics for Prometheus", "server", lambda spec: {"text/plain": {"schema": _TEXT}}
)
