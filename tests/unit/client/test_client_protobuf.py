"""The client's own protobuf codec beside protobuf's."""

import pytest

from ksrv.client import protobuf
from ksrv.protocol.protobuf import INFERENCE, message_class, methods


def request_bytes(**values):
    return protobuf.encode(protobuf.REQUESTS["ModelInfer"], values)


def test_every_call_of_the_client_is_one_of_the_service():
    for name in protobuf.REQUESTS:
        assert name in methods(INFERENCE)
    assert protobuf.REQUESTS.keys() == protobuf.RESPONSES.keys()


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("name", protobuf.REQUESTS)
def test_field_numbers_and_kinds_are_those_of_the_proto_file(name, side):
    ours = (protobuf.REQUESTS, protobuf.RESPONSES)[side][name]
    check_fields(ours, methods(INFERENCE)[name][side].DESCRIPTOR)


def check_fields(ours, descriptor):
    for number, field in ours.items():
        theirs = descriptor.fields_by_number[number]
        if ours is not protobuf.PARAMETER:
            assert theirs.name == field.name
        assert theirs.is_repeated == (field.form != "single")
        if theirs.message_type is None:
            kinds = {3: "int64", 4: "uint64", 8: "bool", 9: "string", 12: "bytes", 1: "double"}
            assert kinds[theirs.type] == field.kind
        elif field.form == "map":
            value = theirs.message_type.fields_by_name["value"]
            if isinstance(field.kind, str):
                assert value.message_type is None
            else:
                check_fields(field.kind, value.message_type)
        else:
            check_fields(field.kind, theirs.message_type)


def test_a_request_is_read_by_protobuf():
    content = request_bytes(
        model_name="cats",
        model_version="3",
        id="ü",
        parameters={"a": True, "b": -5, "c": "text", "d": 1.5, "e": 2**64 - 1, "f": 0},
        inputs=[{"name": "x", "datatype": "FP32", "shape": (2, -1, 300)}],
        outputs=[{"name": "y", "parameters": {"classification": 3}}],
        raw_input_contents=[b"", b"abc", memoryview(b"x" * 500)],
    )
    read = message_class("inference.ModelInferRequest").FromString(content)
    assert (read.model_name, read.model_version, read.id) == ("cats", "3", "ü")
    assert read.parameters["a"].bool_param is True
    assert read.parameters["b"].int64_param == -5
    assert read.parameters["c"].string_param == "text"
    assert read.parameters["d"].double_param == 1.5
    assert read.parameters["e"].uint64_param == 2**64 - 1
    assert read.parameters["f"].WhichOneof("parameter_choice") == "int64_param"
    assert list(read.inputs[0].shape) == [2, -1, 300]
    assert read.outputs[0].parameters["classification"].int64_param == 3
    assert list(read.raw_input_contents) == [b"", b"abc", b"x" * 500]


def test_an_answer_of_protobuf_is_read():
    message = message_class("inference.ModelInferResponse")(model_name="cats", id="7")
    message.outputs.add(name="y", datatype="INT64", shape=[3, 0, 1 << 40])
    message.parameters["n"].int64_param = -1
    message.parameters["b"].bool_param = False
    message.raw_output_contents.extend([b"", b"abc"])
    read = protobuf.decode(
        protobuf.RESPONSES["ModelInfer"], memoryview(message.SerializeToString())
    )
    assert read["model_name"] == "cats" and read["model_version"] == "" and read["id"] == "7"
    assert read["parameters"] == {"n": -1, "b": False}
    assert read["outputs"] == [
        {"name": "y", "datatype": "INT64", "shape": [3, 0, 1 << 40], "parameters": {}}
    ]
    assert [bytes(block) for block in read["raw_output_contents"]] == [b"", b"abc"]


def test_what_is_not_known_is_left_out_and_what_is_missing_has_its_default():
    message = message_class("inference.ModelStatisticsResponse")()
    message.model_stats.add(name="m").memory_usage.add(type="CPU", byte_size=5)
    read = protobuf.decode(
        protobuf.RESPONSES["ModelStatistics"], memoryview(message.SerializeToString())
    )
    (stats,) = read["model_stats"]
    assert stats["name"] == "m" and stats["inference_count"] == 0
    assert stats["inference_stats"]["queue"] == {"count": 0, "ns": 0}


@pytest.mark.parametrize("content", [b"\x0a", b"\x0a\x05ab", b"\xff" * 12, b"\x0b", b"\x09\x00"])
def test_broken_bytes_are_a_value_error(content):
    with pytest.raises(ValueError, match="message"):
        protobuf.decode(protobuf.RESPONSES["ModelInfer"], memoryview(content))


def test_a_parameter_of_another_type_is_refused():
    with pytest.raises(ValueError, match="a parameter is"):
        request_bytes(parameters={"a": [1]})
