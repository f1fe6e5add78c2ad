"""The scan against the protobuf class: for any bytes, both read the same or both refuse."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksrv._native.protobuf import infer_request as native
from ksrv.errors import InvalidRequest
from ksrv.limits import Limits
from ksrv.protocol import grpc as protocol
from ksrv.protocol.protobuf import message_class
from tests.support.examples import examples

DecodeError = pytest.importorskip("google.protobuf.message").DecodeError
LIMITS = Limits()

TYPED = {
    "bool_contents": ("BOOL", st.booleans()),
    "int_contents": ("INT32", st.integers(-(2**31), 2**31 - 1)),
    "int64_contents": ("INT64", st.integers(-(2**63), 2**63 - 1)),
    "uint_contents": ("UINT32", st.integers(0, 2**32 - 1)),
    "uint64_contents": ("UINT64", st.integers(0, 2**64 - 1)),
    "fp32_contents": ("FP32", st.floats(width=32)),
    "fp64_contents": ("FP64", st.floats()),
    "bytes_contents": ("BYTES", st.binary(max_size=20)),
}
FIELDS = {1: "bool_contents", 2: "int_contents", 3: "int64_contents", 4: "uint_contents",
          5: "uint64_contents", 6: "fp32_contents", 7: "fp64_contents", 8: "bytes_contents"}  # fmt: skip


def parameter_of(value):
    choice = value.WhichOneof("parameter_choice")
    return None if choice is None else getattr(value, choice)


def same(first, second):
    """Equality under which NaN equals itself."""
    return repr(first) == repr(second)


def assert_equal(found, expected):
    """Compare a scan with a parsed message, field by field."""
    assert found.model_name == expected.model_name
    assert found.model_version == expected.model_version
    assert found.id == expected.id
    parameters = {key: parameter_of(value) for key, value in expected.parameters.items()}
    assert same(sorted(found.parameters.items()), sorted(parameters.items()))
    assert len(found.inputs) == len(expected.inputs)
    for entry, twin in zip(found.inputs, expected.inputs, strict=True):
        assert (entry.name, entry.datatype) == (twin.name, twin.datatype)
        assert entry.shape == tuple(twin.shape)
        parameters = {key: parameter_of(value) for key, value in twin.parameters.items()}
        assert same(sorted(entry.parameters.items()), sorted(parameters.items()))
        assert entry.has_contents == twin.HasField("contents")
        given = [field for field, name in FIELDS.items() if len(getattr(twin.contents, name))]
        assert entry.fields == sum(1 << field for field in given)
        if len(given) == 1:
            assert_values(found, entry, FIELDS[given[0]], getattr(twin.contents, FIELDS[given[0]]))
    assert [(name, len(parameters)) for name, parameters in found.outputs] == [
        (out.name, len(out.parameters)) for out in expected.outputs
    ]
    assert [found.message[at : at + size] for at, size in found.raw] == list(
        expected.raw_input_contents
    )


def assert_values(found, entry, field, values):
    assert entry.elements == len(values)
    if field == "bytes_contents":
        assert [bytes(element) for element in found.elements(entry)] == list(values)
        return
    offset, size = entry.packed
    packed = found.message[offset : offset + size]
    if field in ("fp32_contents", "fp64_contents"):
        kind = "f" if field == "fp32_contents" else "d"
        assert same(struct.unpack(f"<{len(values)}{kind}", packed), tuple(values))
        return
    datatype = TYPED[field][0]
    if entry.datatype == datatype:
        out = np.empty(len(values), {"BOOL": "?"}.get(datatype, datatype.lower()))
        found.decode(entry, out)
        assert out.tolist() == list(values)


def compare(data):
    """Read `data` both ways."""
    try:
        expected = message_class("inference.ModelInferRequest").FromString(data)
    except DecodeError:
        expected = None
    try:
        found = native.scan(data)
    except native.MessageError as error:
        if "the limit --" in str(error):
            return "limit"
        assert expected is None, "the scan refuses what protobuf reads"
        with pytest.raises(InvalidRequest):
            protocol.read_request(data, LIMITS)
        return "malformed"
    if found is not None:
        assert expected is not None, "the scan reads what protobuf refuses"
        assert_equal(found, expected)
        return "certain"
    if expected is None:
        with pytest.raises(InvalidRequest):
            protocol.read_request(data, LIMITS)
        return "refused"
    rewritten = protocol.read_request(data, LIMITS)
    expected.DiscardUnknownFields()
    assert_equal(rewritten, expected)
    return "rewritten"


@st.composite
def parameters(draw, into):
    for key in draw(st.lists(st.text(max_size=5), max_size=3)):
        choice, value = draw(
            st.one_of(
                st.tuples(st.just("bool_param"), st.booleans()),
                st.tuples(st.just("int64_param"), st.integers(-(2**63), 2**63 - 1)),
                st.tuples(st.just("string_param"), st.text(max_size=10)),
                st.tuples(st.just("double_param"), st.floats()),
                st.tuples(st.just("uint64_param"), st.integers(0, 2**64 - 1)),
                st.just((None, None)),
            )
        )
        if choice is None:
            into[key].SetInParent()
        else:
            setattr(into[key], choice, value)


@st.composite
def requests(draw):
    made = message_class("inference.ModelInferRequest")(
        model_name=draw(st.text(max_size=10)),
        model_version=draw(st.text(max_size=3)),
        id=draw(st.text(max_size=5)),
    )
    draw(parameters(made.parameters))
    for _ in range(draw(st.integers(0, 3))):
        field = draw(st.sampled_from(sorted(TYPED)))
        datatype, values = TYPED[field]
        entry = made.inputs.add(name=draw(st.text(max_size=5)), datatype=datatype)
        entry.shape.extend(draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)))
        draw(parameters(entry.parameters))
        if draw(st.booleans()):
            entry.contents.SetInParent()
            getattr(entry.contents, field).extend(draw(st.lists(values, max_size=6)))
    for _ in range(draw(st.integers(0, 2))):
        draw(parameters(made.outputs.add(name=draw(st.text(max_size=5))).parameters))
    made.raw_input_contents.extend(draw(st.lists(st.binary(max_size=20), max_size=3)))
    return made


@examples(150)
@given(requests())
def test_ordinary_messages_are_read_natively(made):
    assert compare(made.SerializeToString()) == "certain"


@examples(150)
@given(requests(), requests())
def test_concatenated_messages_are_merged(first, second):
    data = first.SerializeToString() + second.SerializeToString()
    assert compare(data) in ("certain", "rewritten")


@examples(500)
@given(
    requests(),
    st.lists(
        st.tuples(st.integers(0, 2**16), st.sampled_from("ridc"), st.integers(0, 255)), max_size=4
    ),
)
def test_mutated_messages(made, changes):
    data = bytearray(made.SerializeToString())
    for at, change, value in changes:
        at %= len(data) + 1
        match change:
            case "r":
                data[at : at + 1] = bytes([value])
            case "i":
                data[at:at] = bytes([value])
            case "d":
                del data[at : at + 1 + value % 3]
            case _:
                data[at:at] = data[at : at + value % 16]
    compare(bytes(data))


@examples(300)
@given(st.binary(max_size=60))
def test_arbitrary_bytes(data):
    compare(data)


def typed(field, packed):
    """A request with one input that has these bytes in one typed field."""
    contents = bytes([field << 3 | 2, len(packed)]) + packed
    entry = b"\x2a" + bytes([len(contents)]) + contents
    return b"\x2a" + bytes([len(entry)]) + entry


NINE = b"\xff" * 9


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (b"\x0a\x01", "malformed"),  # a text that is cut
        (b"\x8a", "malformed"),
        (b"\x0a" + NINE + b"\xff\x01", "malformed"),  # a varint of 11 bytes
        (b"\x02\x00", "refused"),  # field 0: protobuf refuses it
        (b"\x0c", "malformed"),  # the end of a group that has not begun
        (b"\x0b\x14", "malformed"),  # of another group
        (b"\x0b\x08\x01\x0c", "rewritten"),
        (b"\x0b" * 100 + b"\x0c" * 100, "rewritten"),
        (b"\x0b" * 101 + b"\x0c" * 101, "malformed"),
        (b"\x42\x00", "rewritten"),  # a field after the last known field
        (b"\x0f", "malformed"),  # unknown kinds of fields
        (b"\x48", "malformed"),  # fields that nobody knows, cut
        (b"\x49" + b"\x0a\x00" * 3, "malformed"),  # although what is there are fields
        (b"\x48\x01", "rewritten"),  # and whole
        (b"\x49" + b"x" * 8, "rewritten"),
        (b"\x4a\x02xx", "rewritten"),
        (b"\x4d" + b"x" * 4, "rewritten"),
        (typed(3, NINE + b"\x01"), "certain"),
        (typed(3, NINE + b"\x02"), "rewritten"),  # bits beyond the 64th
        (typed(3, b"\xff" * 10 + b"\x01"), "malformed"),
        (typed(3, b"\x80"), "malformed"),
        (typed(3, b"\x80" * 8 + b"\x01\x01"), "certain"),
        (typed(6, b"xxxx"), "certain"),
        (typed(6, b"xxx"), "malformed"),
        (typed(7, b"x" * 8), "certain"),
        (typed(7, b"x" * 7), "malformed"),
        (typed(8, b"\xff"), "certain"),
        (b"\x22\x07\x12\x05\x21xxxx", "malformed"),  # half a double of a parameter
        (b"\x22\x03\x12\x01\x10", "malformed"),  # a parameter's number that is cut
        (b"\x22\x04\x12\x02\x00\x01", "refused"),  # its field 0
        (b"\x22\x04\x12\x02\x30\x01", "rewritten"),  # its field 6
        (b"\x22\x05\x12\x03\x1a\x01a", "certain"),
        (b"\x22\x05\x12\x03\x1a\x01\xff", "malformed"),  # no UTF-8
        (b"\x22\x05\x12\x03\x31\x08\x01", "malformed"),  # a field that nobody knows, cut
        (b"\x22\x06\x1a\x04\x1a\x02hi", "rewritten"),  # an entry's field 3
        (b"\x8a\x00\x00", "rewritten"),  # a tag with a needless byte
        (b"\x0a\x80\x00", "rewritten"),  # a length with one
        (b"\x0a" + NINE + b"\x01", "malformed"),
        (b"\x08" + NINE + b"\x7f", "rewritten"),
        (b"\x0a\x03\xed\xa0\x80", "malformed"),  # a surrogate in UTF-8
        (b"\x2a\x04\x18\x01\x18\x02", "rewritten"),  # an unpacked shape
        (b"\x2a\x06\x1a\x01\x01\x1a\x01\x02", "rewritten"),  # a packed shape in two pieces
        (b"\x2a\x04\x2a\x02\x32\x00", "certain"),  # empty packed floats
        (b"\x2a\x04\x2a\x02\x08\x01", "rewritten"),  # an unpacked bool
        (b"\x2a\x0e\x2a\x0c\x1a\x0a" + NINE + b"\x7f", "rewritten"),
        (b"\x22\x00", "certain"),  # an empty map entry
        (b"\x22\x06\x12\x04\x08\x01\x10\x02", "rewritten"),  # two choices
        (b"\x2a\x01\x0a", "malformed"),  # of an input
        (b"\x2a\x02\x02\x00", "refused"),
        (b"\x2a\x02\x08\x01", "rewritten"),  # a name that is a number
        (b"\x2a\x03\x31\x0a\x00", "malformed"),
        (b"\x2a\x40" + b"\x18\x01" * 32, "rewritten"),  # a shape of 32 dimensions, one by one
        (b"\x2a\x42" + b"\x18\x01" * 33, "limit"),
        (b"\x2a\x42" + b"\x30\x01" * 33, "rewritten"),
        (b"\x2a\x22\x1a\x20" + b"\x01" * 32, "certain"),
        (b"\x2a\x23\x1a\x21" + b"\x01" * 33, "limit"),
        (b"\x2a\x25\x1a\x23" + b"\x01" * 33 + b"\xff" * 2, "malformed"),
        (b"\x32\x02\x18\x01", "rewritten"),  # of an output
        (b"\x32\x02\x1a\x00", "rewritten"),
        (b"\x32\x01\x0a", "malformed"),
    ],
)
def test_message_has_expected_outcome(data, outcome):
    assert compare(data) == outcome


def test_limit_error_names_count_and_limit():
    shape = b"\x2a\x25\x1a\x23" + b"\x01" * 35
    with pytest.raises(
        native.MessageError, match="a shape has 35 dimensions, and the limit --limits-rank is 32"
    ):
        native.scan(shape)
    with pytest.raises(native.MessageError, match="names and strings have 5 bytes or more"):
        native.scan(b"\x0a\x03abc\x1a\x02de", text=4)
    assert native.scan(b"\x0a\x03abc\x1a\x02de", text=5).id == "de"
