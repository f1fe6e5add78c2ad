"""Reads an `InferRequest` from the body of a REST request, and writes an `InferResponse` as the body of an answer.

`parse_infer` takes a body in one of three forms:

- JSON, which binary tensors may follow (`_document`). A native reader reads the JSON; this module adds what depends on
  the model, such as which inputs take images.
- The bytes of the model's only input, with the header length 0 (`_raw_request`).
- An image or a form (`forms/uploads.py`), recognised if the body does not begin with "{".

`render_infer` returns the parts of an answer, to be written one after the other, so that no tensor is copied. The
answer is JSON, JSON followed by binary tensors, or the bytes of a single element (`file_body`).
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ksrv._native.infer import infer_body as native
from ksrv._native.infer.infer_body import BodyError, Bounds, Input
from ksrv._native.tensor import bytes_tensor
from ksrv._native.tensor.bytes_tensor import ElementsError
from ksrv.errors import BodyTooLarge, InvalidRequest, quote
from ksrv.limits import Limits, show_limit
from ksrv.model.datatypes import BINARY_ONLY, DTYPES
from ksrv.model.sounds import is_sound
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.protocol.accept import BINARY_TYPE, JSON_TYPE, accepted, file_type
from ksrv.protocol.error_texts import body_fault, json_too_large
from ksrv.protocol.forms.uploads import read_upload
from ksrv.protocol.json_data import CONTENT_TYPE, elements_in_json, read_data
from ksrv.protocol.parameters import (
    BASE64,
    BINARY_DATA,
    take_input_parameters,
    take_request_parameters,
    take_requested_outputs,
)
from ksrv.protocol.shared_memory import CallerMemory, enabled
from ksrv.protocol.tensors import check_bool, contiguous, subject, tensor_bytes
from ksrv.protocol.tensors import view as view_tensor
from ksrv.request import (
    MEDIA_TYPE,
    Array,
    Element,
    InferRequest,
    InferResponse,
    Parameter,
    Parameters,
    RequestedOutput,
    SharedMemoryRef,
    Tensor,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER_LENGTH = "Inference-Header-Content-Length"

_OBJECT = ord("{")
_NO_HEADERS: Mapping[str, str] = {}


@dataclass(slots=True)
class RenderedBody:
    """The body of an answer.

    Attributes:
        parts: The bytes to write, in order.
        content_length: The bytes of all parts.
        header_length: The bytes of the JSON header when binary data follows it, else None.
        content_type: The value for `Content-Type`.
    """

    parts: list[bytes | memoryview]
    content_length: int
    header_length: int | None
    content_type: str


# ---- requests ------------------------------------------------------------------------------------


def parse_infer(
    body: "Buffer",
    header_length: str | None,
    spec: ModelSpec,
    limits: Limits,
    *,
    headers: Mapping[str, str] = _NO_HEADERS,
    memory: CallerMemory | None = None,
    input_name: str | None = None,
) -> InferRequest:
    """Read the body of an infer request.

    Args:
        body: The whole body, as any C-contiguous buffer; tensors become views into it.
        header_length: The text of `Inference-Header-Content-Length`, or None without that header.
        spec: The called model.
        headers: The request's headers for the handler, names in lower case.
        memory: The shared memory that the request may name; None if that is off.
        input_name: The input for a body that is an image, if the path names it.

    Returns:
        The request. Its names and shapes are not yet compared with the model's.

    Raises:
        InvalidRequest: The body is not a well-formed infer request.
        BodyTooLarge: The body or its JSON is above a limit.
    """
    view = memoryview(body)
    if view.ndim != 1 or view.format != "B":
        view = view.cast("B")
    size = len(view)
    if size > limits.body:
        raise BodyTooLarge(
            f"the body has {size} bytes, above the {show_limit('body', limits.body)}"
        )
    json_length = _json_length(header_length, size)
    upload = None
    is_raw = json_length == 0 and header_length is not None
    if is_raw:
        request = _raw_request(view, spec)
        types = _accepted(headers)  # the answer is binary, unless they name JSON and not everything
        request.binary_output = JSON_TYPE not in types or "*/*" in types
    else:
        if header_length is None and size and view[0] != _OBJECT:
            kind = headers.get("content-type", "")
            upload = read_upload(view, kind, spec, limits, input_name)
        if upload is None:
            request = _document(view, json_length, spec, limits, memory)
        elif upload.document is None:
            request = InferRequest(spec.name)
        else:
            document = upload.document
            request = _document(document, len(document), spec, limits, memory)
        if upload is not None:
            request.inputs += upload.tensors
            request.binary_output |= BINARY_TYPE in _accepted(headers)
            # `_document` has counted the JSON and shared memory, and not the files of a form.
            request.nbytes = max(size, request.nbytes)
    # A client that names binary outputs in its JSON gets them, and not a file.
    in_json = not is_raw and upload is None
    if not (in_json and (request.binary_output or any(asked.binary for asked in request.outputs))):
        request.accept, request.prefers_file = headers.get("accept", ""), upload is not None
    request.model_version = spec.version
    request.headers = headers
    return request


def _json_length(header_length: str | None, body_length: int) -> int:
    """Return the bytes of the JSON header: all of the body without `Inference-Header-Content-Length`."""
    if header_length is None:
        return body_length
    if not (header_length.isascii() and header_length.isdigit()):
        raise InvalidRequest(
            f"{HEADER_LENGTH} must be an unsigned decimal number, got {quote(header_length)}"
        )
    length = int(header_length) if len(header_length) <= 10 else None
    if length is None or length > body_length:
        raise InvalidRequest(
            f"{HEADER_LENGTH} should be in range (0, {body_length}), the size of the body, got "
            f"{quote(header_length)}"
        )
    return length


def _accepted(headers: Mapping[str, str]) -> frozenset[str]:
    """Return the media types that the client's `Accept` names, in lower case."""
    return frozenset(name for name, _ in accepted(headers.get("accept")))


def _document(
    view: memoryview, json_length: int, spec: ModelSpec, limits: Limits, memory: CallerMemory | None
) -> InferRequest:
    """Read a request in JSON, followed by the binary tensors."""
    size = len(view)
    if json_length > limits.json:
        raise json_too_large(json_length, limits.json)
    try:
        header = native.read(view, json_length, _bounds(limits, spec.accepts_any_inputs))
    except BodyError as error:
        raise body_fault(error, view) from None
    reserved = take_request_parameters(header.parameters)
    inputs: list[Tensor] = []
    refs: dict[int, SharedMemoryRef] = {}
    for index, entry in enumerate(header.inputs):
        parameters, ref = take_input_parameters(entry.name, index, entry.parameters)
        inputs.append(_tensor(view, entry, index, spec, parameters))
        if ref is not None:
            refs[index] = ref
    if refs:
        first = min(refs)
        size = enabled(memory, subject(inputs[first].name, first)).read(
            inputs, refs, takes_images=partial(_takes_images, spec), received=size, limits=limits
        )
    return InferRequest(
        model_name=spec.name,
        id=header.id,
        inputs=inputs,
        outputs=take_requested_outputs(header.outputs, memory),
        parameters=reserved.custom,
        binary_output=reserved.binary_output,
        deadline_ns=reserved.deadline_ns,
        priority=reserved.priority,
        mark_final=reserved.mark_final,
        nbytes=size,
    )


@lru_cache(maxsize=8)
def _bounds(limits: Limits, open_texts: bool) -> Bounds:
    """Return limits in the form of the native reader.

    Args:
        open_texts: Whether the shape of BYTES may be [-1].
    """
    return Bounds(
        depth=limits.json_depth,
        rank=limits.rank,
        dimension=limits.dimension,
        inputs=limits.inputs,
        parameters=limits.parameters,
        size_list=limits.size_list,
        open_texts=open_texts,
    )


def _tensor(
    body: memoryview, entry: Input, index: int, spec: ModelSpec, parameters: Parameters
) -> Tensor:
    """Return an input, with its data in JSON or binary; an input in shared memory has no data yet."""
    data: Array | list[Element]
    if entry.in_shared_memory:
        data = []
    elif entry.array is not None:
        data = entry.array
    elif entry.data is not None:
        is_file = (declared := spec.input(entry.name)) is not None and declared.takes_files
        data = read_data(body, entry, index, is_file=is_file, open_texts=spec.accepts_any_inputs)
    else:
        data = _read_elements(
            body[entry.offset : entry.offset + entry.length],
            entry.elements,
            entry.sizes,
            _takes_images(spec, entry.name),
            entry.name,
        )
    is_list = isinstance(data, list) and not entry.in_shared_memory
    shape = (len(data),) if is_list and len(data) != entry.elements else entry.shape
    return Tensor(entry.name, entry.datatype, shape, data, parameters)


def _takes_images(spec: ModelSpec, name: str) -> bool:
    """Tell whether a single BYTES element of an input may lack the length prefix, as images may."""
    declared = spec.input(name)
    # An input of numbers, too: the engine's validation then refuses the file because the input takes no images, which
    # helps the client more than an error about length prefixes.
    return declared is not None and (declared.image is not None or declared.datatype != "BYTES")


def _read_elements(
    body: memoryview, count: int, sizes: tuple[int, ...] | None, is_image: bool, name: str
) -> list[Element]:
    try:
        return bytes_tensor.read(body, count, sizes, is_image, name)
    except ElementsError as error:
        raise InvalidRequest(str(error)) from None


def _raw_request(body: memoryview, spec: ModelSpec) -> InferRequest:
    """Read a body that is the data of the model's only input (header length 0): a tensor, or one BYTES element."""
    inputs = spec.required_inputs or spec.inputs
    if len(inputs) != 1:
        raise InvalidRequest(
            f"a raw binary request ({HEADER_LENGTH}: 0) needs a model with one input, and this model "
            f"declares {len(inputs)}"
        )
    declared = inputs[0]
    name = quote(declared.name)
    is_element = declared.datatype == "BYTES" or (
        declared.image is not None and bytes_tensor.signature(body) is not None
    )
    is_element = is_element or (declared.audio is not None and is_sound(body))
    batches = (spec.max_batch_size or spec.row_limit) > 0
    shape = None if is_element else _raw_shape(declared, batches, len(body))
    if shape is not None:
        array = view_tensor(body, 0, declared.datatype, shape, math.prod(shape))
        if declared.datatype == "BOOL":
            check_bool(declared.name, 0, array)
        tensor = Tensor(declared.name, declared.datatype, shape, array)
    elif is_element or declared.image is not None:
        rank = max(len(declared.shape), 1) if declared.datatype == "BYTES" else 1
        free = all(entry in (1, -1) or isinstance(entry, tuple) for entry in declared.shape)
        if declared.datatype == "BYTES" and not free:
            raise InvalidRequest(
                f"a raw binary request holds one BYTES element, but input {name} takes the shape "
                f"{list(declared.wire_shape)}"
            )
        tensor = Tensor(declared.name, "BYTES", (1,) * rank, [body])
    else:
        if declared.wire_shape[batches:].count(-1) > 1:  # True as an index: without the rows
            raise InvalidRequest(
                f"a raw binary request needs an input with at most one variable dimension besides that of a batch, "
                f"and input {name} has the shape {declared.wire_shape}"
            )
        raise InvalidRequest(
            f"input byte size mismatch for input {name}: the {len(body)} bytes of the raw binary "
            f"request do not fill {declared.datatype} of shape {declared.wire_shape}"
        )
    return InferRequest(spec.name, inputs=[tensor], binary_output=True, nbytes=len(body))


def _raw_shape(declared: TensorSpec, batches: bool, body_length: int) -> tuple[int, ...] | None:
    """Return the shape of a raw tensor with the length of the body, or None if no shape fits.

    If only the number of rows is open, it follows from the length. If another size of a model that batches is open too,
    the tensor has one row, as in Triton.
    """
    sizes = [entry if isinstance(entry, int) else -1 for entry in declared.shape]
    if batches and declared.batched and sizes.count(-1) > 1:
        sizes[0] = 1
    free = sizes.count(-1)
    row = math.prod(size for size in sizes if size >= 0) * DTYPES[declared.datatype].itemsize
    if free == 0:
        return tuple(sizes) if row == body_length else None
    if free > 1 or row == 0 or body_length == 0 or body_length % row:
        return None
    return tuple(size if size >= 0 else body_length // row for size in sizes)


# ---- answers -------------------------------------------------------------------------------------


def render_infer(
    response: InferResponse,
    request: InferRequest,
    *,
    nan_literals: bool = False,
    memory: CallerMemory | None = None,
) -> RenderedBody:
    """Write the answer to a request.

    Args:
        response: The answer; its outputs are written in their order.
        request: The request, which names the binary outputs.
        nan_literals: Write NaN and Infinity as literals, which are not JSON, instead of null.
        memory: The shared memory for outputs that the request wants there.

    Returns:
        The body as parts; binary tensors are views of the response's arrays.

    Raises:
        InvalidRequest: An output cannot be written in the form that the client asked for.
    """
    file = file_body(response, request)
    if file is not None:
        return file
    wanted = {output.name: output for output in request.outputs}
    entries: list[dict[str, Any]] = []
    blocks: list[bytes | memoryview] = []
    any_binary = False
    for tensor in response.outputs:
        asked = wanted.get(tensor.name)
        binary, as_base64 = _output_form(request, asked)
        as_base64 = as_base64 or MEDIA_TYPE in tensor.parameters
        entry: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        parameters = dict(tensor.parameters)
        ref = asked.shared_memory if asked is not None else None
        if ref is not None:
            # The answer does not name the region, as in Triton: the C++ client of Triton takes an output
            # with parameters for a binary output.
            enabled(memory, f"output {quote(tensor.name)}").write(ref, tensor)
        elif binary:
            any_binary = True
            block = tensor_bytes(tensor)
            parameters["binary_data_size"] = len(block)
            if len(block):
                blocks.append(block)
        elif as_base64 and tensor.datatype == "BYTES":
            parameters[CONTENT_TYPE] = BASE64
        if parameters:
            entry["parameters"] = parameters
        if not binary and ref is None:
            entry["data"] = json_values(tensor, nan_literals, as_base64=as_base64)
        entries.append(entry)
    document: dict[str, Any] = {"model_name": response.model_name}
    if response.model_version:
        document["model_version"] = response.model_version
    if response.id:
        document["id"] = response.id
    if response.parameters:
        document["parameters"] = dict(response.parameters)
    document["outputs"] = entries
    head = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    total = len(head) + sum(len(block) for block in blocks)
    if any_binary:
        return RenderedBody([head, *blocks], total, len(head), BINARY_TYPE)
    return RenderedBody([head], total, None, JSON_TYPE)


def _output_form(request: InferRequest, asked: RequestedOutput | None) -> tuple[bool, bool]:
    """Return whether an output is answered as binary data, and whether its BYTES are in base64 otherwise.

    Args:
        asked: The entry of the request's `outputs` for the output, which overrides the request's parameters.
    """
    # Its value is "base64": `take_requested_outputs` has put a boolean into `binary`, and refused other values.
    if asked is not None and BINARY_DATA in asked.parameters:
        return False, True
    if asked is not None and asked.binary is not None:
        return asked.binary, False
    return request.binary_output, wants_base64(request.parameters)


def wants_base64(parameters: Mapping[str, Parameter]) -> bool:
    """Tell whether the parameters of a request or output ask for BYTES in base64."""
    return parameters.get(BINARY_DATA) == BASE64


def json_values(tensor: Tensor, nan_literals: bool = False, *, as_base64: bool = False) -> object:
    """Return a tensor's values, flat, in a form that orjson writes.

    Args:
        nan_literals: Whether NaN and Infinity are written as literals instead of null.
        as_base64: Whether the client asked for BYTES in base64.

    Raises:
        InvalidRequest: JSON cannot carry the datatype.
    """
    if isinstance(tensor.data, list):
        are_files = MEDIA_TYPE in tensor.parameters
        return elements_in_json(tensor.data, as_base64=as_base64, are_files=are_files)
    if tensor.datatype in BINARY_ONLY:
        raise InvalidRequest(
            f"output {quote(tensor.name)} is {tensor.datatype}, which JSON does not carry; request "
            f"it with 'binary_data': true"
        )
    array = contiguous(tensor.data)
    if nan_literals and array.dtype.kind == "f" and not np.isfinite(array).all():
        return orjson.Fragment(json.dumps(array.tolist(), separators=(",", ":")).encode())
    return array


def file_body(response: InferResponse, request: InferRequest) -> RenderedBody | None:
    """Return the only element of the only output as the whole body, if the client accepts a file; else None."""
    if request.accept is None or len(response.outputs) != 1:
        return None
    output = response.outputs[0]
    data = output.data
    if (
        not isinstance(data, list)
        or len(data) != 1
        or any(output.shared_memory for output in request.outputs)
    ):
        return None
    declared = str(output.parameters.get(MEDIA_TYPE, ""))
    kind = file_type(request.accept, declared, request.prefers_file)
    return RenderedBody([data[0]], len(data[0]), None, kind) if kind else None
