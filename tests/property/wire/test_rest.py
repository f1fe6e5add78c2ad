"""REST infer requests against a plain-Python reader and an independent encoder, and mutated at random."""

import base64
import json
import math
import random
import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ksrv.errors import KsrvError
from ksrv.limits import Limits
from ksrv.model.spec import ImageSpec, ModelSpec, TensorSpec
from ksrv.protocol.rest import parse_infer
from ksrv.request import InferRequest
from tests.property.wire import header_oracle
from tests.support.examples import examples

LIMITS = Limits()
SPEC = ModelSpec("m", inputs=(TensorSpec("image", "FP32", (-1, 8, 8, 3), ImageSpec()),))
FORMATS = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "BF16": "H",
    "FP32": "f",
    "FP64": "d",
}
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.one_of(
    NAMES,
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)


def custom(given_names):
    return given_names.filter(lambda name: not name.startswith("triton_"))


PARAMETERS = st.dictionaries(custom(NAMES), SCALARS, max_size=3)


@st.composite
def values_of(draw, datatype, count):
    if datatype == "BYTES":
        element = NAMES
    elif datatype == "BOOL":
        element = st.booleans()
    elif datatype in header_oracle.INTEGERS:
        element = st.integers(*header_oracle.INTEGERS[datatype])
    elif datatype == "BF16":
        element = st.integers(0, 2**16 - 1)
    else:
        width = {"FP16": 16, "FP32": 32, "FP64": 64}[datatype]
        element = st.floats(width=width)
    return draw(st.lists(element, min_size=count, max_size=count))


@st.composite
def tensors(draw):
    datatype = draw(st.sampled_from([*FORMATS, "BYTES"]))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    values = draw(values_of(datatype, math.prod(shape)))
    return draw(NAMES), datatype, shape, values, draw(PARAMETERS)


def nested(values, shape):
    if len(shape) <= 1:
        return values
    step = math.prod(shape[1:])
    return [nested(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def raw(datatype, values):
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(v.encode())) + v.encode() for v in values)
    return struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values)


def same(got, datatype, values):
    if datatype == "BYTES":
        return [bytes(element) for element in got] == [value.encode() for value in values]
    return got.tobytes() == struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values) or (
        # Any NaN is as good as another if JSON carried it.
        got.dtype.kind == "f"
        and np.array_equal(got.ravel(), np.array(values, got.dtype), equal_nan=True)
    )


BASE64 = st.binary(max_size=9).map(lambda content: base64.b64encode(content).decode())
OBJECTS = st.one_of(
    st.fixed_dictionaries({"b64": BASE64}),
    st.fixed_dictionaries({"b64": st.one_of(st.text("aA+/=é", max_size=6), st.integers())}),
    st.dictionaries(st.sampled_from(["b64", "B64", ""]), st.one_of(BASE64, st.none()), max_size=2),
)
ELEMENTS = st.recursive(
    st.one_of(OBJECTS, NAMES, st.integers(-3, 3)), lambda inner: st.lists(inner, max_size=3)
)


@given(st.sampled_from(["BYTES", "FP32", "INT8"]), st.lists(ELEMENTS, max_size=4), st.data())
def test_only_base64_objects_are_allowed_in_data(datatype, elements, data):
    count = sum(1 for _ in header_oracle.flat(elements))
    shape = [data.draw(st.sampled_from([count, count + 1]))]
    entry = {"name": "x", "datatype": datatype, "shape": shape, "data": elements}
    text = json.dumps({"inputs": [entry]}, ensure_ascii=data.draw(st.booleans())).encode()
    try:
        ((*_, expected),) = header_oracle.read(text)[3]
    except header_oracle.Refused:
        with pytest.raises(KsrvError):
            parse_infer(text, None, SPEC, LIMITS)
        return
    (tensor,) = parse_infer(text, None, SPEC, LIMITS).inputs
    if datatype == "BYTES":
        assert [bytes(element) for element in tensor.data] == expected
    else:
        assert tensor.data.ravel().tolist() == expected


@given(st.lists(tensors(), max_size=4, unique_by=lambda tensor: tensor[0]), st.data())
def test_encoded_tensors_decode_exactly(inputs, data):
    entries, tail = [], b""
    for name, datatype, shape, values, parameters in inputs:
        entry = {"name": name, "datatype": datatype, "shape": shape, "parameters": dict(parameters)}
        forms = ["size", "list", "flat", "nested"]
        if datatype in ("FP16", "BF16"):
            forms = ["size", "list"]
        form = data.draw(st.sampled_from(forms), label=name)
        if form in ("flat", "nested"):
            entry["data"] = nested(values, shape) if form == "nested" else values
        elif form == "size" or not values:
            block = raw(datatype, values)
            entry["parameters"]["binary_data_size"] = len(block)
            tail += block
        else:
            sizes = [len(value.encode()) for value in values] if datatype == "BYTES" else None
            block = (
                b"".join(v.encode() for v in values) if sizes is not None else raw(datatype, values)
            )
            entry["parameters"]["binary_data_size"] = ", ".join(map(str, sizes or [len(block)]))
            tail += block
        entries.append(dict(data.draw(st.permutations(list(entry.items())))))
    ascii_only = data.draw(st.booleans())
    text = json.dumps({"inputs": entries, "id": "é"}, ensure_ascii=ascii_only).encode()
    header = str(len(text)) if tail or data.draw(st.booleans()) else None
    request = parse_infer(text + tail, header, SPEC, LIMITS)
    assert request.id == "é" and len(request.inputs) == len(inputs)
    for tensor, (name, datatype, shape, values, parameters) in zip(
        request.inputs, inputs, strict=True
    ):
        assert (tensor.name, tensor.datatype, tensor.shape) == (name, datatype, tuple(shape))
        assert tensor.parameters == parameters
        assert same(tensor.data, datatype, values)


VALID = {
    "id": "7",
    "parameters": {"timeout": 5, "a": 1.5, "sequence_id": "s"},
    "inputs": [
        {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2.5], [3e2, -0.0]]},
        {"name": "i", "datatype": "INT64", "shape": [2], "data": [9007199254740993, -1]},
        {"name": "s", "datatype": "BYTES", "shape": [2], "data": ["a\\u00e9", ["\u20ac"]]},
        {
            "name": "e",
            "datatype": "UINT8",
            "shape": [0],
            "parameters": {"binary_data_size": 0, "k": True},
        },
        {"name": "b", "datatype": "BOOL", "shape": [1], "data": [True]},
    ],
    "outputs": [{"name": "y", "parameters": {"binary_data": True, "classification": 3}}],
    "extra": {"deep": [[{}], None, 1e5]},
}
TEXT = json.dumps(VALID).encode()
TOKENS = [
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b" ", b"\\", b"\n", b"-", b"0", b"1e400", b"NaN"),
    *(
        b"Infinity",
        b"-Infinity",
        b"true",
        b"null",
        b"1.0",
        b"-0",
        b"01",
        b"\\ud800",
        b"\\n",
        b"\xff",
    ),
    *(b"\xc3\xa9", b'"name":"x",', b'"inputs":[],', b"99999999999", b"18446744073709551616", b"{}"),
]


def mutate(text, rng, count):
    body = bytearray(text)
    for _ in range(count):
        where = rng.randrange(len(body) + 1)
        match rng.randrange(5):
            case 0 if where < len(body):
                body[where] = rng.randrange(256)
            case 1:
                del body[where : where + rng.randrange(1, 12)]
            case 2:
                body[where:where] = rng.choice(TOKENS)
            case 3:
                start = rng.randrange(len(body) + 1)
                body[where:where] = body[start : start + rng.randrange(1, 40)]
            case _:
                body[where : where + rng.randrange(1, 4)] = rng.choice(TOKENS)
    return bytes(body)


def outcome(body, header):
    """The request, or the text of the refusal, which must be the client's fault."""
    refused = None
    try:
        return parse_infer(body, header, SPEC, LIMITS)
    except KsrvError as error:
        refused = error
    assert 400 <= refused.http_status < 500
    assert len(refused.message.encode()) <= 1024 and refused.message.isprintable()
    return refused.message


def agrees(text):
    try:
        expected = header_oracle.read(text)
    except header_oracle.Refused:
        expected = None
    # The headerless form and the form with a header for the whole body are one reader's work.
    results = [outcome(text, None)]
    if text:
        results.append(outcome(text, str(len(text))))
    for got in results:
        if expected is None:
            assert isinstance(got, str), text
            assert got == results[0]
            continue
        assert isinstance(got, InferRequest), (got, text)
        identity, parameters, reserved, inputs, outputs = expected
        assert (got.id, got.parameters) == (identity, parameters)
        assert got.priority == min(reserved.get("priority", 0), 2**63 - 1)
        assert (got.deadline_ns is not None) == bool(reserved.get("timeout"))
        assert got.binary_output == reserved.get("binary_data_output", False)
        found = [(o.name, o.binary, o.classification, o.parameters) for o in got.outputs]
        assert found == outputs
        assert len(got.inputs) == len(inputs)
        for tensor, (name, datatype, shape, custom_parameters, values) in zip(
            got.inputs, inputs, strict=True
        ):
            assert (tensor.name, tensor.datatype, tensor.shape) == (name, datatype, shape)
            assert tensor.parameters == custom_parameters
            if datatype == "BYTES":
                assert tensor.data == values
            else:
                assert tensor.data.shape == shape
                expect = np.array(values, tensor.data.dtype)
                np.testing.assert_array_equal(tensor.data.ravel(), expect)


def test_valid_document_agrees_with_the_oracle():
    agrees(TEXT)
    assert isinstance(outcome(TEXT, None), InferRequest)


@pytest.mark.parametrize("seed", range(8))
def test_mutated_documents_agree_with_the_oracle(seed):
    rng = random.Random(seed)
    accepted = 0
    for _ in range(1000):
        text = mutate(TEXT, rng, rng.choice((1, 1, 1, 2, 4)))
        agrees(text)
        accepted += isinstance(outcome(text, None), InferRequest)
    assert accepted > 50  # the mutations do not only break things


JSON = st.recursive(
    st.one_of(st.none(), SCALARS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=20,
)


@given(
    JSON,
    st.sampled_from(["inputs", "outputs", "parameters", "id", "data", "shape", "datatype", "x"]),
)
@example({"a": 2**70}, "parameters")
@example([0, -0.0], "shape")
def test_any_value_in_any_field(value, field):
    entry = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    document = {"inputs": [entry]}
    (entry if field in ("data", "shape", "datatype") else document)[field] = value
    agrees(json.dumps(document).encode())


@pytest.mark.parametrize("seed", range(4))
def test_mutated_binary_bodies_are_requests_or_client_errors(seed):
    rng = random.Random(seed)
    jpeg = b"\xff\xd8\xff\xe0" + bytes(60)
    inputs = [
        {"name": name, "shape": shape, "datatype": datatype} | more
        for name, shape, datatype, more in (
            ("x", [2, 2], "FP32", {"parameters": {"binary_data_size": 16}}),
            ("image", [2], "BYTES", {"parameters": {"binary_data_size": "64,64"}}),
            ("s", [2], "BYTES", {"parameters": {"binary_data_size": 13}}),
            ("j", [2], "INT8", {"data": [1, 2]}),
            ("b", [3], "BOOL", {}),
        )
    ]
    tail = bytes(16) + jpeg * 2 + b"\3\0\0\0abc\2\0\0\0de" + b"\0\1\1"
    text = json.dumps({"inputs": inputs}).encode()
    assert isinstance(outcome(text + tail, str(len(text))), InferRequest)
    for _ in range(2500):
        head, rest = text, tail
        if rng.random() < 0.6:
            head = mutate(text, rng, 1)
        if rng.random() < 0.5:
            rest = mutate(tail, rng, rng.randrange(1, 3))
        length = len(head) + rng.choice((0, 0, 0, 0, -1, 1, rng.randrange(-20, 20)))
        header = rng.choice(
            (str(length), str(length), str(length), None, "0", "", str(2**64), "1x")
        )
        outcome(head + rest, header)


@examples(200)
@given(
    st.binary(max_size=200), st.one_of(st.none(), st.text(max_size=5), st.integers(0, 200).map(str))
)
def test_arbitrary_bytes(body, header):
    outcome(body, header)
