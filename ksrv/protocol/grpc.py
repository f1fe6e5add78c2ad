"""Reads an `InferRequest` from the bytes of a ModelInferRequest, and writes an `InferResponse` as ModelInferResponse.

`parse_infer` does not use protobuf's parser: one scan of the bytes (`native/protobuf`) finds the fields, and tensors
are views of the bytes. The scan takes only the form that encoders usually write. A message in another form, such as
with unknown fields or a scalar that occurs twice, is parsed and serialised by the protobuf class first, and then
scanned, so that only the scan decides what a message means.

`render_infer` returns an answer in parts, so that no tensor is copied. Tensors are always in raw_output_contents.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from ksrv._native.memory import buffer_pool
from ksrv._native.protobuf.infer_request import Input, MessageError, Request, ValueOutOfRange, scan
from ksrv._native.tensor import bytes_tensor
from ksrv._native.tensor.datatype import CONTENTS
from ksrv.errors import HandlerFailed, InvalidRequest, quote
from ksrv.limits import Limits
from ksrv.model.datatypes import DTYPES
from ksrv.model.spec import ModelSpec
from ksrv.protocol import protobuf
from ksrv.protocol.parameters import (
    take_input_parameters,
    take_request_parameters,
    take_requested_outputs,
)
from ksrv.protocol.protobuf import length_prefix, set_parameters
from ksrv.protocol.shared_memory import CallerMemory, enabled
from ksrv.protocol.tensors import check_bool, measure, subject, tensor_bytes, view
from ksrv.request import (
    Array,
    Element,
    InferRequest,
    InferResponse,
    Parameter,
    SharedMemoryRef,
    Tensor,
)

MAX_MESSAGE = 2**31 - 1
"""The most bytes of a protobuf message."""

RAW_OUTPUT_CONTENTS = 6
"""The number of the field in ModelInferResponse."""

SpecOf = Callable[[str, str], ModelSpec]
"""Returns the spec for the name and version of a model; raises NotFound or NotReady."""

Scan = Callable[..., Request | None]
"""A function with the arguments of `scan`, for a message of any form."""
Parse = Callable[..., InferRequest]
"""A function with the arguments of `parse_infer`, for a message of any form."""

NO_METADATA: Mapping[str, str] = {}

FIELD_NAMES = (
    *("", "bool_contents", "int_contents", "int64_contents", "uint_contents", "uint64_contents"),
    *("fp32_contents", "fp64_contents", "bytes_contents"),
)
"""The names of the typed fields of InferTensorContents by their numbers."""


def read_request(
    message: bytes | memoryview,
    limits: Limits,
    scan: Scan = scan,
    kind: str = "inference.ModelInferRequest",
) -> Request:
    """Scan a serialised request, in any form that the wire format allows.

    Args:
        message: The bytes as received.
        scan: Records the fields of a message in the ordinary form.
        kind: The name of the message.

    Raises:
        InvalidRequest: The bytes are not such a message, or exceed a limit.
    """
    found = _scan(message, limits, scan)
    if found is None:
        found = _scan(_ordinary(message, kind), limits, scan)
        if found is None:
            raise HandlerFailed(f"the protobuf class wrote a {kind} that ksrv cannot scan")
    return found


def _scan(message: bytes | memoryview, limits: Limits, scan: Scan) -> Request | None:
    """Return the fields of a message; None if it is not in the ordinary form."""
    try:
        return scan(
            message,
            inputs=limits.inputs,
            rank=limits.rank,
            parameters=limits.parameters,
            text=limits.json,
        )
    except MessageError as error:
        raise InvalidRequest(str(error)) from error


def _ordinary(message: bytes | memoryview, kind: str) -> bytes:
    """Return a message in the ordinary form: parsed and serialised by the protobuf class."""
    from google.protobuf.message import DecodeError

    try:
        parsed = protobuf.message_class(kind).FromString(bytes(message))
    except DecodeError as error:
        raise InvalidRequest(f"the request is not a {kind.rpartition('.')[2]}: {error}") from error
    parsed.DiscardUnknownFields()
    rewritten: bytes = parsed.SerializeToString()
    buffer_pool.count_copy(len(rewritten))
    return rewritten


def parse_infer(
    message: bytes | memoryview,
    spec_of: SpecOf,
    limits: Limits,
    *,
    metadata: Mapping[str, str] = NO_METADATA,
    memory: CallerMemory | None = None,
) -> InferRequest:
    """Read an inference request.

    Names and shapes are not compared with the model; the engine's validation does that.

    Args:
        metadata: The call's metadata, names in lower case.
        memory: The shared memory that the request may name; None if that is off.

    Returns:
        The request. Its tensors are views into `message` if they are aligned there.

    Raises:
        KsrvError: The message is malformed or contradicts itself, or the model is unknown.
    """
    found = read_request(message, limits)
    spec = spec_of(found.model_name, found.model_version)
    reserved = take_request_parameters(found.parameters)
    inputs, nbytes = _inputs(found, spec, limits, memory)
    return InferRequest(
        model_name=found.model_name,
        model_version=found.model_version,
        id=found.id,
        inputs=inputs,
        outputs=take_requested_outputs(found.outputs, memory),
        parameters=reserved.custom,
        binary_output=True,
        headers=metadata,
        deadline_ns=reserved.deadline_ns,
        priority=reserved.priority,
        mark_final=reserved.mark_final,
        nbytes=nbytes,
    )


def _inputs(
    found: Request, spec: ModelSpec, limits: Limits, memory: CallerMemory | None
) -> tuple[list[Tensor], int]:
    """Return the inputs, and the bytes that were received for them, in the message and in shared memory."""
    tensors: list[Tensor] = []
    refs: dict[int, SharedMemoryRef] = {}
    for index, entry in enumerate(found.inputs):
        parameters, ref = take_input_parameters(entry.name, index, entry.parameters)
        shape = entry.shape
        if (
            shape == (-1,)
            and entry.datatype == "BYTES"
            and spec.accepts_any_inputs
            and entry.fields
        ):
            shape = (entry.elements,)  # KServe's examples send [-1] for any number of texts
        tensors.append(Tensor(entry.name, entry.datatype, shape, [], parameters))
        if ref is not None:
            refs[index] = ref
    in_message = [index for index in range(len(tensors)) if index not in refs]
    if found.raw:
        _read_raw(found, tensors, in_message, spec, limits)
    else:
        _read_typed(found, tensors, in_message, spec, limits)
    if not refs:
        return tensors, len(found.message)
    for index in refs:
        if found.inputs[index].fields:
            raise InvalidRequest(
                f"{subject(tensors[index].name, index)} has a shared memory region and data too"
            )
    first = min(refs)
    nbytes = enabled(memory, subject(tensors[first].name, first)).read(
        tensors,
        refs,
        takes_images=partial(_takes_files, spec),
        received=len(found.message),
        limits=limits,
    )
    return tensors, nbytes


def _read_raw(
    found: Request, tensors: list[Tensor], indices: list[int], spec: ModelSpec, limits: Limits
) -> None:
    """Set the data of the tensors at some indices from raw_input_contents, which has an entry for each of them."""
    for index, entry in enumerate(found.inputs):
        # MLServer's client writes an empty `contents` together with raw_input_contents, which is accepted.
        if entry.fields:
            raise InvalidRequest(
                f"{subject(entry.name, index)}: contents field must not be specified when using "
                f"raw_input_contents for model {quote(found.model_name)}"
            )
    if len(found.raw) != len(indices):
        raise InvalidRequest(
            f"the request has {len(indices)} inputs and {len(found.raw)} raw_input_contents; "
            "expected one for each input"
            + (" outside of shared memory" if len(indices) < len(tensors) else "")
        )
    for index, (offset, length) in zip(indices, found.raw, strict=True):
        tensor = tensors[index]
        name = tensor.name
        count, nbytes = measure(name, index, tensor.datatype, tensor.shape, limits)
        if tensor.datatype == "BYTES":
            part = memoryview(found.message)[offset : offset + length]
            try:
                tensor.data = bytes_tensor.read(part, count, None, _takes_files(spec, name), name)
            except bytes_tensor.ElementsError as error:
                raise InvalidRequest(str(error)) from None
            continue
        if length != nbytes:
            raise InvalidRequest(
                f"input byte size mismatch for {subject(name, index)}. Expected {nbytes} by datatype and shape, got "
                f"{length} in raw_input_contents"
            )
        tensor.data = view(found.message, offset, tensor.datatype, tensor.shape, count)
        if tensor.datatype == "BOOL":
            check_bool(name, index, tensor.data)


def _read_typed(
    found: Request, tensors: list[Tensor], indices: list[int], spec: ModelSpec, limits: Limits
) -> None:
    """Set the data of the tensors at some indices from the typed contents of the inputs."""
    for index in indices:
        entry = found.inputs[index]
        count, _ = measure(entry.name, index, entry.datatype, tensors[index].shape, limits)
        views = _takes_files(spec, entry.name)
        tensors[index].data = _typed_data(found, entry, index, count, views)


def _takes_files(spec: ModelSpec, name: str) -> bool:
    """Tell whether a single BYTES element of an input may lack the length prefix, as files may.

    `rest._takes_images` also accepts inputs of numbers without files.
    """
    declared = spec.input(name)
    return declared is not None and declared.takes_files


def _typed_data(
    found: Request, entry: Input, index: int, count: int, views: bool
) -> Array | list[Element]:
    """Return the values of one input from its typed contents.

    Args:
        views: Whether elements are views of the message, as large files should be.
    """
    datatype = entry.datatype
    # The number of the typed field for the datatype; 0 without such a field. `fields` has a bit for each present field.
    expected = CONTENTS.get(datatype, 0)
    if not entry.has_contents:
        raise InvalidRequest(
            f"{subject(entry.name, index)} has no data; expected an entry of raw_input_contents"
            + (f" or {FIELD_NAMES[expected]}" if expected else "")
        )
    if not expected:
        raise InvalidRequest(
            f"{subject(entry.name, index)}: {datatype} has no typed contents; send its bytes in "
            f"raw_input_contents"
        )
    if entry.fields & ~(1 << expected):
        given = [name for field, name in enumerate(FIELD_NAMES) if entry.fields & 1 << field]
        raise InvalidRequest(
            f"{subject(entry.name, index)} is {datatype} and its values are in "
            f"{' and '.join(given)}; expected {FIELD_NAMES[expected]} only"
        )
    got = entry.elements if entry.fields else 0
    if got != count:
        raise InvalidRequest(
            f"{subject(entry.name, index)}: the shape asks for {count} values, but {FIELD_NAMES[expected]} holds {got}"
        )
    if datatype == "BYTES":
        return found.elements(entry, views=views)
    if datatype in ("FP32", "FP64"):
        # Packed floats have the bytes of the array; integers are varints.
        return view(found.message, entry.packed[0], datatype, entry.shape, count)
    values = np.empty(count, DTYPES[datatype])
    if count:
        try:
            found.decode(entry, values)
        except ValueOutOfRange as error:
            range_of = np.iinfo(values.dtype)
            raise InvalidRequest(
                f"{subject(entry.name, index)}: value {error.index} of {FIELD_NAMES[expected]} is "
                f"out of range, {error.value}; {datatype} takes {range_of.min} to {range_of.max}"
            ) from None
    return values.reshape(entry.shape)


def render_infer(
    response: InferResponse,
    request: InferRequest,
    *,
    parameters: Mapping[str, Parameter] | None = None,
    memory: CallerMemory | None = None,
) -> list[bytes | memoryview]:
    """Serialise an answer.

    Args:
        request: The request that it answers; its id is echoed.
        parameters: Further parameters of the answer.
        memory: The shared memory for outputs that the request wants there. Their raw_output_contents are empty.

    Returns:
        The parts of a ModelInferResponse. Tensors are the handler's memory and not copied.

    Raises:
        HandlerFailed: The answer has no wire form.
        InvalidRequest: An output does not fit into its shared memory.
    """
    outputs = response.outputs
    wanted = request.outputs
    refs = {out.name: out.shared_memory for out in wanted if out.shared_memory} if wanted else None
    if refs:
        outputs = [_in_shared_memory(tensor, refs.get(tensor.name), memory) for tensor in outputs]
    try:
        message = protobuf.message_class("inference.ModelInferResponse")(
            model_name=response.model_name, model_version=response.model_version, id=request.id
        )
        set_parameters(message.parameters, response.parameters)
        set_parameters(message.parameters, parameters or {})
        for tensor in outputs:
            entry = message.outputs.add(
                name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
            )
            set_parameters(entry.parameters, tensor.parameters)
        parts: list[bytes | memoryview] = [message.SerializeToString()]
        for tensor in outputs:
            contents = tensor_bytes(tensor)
            parts += [length_prefix(RAW_OUTPUT_CONTENTS, len(contents)), contents]
    except (ValueError, TypeError) as error:
        raise HandlerFailed(f"the answer cannot be sent over gRPC: {error}") from error
    if (total := sum(map(len, parts))) > MAX_MESSAGE:
        raise HandlerFailed(
            f"the answer has {total} bytes, and a gRPC message holds at most {MAX_MESSAGE}; "
            f"send smaller batches, or use REST"
        )
    return parts


def _in_shared_memory(
    tensor: Tensor, ref: SharedMemoryRef | None, memory: CallerMemory | None
) -> Tensor:
    """Write a tensor into its shared memory, if it has a reference, and return it without its bytes."""
    if ref is None:
        return tensor
    parameters = {
        **tensor.parameters,
        **enabled(memory, f"output {quote(tensor.name)}").write(ref, tensor),
    }
    return Tensor(tensor.name, tensor.datatype, tensor.shape, [], parameters)
