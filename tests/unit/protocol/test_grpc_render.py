"""InferResponse to ModelInferResponse bytes, read back by the protobuf class."""

import mmap

import numpy as np
import pytest

from ksrv.errors import HandlerFailed, InvalidRequest
from ksrv.protocol import grpc as protocol
from ksrv.protocol.protobuf import message_class
from ksrv.request import InferRequest, InferResponse, RequestedOutput, SharedMemoryRef, Tensor
from tests.support.wire.fake_memory import Regions, caller_memory


def rendered(*outputs, id="", extra=None, **fields):
    fields = {"model_name": "m", "model_version": "", "id": "", **fields}
    answer = InferResponse(outputs=list(outputs), **fields)
    parts = protocol.render_infer(answer, InferRequest("m", id=id), parameters=extra)
    return message_class("inference.ModelInferResponse").FromString(b"".join(parts))


def test_every_field_is_read_back():
    values = np.arange(40_000, dtype=np.float32)
    found = rendered(
        Tensor("y", "FP32", (2, 20_000), values, {"k": 2**63}),
        Tensor("t", "BYTES", (2,), [b"a" * 200, memoryview(b"")]),
        Tensor("z", "INT8", (0,), np.zeros(0, np.int8)),
        id="7",
        parameters={"a": True, "b": -5, "c": "é"},
        extra={"d": 1.5},
    )
    assert (found.model_name, found.model_version, found.id) == ("m", "", "7")
    given = {name: one.WhichOneof("parameter_choice") for name, one in found.parameters.items()}
    assert given == {
        "a": "bool_param",
        "b": "int64_param",
        "c": "string_param",
        "d": "double_param",
    }
    assert [(one.name, one.datatype, list(one.shape)) for one in found.outputs] == [
        ("y", "FP32", [2, 20_000]),
        ("t", "BYTES", [2]),
        ("z", "INT8", [0]),
    ]
    assert found.outputs[0].parameters["k"].uint64_param == 2**63
    elements = b"\xc8\0\0\0" + b"a" * 200 + b"\0\0\0\0"
    assert list(found.raw_output_contents) == [values.tobytes(), elements, b""]


def test_array_with_gaps_is_sent_in_order():
    values = np.arange(12, dtype=np.uint16).reshape(3, 4).T
    found = rendered(Tensor("y", "UINT16", (4, 3), values))
    assert found.raw_output_contents[0] == values.tobytes()


def test_tensors_are_sent_without_a_copy():
    values = np.ones(1 << 20, np.uint8)
    answer = InferResponse("m", "", "", [Tensor("y", "UINT8", values.shape, values)])
    parts = protocol.render_infer(answer, InferRequest("m"))
    assert any(np.shares_memory(np.frombuffer(part, np.uint8), values) for part in parts)


def test_outputs_in_shared_memory_leave_their_raw_contents_empty():
    ref, y, z = SharedMemoryRef("r", 8, 16), np.arange(2, dtype=np.float32), np.array([1], np.int8)
    outputs = [Tensor("y", "FP32", (2,), y, {"k": 1}), Tensor("z", "INT8", (1,), z)]
    answer, regions = InferResponse("m", "", "", outputs), Regions()
    wanted = [RequestedOutput("y", shared_memory=ref), RequestedOutput("z")]
    parts = protocol.render_infer(
        answer,
        InferRequest("m", outputs=wanted),
        memory=caller_memory(regions),
    )
    found = message_class("inference.ModelInferResponse").FromString(b"".join(parts))
    assert regions.written == [(ref, y.tobytes())]
    assert list(found.raw_output_contents) == [b"", z.tobytes()]
    told = found.outputs[0].parameters
    assert (told["k"].int64_param, told["shared_memory_region"].string_param) == (1, "r")
    assert told["shared_memory_offset"].int64_param == 8
    assert told["shared_memory_byte_size"].int64_param == y.nbytes
    assert not found.outputs[1].parameters
    wanted[0] = RequestedOutput("y", shared_memory=SharedMemoryRef("r", 0, y.nbytes - 1))
    with pytest.raises(InvalidRequest, match=f"at least {y.nbytes} bytes"):
        protocol.render_infer(
            answer, InferRequest("m", outputs=wanted), memory=caller_memory(regions)
        )


@pytest.mark.parametrize(
    "parameters", [{"p": 2**64}, {"p": None}, {"p": [1]}, {"p": "\ud800"}, {"p": -(2**63) - 1}]
)
def test_unrepresentable_answer_is_a_handler_error(parameters):
    with pytest.raises(HandlerFailed, match="cannot be sent over gRPC"):
        rendered(parameters=parameters)


def test_answer_beyond_the_message_limit_allocates_nothing():
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
    with mmap.mmap(-1, 2**31, flags=flags) as untouched:
        values = np.frombuffer(untouched, np.uint8)
        output = Tensor("y", "UINT8", values.shape, values)
        with pytest.raises(HandlerFailed, match="holds at most 2147483647"):
            rendered(output)
        del values, output


def test_element_beyond_the_prefix_range_is_refused():
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
    with mmap.mmap(-1, 2**32, flags=flags) as untouched:
        view = memoryview(untouched)
        with pytest.raises(HandlerFailed, match="32 bits"):
            rendered(Tensor("t", "BYTES", (1,), [view]))
        view.release()
