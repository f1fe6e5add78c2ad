"""Writing answers over REST: JSON and binary outputs, NaN, BYTES."""

import json

import numpy as np
import orjson
import pytest

from ksrv._native.memory import buffer_pool
from ksrv.errors import InvalidRequest
from ksrv.protocol.rest import render_infer
from ksrv.request import InferRequest, InferResponse, RequestedOutput, SharedMemoryRef, Tensor
from tests.support.wire.fake_memory import Regions, caller_memory

Y = np.arange(6, dtype=np.float32).reshape(2, 3)
Z = np.array([9007199254740993, -1])


def tensor(name, data, datatype=None, **fields):
    names = {"f4": "FP32", "f8": "FP64", "i8": "INT64", "f2": "FP16", "b1": "BOOL", "u8": "UINT64"}
    if isinstance(data, list):
        return Tensor(name, "BYTES", (len(data),), data, **fields)
    return Tensor(name, datatype or names[data.dtype.str[1:]], data.shape, data, **fields)


def render(*outputs, asked=(), binary_output=False, id="", version="", parameters=None, **options):
    request = InferRequest("m", outputs=list(asked), binary_output=binary_output)
    response = InferResponse("m", version, id, list(outputs), parameters or {})
    body = render_infer(response, request, **options)
    joined = b"".join(body.parts)
    assert len(joined) == body.content_length
    return body, joined


def document(body, joined):
    return orjson.loads(joined[: body.header_length or len(joined)])


def refusal(*args, **kwargs):
    with pytest.raises(InvalidRequest) as caught:
        render(*args, **kwargs)
    return str(caught.value)


class TestJson:
    def test_complete_answer_is_rendered(self):
        body, joined = render(
            tensor("y", Y), tensor("z", Z), id="42", version="3", parameters={"a": 1.5}
        )
        assert body.content_type == "application/json" and body.header_length is None
        assert document(body, joined) == {
            "model_name": "m",
            "model_version": "3",
            "id": "42",
            "parameters": {"a": 1.5},
            "outputs": [
                {"name": "y", "datatype": "FP32", "shape": [2, 3], "data": Y.ravel().tolist()},
                {"name": "z", "datatype": "INT64", "shape": [2], "data": Z.tolist()},
            ],
        }

    @pytest.mark.parametrize(
        "data",
        [
            np.array([[1, 2], [3, 4]], "<f8").T,
            np.arange(12, dtype="<i8")[::2],
            np.array([1.5, 2.5], ">f4"),
            np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            np.array(7.0),
            np.zeros((0, 3), "f4"),
            np.array([True, False]),
            np.array([0, 2**64 - 1], "u8"),
        ],
    )
    def test_arrays_of_every_layout_are_rendered(self, data):
        (output,) = document(*render(tensor("y", data)))["outputs"]
        assert output["shape"] == list(data.shape)
        assert output["data"] == data.ravel().tolist()

    def test_nan_is_null_or_a_literal(self):
        data = np.array([np.nan, np.inf, -np.inf, 1.5], "f4")
        _, joined = render(tensor("y", data))
        assert orjson.loads(joined)["outputs"][0]["data"] == [None, None, None, 1.5]
        _, joined = render(tensor("y", data), tensor("z", Z), nan_literals=True)
        assert b"[NaN,Infinity,-Infinity,1.5]" in joined
        assert json.loads(joined)["outputs"][1]["data"] == Z.tolist()

    def test_unrepresentable_values_name_binary_data(self):
        assert "output 'h' is FP16" in refusal(tensor("h", np.zeros(1, "f2")))
        assert "'binary_data'" in refusal(tensor("h", np.zeros(1, "u2"), "BF16"))


class TestBinary:
    def test_parts_are_views_without_a_copy(self):
        before = buffer_pool.copied_bytes()
        body, _ = render(tensor("y", Y), tensor("z", Z), binary_output=True)
        assert len(body.parts) == 3
        assert np.shares_memory(np.frombuffer(body.parts[1], "f4"), Y)
        assert buffer_pool.copied_bytes() == before

    def test_strided_output_is_copied_and_counted(self):
        before = buffer_pool.copied_bytes()
        _, joined = render(tensor("y", Y.T), binary_output=True)
        assert joined.endswith(Y.T.tobytes()) and buffer_pool.copied_bytes() - before == Y.nbytes

    def test_strings_are_prefixed(self):
        body, joined = render(tensor("s", [b"\xff", memoryview(b"abc")]), binary_output=True)
        assert joined[body.header_length :] == b"\1\0\0\0\xff\3\0\0\0abc"

    def test_empty_outputs_are_binary_too(self):
        body, joined = render(
            tensor("y", np.zeros((0, 4), "f4")), tensor("s", []), binary_output=True
        )
        assert body.content_type == "application/octet-stream"
        assert body.header_length == len(joined) and len(body.parts) == 1
        assert [o["parameters"]["binary_data_size"] for o in document(body, joined)["outputs"]] == [
            0,
            0,
        ]

    def test_tensor_parameters_are_kept(self):
        output = tensor("y", Y, parameters={"a": 1})
        body, joined = render(output, binary_output=True)
        assert document(body, joined)["outputs"][0]["parameters"] == {
            "a": 1,
            "binary_data_size": 24,
        }
        assert output.parameters == {"a": 1}


def test_shared_memory_output_has_no_data():
    ref = SharedMemoryRef("r", 8, 32)
    for binary in (None, True, False):
        regions = Regions()
        asked = [RequestedOutput("y", binary, shared_memory=ref), RequestedOutput("z", True)]
        body, joined = render(
            tensor("y", Y), tensor("z", Z), asked=asked, memory=caller_memory(regions)
        )
        placed, other = document(body, joined)["outputs"]
        assert placed == {"name": "y", "datatype": "FP32", "shape": [2, 3]}
        assert other["parameters"] == {"binary_data_size": 16}
        assert joined[body.header_length :] == Z.tobytes()
        assert regions.written == [(ref, Y.tobytes())]
    small = RequestedOutput("y", shared_memory=SharedMemoryRef("r", 0, Y.nbytes - 1))
    assert f"at least {Y.nbytes} bytes" in refusal(
        tensor("y", Y), asked=[small], memory=caller_memory()
    )
