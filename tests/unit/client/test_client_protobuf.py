"""The client's messages as mappings, compared with protobuf's classes."""

import pytest

from ksrv.client import protobuf
from ksrv.protocol.protobuf import message_class


def request_bytes(**values):
    return protobuf.encode("ModelInfer", values)


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
    read = protobuf.decode("ModelInfer", message.SerializeToString())
    assert read["model_name"] == "cats" and read["model_version"] == "" and read["id"] == "7"
    assert read["parameters"] == {"n": -1, "b": False}
    assert read["outputs"] == [
        {"name": "y", "datatype": "INT64", "shape": [3, 0, 1 << 40], "parameters": {}}
    ]
    assert [bytes(block) for block in read["raw_output_contents"]] == [b"", b"abc"]


def test_missing_fields_have_defaults():
    message = message_class("inference.ModelStatisticsResponse")()
    message.model_stats.add(name="m").memory_usage.add(type="CPU", byte_size=5)
    read = protobuf.decode("ModelStatistics", message.SerializeToString())
    (stats,) = read["model_stats"]
    assert stats["name"] == "m" and stats["inference_count"] == 0
    assert stats["inference_stats"]["queue"] == {"count": 0, "ns": 0}


@pytest.mark.parametrize("content", [b"\x0a", b"\x0a\x05ab", b"\xff" * 12, b"\x0b", b"\x09\x00"])
def test_broken_bytes_are_a_value_error(content):
    with pytest.raises(ValueError, match="message"):
        protobuf.decode("ModelInfer", content)


def test_a_parameter_of_another_type_is_refused():
    with pytest.raises(ValueError, match="a parameter is"):
        request_bytes(parameters={"a": [1]})
