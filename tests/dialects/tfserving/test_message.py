"""The scan of a PredictRequest beside protobuf's reader, and what it does not copy."""

from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from ksrv.dialects.tfserving import predict
from ksrv.dialects.tfserving.predict_message import FIELDS, NUMBERS, scan
from ksrv.errors import InvalidRequest, NotFound
from ksrv.limits import Limits
from ksrv.model.datatypes import DTYPES
from ksrv.model.spec import ModelSpec
from ksrv.protocol.protobuf import message_class
from ksrv.request import InferResponse, Tensor
from tests.support.tfserving import PACKAGE, content, predict_request, tensor_proto, values_of

LIMITS = Limits()
REQUEST = message_class(f"{PACKAGE}.PredictRequest")
SPEC = ModelSpec("m")


def calls():
    """Return the calls of Predict over a server without models."""
    made = predict.PredictCalls.__new__(predict.PredictCalls)
    made._engine = SimpleNamespace(loaded=list, index=list)
    return made


def parse(message):
    return calls().parse(message, lambda name, version: SPEC, LIMITS)


def scanned(message):
    return scan(message, inputs=256, rank=32, parameters=1024, text=1 << 20)


DIMENSIONS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)
VALUES = {
    "tensor_content": st.binary(max_size=20),
    "float_val": st.lists(st.floats(width=32), max_size=4),
    "double_val": st.lists(st.floats(), max_size=4),
    "int_val": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
    "string_val": st.lists(st.binary(max_size=5), max_size=4),
    "int64_val": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    "bool_val": st.lists(st.booleans(), max_size=4),
    "half_val": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
    "uint32_val": st.lists(st.integers(0, 2**32 - 1), max_size=4),
    "uint64_val": st.lists(st.integers(0, 2**64 - 1), max_size=4),
}
TENSORS = st.builds(
    lambda dtype, shape, values: tensor_proto(dtype, shape, **values),
    st.integers(0, 30),
    DIMENSIONS,
    st.dictionaries(st.sampled_from(sorted(VALUES)), st.none(), max_size=2).flatmap(
        lambda names: st.fixed_dictionaries({name: VALUES[name] for name in names})
    ),
)
REQUESTS = st.builds(
    lambda name, inputs, spec, outputs: predict_request(name, inputs, outputs=outputs, **spec),
    st.text(max_size=5),
    st.dictionaries(st.text(max_size=5), TENSORS, max_size=3),
    st.sampled_from([{}, {"version": 3}, {"version": -1}, {"version_label": "é"}, {"version": 0}]),
    st.lists(st.text(max_size=5), max_size=3),
)


@given(REQUESTS)
def test_a_scan_finds_what_protobuf_finds(request):
    message = request.SerializeToString()
    found = scanned(message)
    assert found.model_name == request.model_spec.name
    choice = request.model_spec.WhichOneof("version_choice")
    named = {
        "version": request.model_spec.version.value,
        "version_label": request.model_spec.version_label,
    }
    assert found.parameters == ({"": named[choice]} if choice else {})
    assert [name for name, _ in found.outputs] == list(request.output_filter)
    inputs = {entry.name: entry for entry in found.inputs}
    assert inputs.keys() == request.inputs.keys()
    for name, entry in inputs.items():
        tensor = request.inputs[name]
        assert NUMBERS.get(entry.datatype, -1) in (tensor.dtype, -1)
        assert (entry.datatype == "") == (tensor.dtype not in NUMBERS.values())
        assert list(entry.shape) == [dim.size for dim in tensor.tensor_shape.dim]
        fields = [field for field, _ in tensor.ListFields() if field.number > 3]
        assert entry.fields == sum(1 << field.number for field in fields)
        if len(fields) == 1:
            (field,) = fields
            value = getattr(tensor, field.name)
            offset, length = entry.packed
            if field.name == "tensor_content":
                assert message[offset : offset + length] == value
            elif field.name == "string_val":
                assert list(found.elements(entry, views=True)) == list(value)
            else:
                assert entry.elements == len(value)


@given(REQUESTS, st.data())
def test_damaged_messages_are_read_as_protobuf_reads_them(request, data):
    message = bytearray(request.SerializeToString() or b"\0")
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected = REQUEST.FromString(bytes(message))
    except DecodeError:
        expected = None
    found, refusal = None, None
    try:
        found = scanned(bytes(message))
    except ValueError as error:
        refusal = str(error)
    assert refusal is None or expected is None or "the limit" in refusal
    if found is not None:
        assert expected is not None
        assert found.model_name == expected.model_spec.name
        assert {entry.name for entry in found.inputs} == set(expected.inputs)
    with suppress(InvalidRequest, NotFound):  # the client's fault; anything else is the server's
        parse(bytes(message))


@pytest.mark.parametrize("field", ["tensor_content", "float_val"])
def test_aligned_values_are_views_of_the_message(field):
    array = np.arange(64, dtype=np.float32).reshape(4, 16)
    values = array.tobytes() if field == "tensor_content" else array.ravel().tolist()
    request = predict_request("m", {"x": tensor_proto("FP32", array.shape, **{field: values})})
    message = request.SerializeToString()
    begin = message.index(array.tobytes())
    block = np.zeros(len(message) + 8, np.uint8)
    moved = -(block.ctypes.data + begin) % 4
    block[moved : moved + len(message)] = np.frombuffer(message, np.uint8)
    (tensor,) = parse(memoryview(block)[moved : moved + len(message)]).inputs
    assert np.shares_memory(tensor.data, block)
    assert tensor.data.tolist() == array.tolist()


def test_pictures_are_views_and_short_texts_copies():
    long = bytes(100_000)
    request = predict_request("m", {"x": tensor_proto("BYTES", (2,), string_val=[b"a", long])})
    (tensor,) = parse(request.SerializeToString()).inputs
    assert [type(element) for element in tensor.data] == [bytes, memoryview]


@pytest.mark.parametrize("datatype", sorted(DTYPES))
def test_floats_of_an_answer_are_not_copied(datatype):
    array = np.zeros((2, 3), DTYPES[datatype])
    response = InferResponse("m", "7", "", [Tensor("y", datatype, (2, 3), array)])
    parts = calls().render(response, None, None)
    answer = message_class(f"{PACKAGE}.PredictResponse").FromString(b"".join(parts))
    assert values_of(answer.outputs["y"]).tobytes() == array.tobytes()
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("m", 7)
    views = [part for part in parts if np.shares_memory(np.frombuffer(part, np.uint8), array)]
    assert len(views) == (datatype in ("FP32", "FP64", "BOOL"))


def test_an_answer_of_texts():
    response = InferResponse("m", "1.0", "", [Tensor("y", "BYTES", (2,), [b"a" * 200, b""])])
    parts = calls().render(response, None, None)
    answer = message_class(f"{PACKAGE}.PredictResponse").FromString(b"".join(parts))
    assert list(answer.outputs["y"].string_val) == [b"a" * 200, b""]
    assert answer.model_spec.version.value == 1


def test_field_numbers_are_those_of_the_typed_fields():
    fields = message_class("tensorflow.TensorProto").DESCRIPTOR.fields_by_number
    assert {name: fields[number].name for name, number in FIELDS.items()} == {
        "BOOL": "bool_val",
        "UINT8": "int_val",
        "UINT16": "int_val",
        "UINT32": "uint32_val",
        "UINT64": "uint64_val",
        "INT8": "int_val",
        "INT16": "int_val",
        "INT32": "int_val",
        "INT64": "int64_val",
        "FP16": "half_val",
        "BF16": "half_val",
        "FP32": "float_val",
        "FP64": "double_val",
        "BYTES": "string_val",
    }


def test_unpacked_values_and_a_second_spec_need_protobuf():
    message = predict_request("m", {"x": content(np.zeros(1, np.float32), "FP32")})
    twice = message.SerializeToString() + b"\x0a\x03\x0a\x01n"
    assert scanned(twice) is None
    assert parse(twice).model_name == "n"


def test_a_request_without_a_model_is_refused():
    with pytest.raises(InvalidRequest, match="names no model"):
        parse(b"")
