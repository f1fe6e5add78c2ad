"""Tensors written by an encoder of plain Python, in every form the wire allows, come back exactly.

The encoder shares nothing with ksrv or protobuf: tags and packing are spelt out here. It
writes what no ordinary client writes as well: unpacked scalars, packed fields in pieces, contents in
two submessages, unknown fields in between.
"""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksrv.errors import InvalidRequest
from ksrv.limits import Limits
from ksrv.model.spec import ModelSpec
from ksrv.protocol import grpc as protocol
from tests.support.examples import examples
from tests.support.wire.v2_wire import field, varint

LIMITS = Limits()
SPEC = ModelSpec("m")

FIELDS = {
    "BOOL": 1, "INT8": 2, "INT16": 2, "INT32": 2, "INT64": 3, "UINT8": 4, "UINT16": 4,
    "UINT32": 4, "UINT64": 5, "FP32": 6, "FP64": 7, "BYTES": 8,
}  # fmt: skip
DTYPES = {
    "BOOL": "?", "INT8": "<i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "UINT8": "<u1",
    "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "FP16": "<f2", "BF16": "<u2",
    "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip


def scalar(number, value):
    """Return the wire type and the bytes of one value of a typed field."""
    if number == 6:
        return 5, struct.pack("<f", value)
    if number == 7:
        return 1, struct.pack("<d", value)
    return 0, varint(int(value))


def packed(number, values):
    return field(number, b"".join(scalar(number, value)[1] for value in values))


def unpacked(number, values):
    parts = (scalar(number, value) for value in values)
    return b"".join(varint(number << 3 | kind) + data for kind, data in parts)


def typed(number, values, form):
    """Write values in one of several forms; all forms mean the same list."""
    if number == 8:
        return field(5, b"".join(field(8, value) for value in values))
    half = len(values) // 2
    match form:
        case "ordinary":
            return field(5, packed(number, values) if values else b"")
        case "unpacked":
            return field(5, unpacked(number, values))
        case "pieces":
            return field(5, packed(number, values[:half]) + packed(number, values[half:]))
        case "two submessages":
            return field(5, packed(number, values[:half])) + field(5, packed(number, values[half:]))
        case "unknown between":
            return field(5, field(15, b"x") + packed(number, values) + varint(14 << 3) + b"\x01")
    raise AssertionError(form)


def tensor_input(name, datatype, shape, contents, *, packed_shape=True):
    dims = [varint(dim) for dim in shape]
    sizes = field(3, b"".join(dims)) if packed_shape else b"".join(b"\x18" + dim for dim in dims)
    return field(5, field(1, name.encode()) + field(2, datatype.encode()) + sizes + contents)


def elements():
    return st.binary(max_size=30)


@st.composite
def tensors(draw, datatypes):
    datatype = draw(st.sampled_from(sorted(datatypes)))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = int(np.prod(shape)) if shape else 1
    if datatype == "BYTES":
        return datatype, shape, draw(st.lists(elements(), min_size=count, max_size=count))
    size = np.dtype(DTYPES[datatype]).itemsize
    if datatype == "BOOL":
        raw = bytes(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)))
    else:
        raw = draw(st.binary(min_size=count * size, max_size=count * size))
    return datatype, shape, np.frombuffer(raw, DTYPES[datatype]).reshape(shape)


def values_of(data):
    return data.reshape(-1).tolist() if isinstance(data, np.ndarray) else data


def quiet(array):
    """Return an array's bytes with every NaN in one pattern: Python's floats do not keep others."""
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return array.tobytes()


def assert_same(found, datatype, shape, data):
    assert (found.datatype, found.shape) == (datatype, tuple(shape))
    if isinstance(data, np.ndarray):
        assert found.data.dtype == data.dtype
        assert found.data.shape == data.shape
        assert found.data.flags.aligned
        assert quiet(found.data) == quiet(data)
    else:
        assert [bytes(element) for element in found.data] == data


def parse(message):
    return protocol.parse_infer(message, lambda name, version: SPEC, LIMITS)


FORMS = st.sampled_from(["ordinary", "unpacked", "pieces", "two submessages", "unknown between"])


@examples(400)
@given(st.lists(st.tuples(tensors(FIELDS), FORMS, st.booleans()), min_size=1, max_size=3))
def test_typed_tensors_round_trip_in_every_form(given_tensors):
    message = field(1, b"m")
    for number, ((datatype, shape, data), form, packed_shape) in enumerate(given_tensors):
        contents = typed(FIELDS[datatype], values_of(data), form)
        message += tensor_input(f"x{number}", datatype, shape, contents, packed_shape=packed_shape)
    found = parse(message)
    assert [tensor.name for tensor in found.inputs] == [
        f"x{number}" for number in range(len(given_tensors))
    ]
    for tensor, ((datatype, shape, data), _, _) in zip(found.inputs, given_tensors, strict=True):
        assert_same(tensor, datatype, shape, data)


@examples(300)
@given(st.lists(tensors([*DTYPES, "BYTES"]), min_size=1, max_size=3), st.integers(0, 7))
def test_raw_tensors_round_trip_at_every_alignment(given_tensors, padding):
    inputs = raw = b""
    for number, (datatype, shape, data) in enumerate(given_tensors):
        inputs += tensor_input(f"x{number}", datatype, shape, b"")
        if isinstance(data, np.ndarray):
            raw += field(7, data.tobytes())
        else:
            raw += field(7, b"".join(struct.pack("<I", len(item)) + item for item in data))
    found = parse(field(1, b"m") + field(3, b"i" * padding) + inputs + raw)
    for tensor, (datatype, shape, data) in zip(found.inputs, given_tensors, strict=True):
        if isinstance(data, np.ndarray):
            assert tensor.data.tobytes() == data.tobytes()
        assert_same(tensor, datatype, shape, data)


@examples(200)
@given(tensors(FIELDS), FORMS, st.integers(1, 3))
def test_wrong_number_of_values_is_refused_in_every_form(tensor, form, surplus):
    datatype, shape, data = tensor
    values = [*values_of(data), *[b"" if datatype == "BYTES" else 0] * surplus]
    message = field(1, b"m") + tensor_input(
        "x", datatype, shape, typed(FIELDS[datatype], values, form)
    )
    with pytest.raises(InvalidRequest, match=f"holds {len(values)}"):
        parse(message)
