"""InferResponse to ModelInferResponse bytes, read back by the protobuf class."""

import mmap

import numpy as np
import pytest

from ksrv._native.protobuf import infer_response as response
from ksrv.dialects.triton.extensions.shared_memory.tensors import CallerMemory
from ksrv.errors import HandlerFailed, InvalidRequest
from ksrv.protocol import grpc as protocol
from ksrv.protocol.protobuf import message_class
from ksrv.request import InferRequest, InferResponse, RequestedOutput, SharedMemoryRef, Tensor


def rendered(*outputs, id="", stream=False, extra=None, **fields):
    fields = {"model_name": "m", "model_version": "", "id": "", **fields}
    answer = InferResponse(outputs=list(outputs), **fields)
    message = protocol.render_infer(
        answer, InferRequest("m", id=id), parameters=extra, stream=stream
    )
    name = "ModelStreamInferResponse" if stream else "ModelInferResponse"
    return message_class(f"inference.{name}").FromString(message)


def test_array_with_gaps_is_sent_in_order():
    values = np.arange(12, dtype=np.uint16).reshape(3, 4).T
    found = rendered(Tensor("y", "UINT16", (4, 3), values))
    assert found.raw_output_contents[0] == values.tobytes()


def test_large_tensors_are_sent_without_a_copy():
    values = np.ones(1 << 20, np.uint8)
    for count, in_parts in ((1, False), (1 << 20, True)):
        output = Tensor("y", "UINT8", (count,), values[:count])
        answer = InferResponse("m", "", "", [output])
        parts = protocol.render_infer(answer, InferRequest("m"), apart=True)
        assert isinstance(parts, list) == in_parts
        whole = b"".join(bytes(part) for part in parts) if in_parts else parts
        assert whole == protocol.render_infer(answer, InferRequest("m"))
        views = [np.frombuffer(part, np.uint8) for part in parts] if in_parts else []
        assert any(np.shares_memory(view, values) for view in views) == in_parts


class Regions:
    """Replaces shared memory: records what is written."""

    def __init__(self):
        self.written = []

    def write(self, ref, data, user):
        self.written.append((ref, bytes(data)))


@pytest.mark.parametrize("apart", [False, True])
def test_outputs_in_shared_memory_leave_their_raw_contents_empty(apart):
    ref, y, z = SharedMemoryRef("r", 8, 16), np.arange(2, dtype=np.float32), np.array([1], np.int8)
    outputs = [Tensor("y", "FP32", (2,), y, {"k": 1}), Tensor("z", "INT8", (1,), z)]
    answer, regions = InferResponse("m", "", "", outputs), Regions()
    wanted = [RequestedOutput("y", shared_memory=ref), RequestedOutput("z")]
    message = protocol.render_infer(
        answer,
        InferRequest("m", outputs=wanted),
        apart=apart,
        memory=CallerMemory(regions, lambda: None),
    )
    found = message_class("inference.ModelInferResponse").FromString(message)
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
            answer, InferRequest("m", outputs=wanted), memory=CallerMemory(regions, lambda: None)
        )


@pytest.mark.parametrize(
    "parameters", [{"p": 2**64}, {"p": None}, {"p": "\ud800"}, {"p": -(2**63) - 1}]
)
def test_unrepresentable_answer_is_a_handler_error(parameters):
    with pytest.raises(HandlerFailed, match="cannot be sent over gRPC"):
        rendered(parameters=parameters)


@pytest.mark.parametrize("stream", [False, True])
def test_answer_beyond_the_message_limit_allocates_nothing(stream):
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
    with mmap.mmap(-1, 2**31, flags=flags) as untouched:
        values = np.frombuffer(untouched, np.uint8)
        output = Tensor("y", "UINT8", values.shape, values)
        with pytest.raises(HandlerFailed, match="holds at most 2147483647"):
            rendered(output, stream=stream)
        del values, output


def test_element_beyond_the_prefix_range_is_refused():
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
    with mmap.mmap(-1, 2**32, flags=flags) as untouched:
        view = memoryview(untouched)
        with pytest.raises(HandlerFailed, match="4 GiB"):
            rendered(Tensor("t", "BYTES", (1,), [view]))
        view.release()


def test_an_array_with_gaps_must_be_made_contiguous_by_the_caller():
    with pytest.raises(ValueError, match="not C-contiguous"):  # numpy's error text
        response.render("m", "", "", {}, [("y", "UINT8", (2,), {}, np.zeros(4, np.uint8)[::2])])


def test_parameters_of_other_types_have_no_wire_form():
    with pytest.raises(TypeError, match="parameter 'p' is a list"):
        response.render("m", "", "", {"p": [1]}, [])
