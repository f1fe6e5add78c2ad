"""ModelInferRequest bytes become an InferRequest: every datatype, every form, every fault."""

import numpy as np
import pytest

from ksrv.errors import InvalidRequest, NotFound
from ksrv.limits import Limits
from ksrv.model.spec import ImageSpec, ModelSpec, TensorSpec
from ksrv.protocol import grpc as protocol
from ksrv.protocol.protobuf import message_class
from tests.support.wire.fake_memory import caller_memory

LIMITS = Limits()
IMAGE = TensorSpec("image", "FP32", (-1, 8, 8, 3), ImageSpec())
SPEC = ModelSpec("m", inputs=(IMAGE,))


def request(*inputs, raw=(), name="m", parameters=None, outputs=(), **fields):
    made = message_class("inference.ModelInferRequest")(model_name=name, **fields)
    for tensor, datatype, shape, contents in inputs:
        entry = made.inputs.add(name=tensor, datatype=datatype, shape=shape)
        if contents is not None:
            entry.contents.SetInParent()
            for field, values in contents.items():
                getattr(entry.contents, field).extend(values)
    made.raw_input_contents.extend(raw)
    for key, (choice, value) in (parameters or {}).items():
        setattr(made.parameters[key], choice, value)
    for output in outputs:
        made.outputs.add(name=output)
    return made


def spec_of(name, version):
    if name != "m":
        raise NotFound(f"Request for unknown model: '{name}' is not found")
    return SPEC


def parse(made, limits=LIMITS, **options):
    message = made if isinstance(made, bytes) else made.SerializeToString()
    return protocol.parse_infer(message, spec_of, limits, **options)


def refused(made, *words, limits=LIMITS, **options):
    with pytest.raises(InvalidRequest) as caught:
        parse(made, limits, **options)
    for word in words:
        assert word in caught.value.message
    return caught.value.message


def test_contradictory_fields_are_refused():
    raw = np.zeros(4, np.float32).tobytes()
    typed = {"fp32_contents": [0.0] * 4}
    refused(request(("x", "FP32", [4], typed), raw=[raw]), "contents field must not", "'x'", "'m'")
    two = [("x", "FP32", [4], None), ("y", "FP32", [4], None)]
    refused(request(*two, raw=[raw]), "2 inputs and 1 raw_input_contents")
    refused(request(*two[:1], raw=[raw, raw]), "1 inputs and 2 raw_input_contents")
    refused(request(("x", "INT32", [4], typed)), "INT32", "fp32_contents", "int_contents only")
    both = {"fp32_contents": [0.0] * 4, "int_contents": [1]}
    refused(request(("x", "FP32", [4], both)), "int_contents and fp32_contents")
    refused(request(("x", "FP32", [4], {})), "'x'", "4 values", "holds 0")
    refused(request(("x", "FP32", [4], None)), "'x' (index 0) has no data", "fp32_contents")
    refused(request(("x", "BYTES", [2], {"bytes_contents": [b"a"]})), "2 values", "holds 1")


def test_missing_fp16_data_names_only_raw_contents():
    text = refused(request(("x", "FP16", [1], None)), "has no data")
    assert text.endswith("expected an entry of raw_input_contents")
    for datatype in ("FP16", "BF16"):
        refused(request(("x", datatype, [1], {"fp32_contents": [1.0]})), "raw_input_contents")


def test_groups_in_the_message_are_refused():
    """Groups are not fields of the message: the protobuf class decides, and limits their depth to 100."""
    groups = b"\xfb\x01" * 100 + b"\xfc\x01" * 100
    refused(b"\x2a\x90\x03" + groups, "the request is not a ModelInferRequest: ")


def test_sizes_that_disagree_name_both_numbers():
    refused(
        request(("x", "FP32", [4], None), raw=[bytes(12)]),
        "input byte size mismatch for input 'x' (index 0). Expected 16",
        "got 12",
    )
    refused(request(("x", "FP32", [5], {"fp32_contents": [0.0] * 4})), "5 values", "holds 4")


@pytest.mark.parametrize(
    ("datatype", "shape", "word"),
    [
        ("FP33", [1], "'FP33' is not a datatype"),
        ("FP32", [-1], "negative"),
        ("FP32", [2**31], "above 2147483647"),
        ("FP32", [2**31 - 1, 2**31 - 1, 2**31 - 1], "limit"),
        ("FP32", [1] * 33, "33 dimensions"),
    ],
)
def test_invalid_shapes_and_datatypes_are_refused(datatype, shape, word):
    refused(request(("x", datatype, shape, None), raw=[bytes(4)]), word)


def test_bool_bytes_are_zero_or_one():
    made = request(("x", "BOOL", [3], None), raw=[b"\x01\x00\x07"])
    refused(made, "'x' (index 0)", "byte 2 is 7")


def test_parameter_without_a_value_is_refused():
    made = request()
    made.parameters["p"].SetInParent()
    refused(made, "'p'", "must be a string")


def test_shared_memory_input_is_refused():
    made = request(("x", "FP32", [1], None))
    made.inputs[0].parameters["shared_memory_region"].string_param = "r"
    refused(made, "shared memory", "'x'")


def in_region(made, index, size):
    parameters = made.inputs[index].parameters
    parameters["shared_memory_region"].string_param = "r"
    parameters["shared_memory_byte_size"].int64_param = size
    return made


def test_shared_memory_and_message_inputs_combine():
    raw = np.float32([9]).tobytes()
    for position in (0, 1):
        shapes = {position: [2], 1 - position: [1]}
        made = request(*((f"x{at}", "FP32", shapes[at], None) for at in (0, 1)), raw=[raw])
        found = parse(in_region(made, position, 8), memory=caller_memory())
        assert found.inputs[position].data.tolist() == [0, 1]
        assert found.inputs[1 - position].data.tolist() == [9]
        assert found.nbytes == len(made.SerializeToString()) + 8
        made.raw_input_contents.append(raw)
        expected = (
            "1 inputs and 2 raw_input_contents; expected one for each input outside of shared"
        )
        refused(made, expected, memory=caller_memory())
    typed = request(("x", "FP32", [2], None), ("y", "FP32", [1], {"fp32_contents": [9.0]}))
    found = parse(in_region(typed, 0, 8), memory=caller_memory())
    assert [tensor.data.tolist() for tensor in found.inputs] == [[0, 1], [9]]
    many = request(("x", "FP32", [1], None), raw=[raw, raw])
    assert refused(many).endswith("expected one for each input")


def test_input_cannot_be_in_shared_memory_and_in_the_message():
    made = request(("x", "FP32", [1], {"fp32_contents": [0.0]}))
    refused(
        in_region(made, 0, 4),
        "input 'x' (index 0) has a shared memory region and data too",
        memory=caller_memory(),
    )


def test_texts_of_open_shape_are_counted():
    spec = ModelSpec("any", accepts_any_inputs=True)

    def read(datatype, shape, contents, spec=spec):
        message = request(("s", datatype, shape, contents)).SerializeToString()
        return protocol.parse_infer(message, lambda name, version: spec, LIMITS).inputs[0]

    texts = {"bytes_contents": [b"a", b"b"]}
    assert (read("BYTES", [-1], texts).shape, read("BYTES", [2, 1], texts).shape) == ((2,), (2, 1))
    for datatype, shape, contents, model in (
        ("BYTES", [-1], texts, SPEC),
        ("BYTES", [-2], texts, spec),
        ("BYTES", [-1, 1], texts, spec),
        ("BYTES", [-1], {}, spec),
        ("FP32", [-1], {"fp32_contents": [0.0]}, spec),
    ):
        with pytest.raises(InvalidRequest, match="negative"):
            read(datatype, shape, contents, model)


def test_counts_are_limited():
    limits = Limits(inputs=4, rank=3, parameters=5, json=100)
    four = [(f"x{i}", "BOOL", [1], None) for i in range(4)]
    assert len(parse(request(*four, raw=[b"\0"] * 4), limits).inputs) == 4
    fifth = ("y", "BOOL", [1], None)
    refused(request(*four, fifth, raw=[b"\0"] * 4), "--limits-inputs is 4", limits=limits)
    refused(request(*four, raw=[b"\0"] * 5), "--limits-inputs is 4", limits=limits)
    refused(request(outputs=list("abcde")), "--limits-inputs is 4", limits=limits)
    refused(request(("x", "BOOL", [1] * 4, None)), "--limits-rank is 3", limits=limits)
    many = {str(i): ("bool_param", True) for i in range(6)}
    refused(request(parameters=many), "--limits-parameters is 5", limits=limits)
    refused(request(id="i" * 101), "--limits-json is 100", limits=limits)


def test_error_texts_quote_at_most_64_characters_of_the_client():
    text = refused(request(("x" * 10_000, "é" * 10_000, [1], None)))
    assert len(text) < 1024
    assert text.isascii()
