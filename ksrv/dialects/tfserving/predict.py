"""Reads a PredictRequest as an `InferRequest`, and writes an `InferResponse` as a PredictResponse.

`predict_message.scan` finds the tensors. Those in tensor_content, float_val, double_val and string_val are views of the
message; other typed values are decoded. Answers have typed fields, as TensorFlow Serving's answers do: its clients read
`outputs["y"].float_val` as often as they call `make_ndarray`.
"""

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ksrv._native.grpc.grpc_call import Call, MessageForm
from ksrv._native.protobuf.infer_request import Input, Request, ValueOutOfRange
from ksrv.dialects.numbered_versions import find_version
from ksrv.dialects.tfserving.predict_message import (
    FIELDS,
    NUMBERS,
    PREDICT_FORM,
    RAW_FIELDS,
    output_head,
    scan,
    spec_field,
    varint_values,
)
from ksrv.errors import HandlerFailed, InvalidRequest
from ksrv.limits import Limits
from ksrv.model.datatypes import BINARY_ONLY, DTYPES
from ksrv.model.spec import ModelSpec
from ksrv.protocol.grpc import MAX_MESSAGE, NO_METADATA, SpecOf, read_request
from ksrv.protocol.protobuf import length_prefix, message_class
from ksrv.protocol.shared_memory import CallerMemory
from ksrv.protocol.tensors import check_bool, measure, subject, tensor_bytes, view
from ksrv.request import Array, Element, InferRequest, InferResponse, RequestedOutput, Tensor
from ksrv.server.grpc.infer import InferCalls
from ksrv.server.shared.parts import ServerParts

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

CONTENT_FIELD, STRING_FIELD = 4, 8
"""The numbers of tensor_content and string_val in TensorProto."""
TENSOR = "tensorflow.TensorProto"
REPEATED_BYTES = 4 << 20
"""The most bytes of a tensor whose last value is repeated: a short message must not become much memory."""


def version_of(engine: "Engine", name: str, choice: object) -> str:
    """Return the version that a client asks for, as the engine knows it.

    Args:
        name: The model's name.
        choice: The number, a label, or None.

    Raises:
        InvalidRequest: The client names no model.
        NotFound: The model has no such label.
    """
    if not name:
        raise InvalidRequest("the request names no model; set model_spec.name")
    if isinstance(choice, str):
        return find_version(engine, name, label=choice)
    return find_version(engine, name, str(choice or ""))


def target_of(engine: "Engine", spec: Any) -> tuple[str, str]:
    """Return the name and the version that a ModelSpec asks for; see `version_of`."""
    return spec.name, version_of(engine, spec.name, spec.version_label or spec.version.value)


class PredictCalls(InferCalls):
    """The calls of Predict.

    Args:
        parts: The parts that the front ends share.
    """

    form: MessageForm | None = PREDICT_FORM

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        self._engine = parts.engine

    def parse(
        self,
        message: bytes | memoryview,
        spec_of: SpecOf,
        limits: Limits,
        *,
        metadata: Mapping[str, str] = NO_METADATA,
        memory: CallerMemory | None = None,
    ) -> InferRequest:
        """Read a request; see `ksrv.protocol.grpc.parse_infer`. It cannot name shared memory.

        Raises:
            KsrvError: The message is malformed or contradicts itself, or the model is unknown.
        """
        request = self._request(message, spec_of, limits)
        request.headers, request.nbytes, request.binary_output = metadata, len(message), True
        return request

    def _request(
        self, message: bytes | memoryview, spec_of: SpecOf, limits: Limits
    ) -> InferRequest:
        found = read_request(message, limits, scan, "tensorflow.serving.PredictRequest")
        name, choice = found.model_name, found.parameters.get("")
        version = version_of(self._engine, name, choice)
        spec = spec_of(name, version)
        inputs = [
            _tensor(found, entry, index, spec, limits) for index, entry in enumerate(found.inputs)
        ]
        outputs = [RequestedOutput(output) for output, _ in found.outputs]
        return InferRequest(name, version, inputs=inputs, outputs=outputs)

    def render(
        self, response: InferResponse, request: InferRequest, call: Call
    ) -> list[bytes | memoryview]:
        """Write an answer; see `InferForm`. Floats are the handler's memory and not copied."""
        parts: list[bytes | memoryview] = []
        for tensor in response.outputs:
            shape = tuple(tensor.shape)
            if isinstance(tensor.data, list):
                texts = [(length_prefix(STRING_FIELD, len(one)), one) for one in tensor.data]
                values = list(chain.from_iterable(texts))
            elif tensor.datatype in RAW_FIELDS:
                values = [tensor_bytes(tensor)]
            else:
                values = [varint_values(tensor.datatype, tensor_bytes(tensor))]
            length = sum(map(len, values))
            parts += [output_head(tensor.name, tensor.datatype, shape, length), *values]
        parts.append(spec_field(response.model_name, response.model_version))
        if (total := sum(map(len, parts))) > MAX_MESSAGE:
            raise HandlerFailed(f"the answer has {total} bytes; a message holds {MAX_MESSAGE}")
        return parts


def _tensor(found: Request, entry: Input, index: int, spec: ModelSpec, limits: Limits) -> Tensor:
    """Return an input as a tensor."""
    owner, datatype = subject(entry.name, index), entry.datatype
    if not datatype:
        known = ", ".join(map(dtype_name, NUMBERS))
        raise InvalidRequest(f"{owner}: the dtype is not served; expected one of {known}")
    count, nbytes = measure(entry.name, index, datatype, entry.shape, limits)
    typed = FIELDS[datatype]
    allowed = (typed,) if datatype == "BYTES" else (CONTENT_FIELD, typed)
    given = [field for field in range(CONTENT_FIELD, 18) if entry.fields & 1 << field]
    expected = " or ".join(map(_field_name, allowed))
    if any(field not in allowed for field in given) or len(given) > 1:
        raise InvalidRequest(
            f"{owner} is {dtype_name(datatype)} and its values are in "
            f"{' and '.join(map(_field_name, given))}; expected {expected}"
        )
    if count and not given:
        raise InvalidRequest(f"{owner} has no values; expected them in {expected}")
    data: Array | list[Element]
    if datatype == "BYTES":
        declared = spec.input(entry.name)
        files = declared is not None and declared.takes_files
        elements: list[Element] = found.elements(entry, views=files)
        _check_count(owner, typed, len(elements), count, 8)
        data = elements + elements[-1:] * (count - len(elements))
        return Tensor(entry.name, datatype, entry.shape, data)
    offset, length = entry.packed
    if given == [CONTENT_FIELD] and length != nbytes:
        raise InvalidRequest(
            f"{owner}: tensor_content has {length} bytes; {dtype_name(datatype)} of the shape "
            f"{list(entry.shape)} has {nbytes}"
        )
    if length == nbytes and (given == [CONTENT_FIELD] or datatype in RAW_FIELDS):
        data = view(found.message, offset, datatype, entry.shape, count)
        if datatype == "BOOL":
            check_bool(entry.name, index, data)
        return Tensor(entry.name, datatype, entry.shape, data)
    values = entry.elements if given else 0
    _check_count(owner, typed, values, count, DTYPES[datatype].itemsize)
    if datatype in ("FP32", "FP64"):
        data = view(found.message, offset, datatype, (values,), values)
    else:
        data = np.empty(values, DTYPES[datatype])
        try:
            found.decode(entry, data, "UINT16" if datatype in BINARY_ONLY else None)
        except ValueOutOfRange as error:
            raise InvalidRequest(
                f"{owner}: value {error.index} of {_field_name(typed)} is out of range, {error.value}"
            ) from None
    data = np.concatenate([data, np.repeat(data[-1:], count - values)]).reshape(entry.shape)
    return Tensor(entry.name, datatype, entry.shape, data)


def _check_count(owner: str, field: int, got: int, count: int, item: int) -> None:
    """Refuse values that the shape does not allow. The last value of fewer values is repeated."""
    name = _field_name(field)
    if got > count:
        raise InvalidRequest(f"{owner}: the shape asks for {count} values, but {name} has {got}")
    if got < count and count * item > REPEATED_BYTES:
        raise InvalidRequest(
            f"{owner}: the shape asks for {count} values, and {name} has {got}; the last value is repeated only in "
            f"tensors of at most {REPEATED_BYTES} bytes, so send every value"
        )


def _field_name(number: int) -> str:
    """Return the name of a field of TensorProto."""
    return str(message_class(TENSOR).DESCRIPTOR.fields_by_number[number].name)


def dtype_name(datatype: str) -> str:
    """Return TensorFlow's name of a datatype: "DT_FLOAT" for FP32."""
    names = message_class(TENSOR).DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_number
    return str(names[NUMBERS[datatype]].name)
