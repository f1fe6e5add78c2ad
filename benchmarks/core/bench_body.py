"""A binary infer request of 602 KB to arrays, against msgspec, orjson and json on the same body.

`header` rows stop at arrays and parsed fields, as the alternatives do; `request` is the whole way to
ksrv's InferRequest. The alternatives check what a careful author would check: that the sizes fit.
"""

import json
import math
from typing import Any

import msgspec
import numpy as np
import orjson
import pytest

from ksrv._native.infer import infer_body
from ksrv._native.memory import buffer_pool
from ksrv.limits import Limits
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.protocol.rest import parse_infer, render_infer
from ksrv.request import InferRequest, InferResponse, Tensor

SHAPE = [1, 224, 224, 3]
PIXELS = np.random.default_rng(0).random(SHAPE, np.float32)
DTYPES: dict[str, Any] = {
    "FP32": np.dtype("<f4"),
    "INT64": np.dtype("<i8"),
    "UINT8": np.dtype("u1"),
}


class InputParameters(msgspec.Struct):
    binary_data_size: int


class Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: InputParameters


class Request(msgspec.Struct):
    inputs: list[Input]
    id: str = ""
    parameters: dict[str, bool | int | float | str] = {}
    outputs: list[dict[str, object]] = []


DECODER = msgspec.json.Decoder(Request)


def header_and_body() -> Any:
    document = {
        "id": "42",
        "inputs": [
            {
                "name": "image",
                "shape": SHAPE,
                "datatype": "FP32",
                "parameters": {"binary_data_size": PIXELS.nbytes},
            }
        ],
        "outputs": [{"name": "probabilities", "parameters": {"binary_data": True}}],
    }
    head = json.dumps(document).encode()
    block = buffer_pool.lease(len(head) + PIXELS.nbytes + 64)
    start = -len(head) % 64
    view = memoryview(block)[start : start + len(head) + PIXELS.nbytes]
    view[:] = head + PIXELS.tobytes()
    return len(head), view


def with_ksrv(view: Any, length: int) -> Any:
    arrays = {}
    for entry in infer_body.read(view, length).inputs:
        arrays[entry.name] = entry.array
    return arrays


def with_msgspec(view: Any, length: int) -> Any:
    request = DECODER.decode(view[:length])
    offset, arrays = length, {}
    for entry in request.inputs:
        size, dtype = entry.parameters.binary_data_size, DTYPES[entry.datatype]
        count = math.prod(entry.shape)
        if count * dtype.itemsize != size or offset + size > len(view):
            raise ValueError("sizes disagree")
        arrays[entry.name] = np.frombuffer(view, dtype, count, offset).reshape(entry.shape)
        offset += size
    if offset != len(view):
        raise ValueError("trailing bytes")
    return arrays


def with_untyped(loads: Any, view: Any, length: int, copy: Any) -> Any:
    request = loads(bytes(view[:length]))
    offset, arrays = length, {}
    for entry in request["inputs"]:
        size, dtype = entry["parameters"]["binary_data_size"], DTYPES[entry["datatype"]]
        count = math.prod(entry["shape"])
        if count * dtype.itemsize != size or offset + size > len(view):
            raise ValueError("sizes disagree")
        if copy:
            found = np.frombuffer(bytes(view[offset : offset + size]), dtype)
        else:
            found = np.frombuffer(view, dtype, count, offset)
        arrays[entry["name"]] = found.reshape(entry["shape"])
        offset += size
    if offset != len(view):
        raise ValueError("trailing bytes")
    return arrays


def timed(benchmark: Any, run: Any) -> Any:
    """Time a run of about a microsecond many at a time, so that the time does not include the clock."""
    return benchmark.pedantic(run, rounds=400, iterations=100, warmup_rounds=5)


@pytest.mark.parametrize("reader", ["ksrv", "msgspec", "orjson", "json + slices"])
def test_header(benchmark: Any, reader: Any) -> None:
    length, view = header_and_body()
    before = buffer_pool.copied_bytes()
    run = {
        "ksrv": lambda: with_ksrv(view, length),
        "msgspec": lambda: with_msgspec(view, length),
        "orjson": lambda: with_untyped(orjson.loads, view, length, copy=False),
        "json + slices": lambda: with_untyped(json.loads, view, length, copy=True),
    }[reader]
    benchmark.group = "body 602 KB"
    arrays = timed(benchmark, run)
    assert buffer_pool.copied_bytes() == before
    np.testing.assert_array_equal(arrays["image"], PIXELS)
    assert np.shares_memory(arrays["image"], np.asarray(view)) == (reader != "json + slices")


def test_request(benchmark: Any) -> None:
    length, view = header_and_body()
    spec = ModelSpec("m", inputs=(TensorSpec("image", "FP32", (-1, 224, 224, 3)),))
    limits = Limits()
    text = str(length)
    benchmark.group = "body 602 KB to InferRequest"
    request = timed(benchmark, lambda: parse_infer(view, text, spec, limits))
    np.testing.assert_array_equal(request.inputs[0].data, PIXELS)


def test_answer(benchmark: Any) -> None:
    request = InferRequest("m", binary_output=True)
    response = InferResponse("m", "1", "42", [Tensor("y", "FP32", tuple(SHAPE), PIXELS)])
    benchmark.group = "answer of 602 KB, binary"
    before = buffer_pool.copied_bytes()
    rendered = timed(benchmark, lambda: render_infer(response, request))
    assert buffer_pool.copied_bytes() == before
    assert rendered.content_length > PIXELS.nbytes
