"""JSON tensors in and out: ksrv's native reader against pysimdjson's buffer and orjson + np.array.

pysimdjson gives doubles or 64-bit integers and knows nothing of shape or range; ksrv's time includes
finding the array in the request, the datatype's checks and the final array.
"""

import json
from typing import Any

import numpy as np
import orjson
import pytest
import simdjson

from ksrv.limits import Limits
from ksrv.model.spec import ModelSpec
from ksrv.protocol.rest import parse_infer, render_infer
from ksrv.request import InferRequest, InferResponse, Tensor

LIMITS = Limits()
RNG = np.random.default_rng(0)
FLOATS = RNG.standard_normal((1, 224, 224, 3)).astype(np.float32)
INTEGERS = RNG.integers(-(2**44), 2**44, 1_000_000)
CASES: dict[str, Any] = {
    "150,528 FP32, flat": ("FP32", FLOATS.reshape(-1), "d"),
    "150,528 FP32, nested": ("FP32", FLOATS, "d"),
    "150,528 FP32 as doubles": ("FP32", FLOATS.astype(np.float64).reshape(-1), "d"),
    "1M INT64, flat": ("INT64", INTEGERS, "i"),
    "1M INT64, nested": ("INT64", INTEGERS.reshape(1000, 1000), "i"),
}


def document(datatype: str, values: Any) -> Any:
    entry = {"name": "x", "shape": list(values.shape), "datatype": datatype}
    head = orjson.dumps({"inputs": [entry]})[:-3]
    return head + b',"data":' + orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY) + b"}]}"


def with_simdjson(parser: Any, body: Any, kind: str) -> Any:
    found = parser.parse(body)
    numbers = found["inputs"].at_pointer("/0/data").as_buffer(of_type=kind)
    del found
    return np.frombuffer(numbers, {"d": np.float64, "i": np.int64}[kind])


def with_orjson(body: Any, dtype: Any) -> Any:
    entry = orjson.loads(body)["inputs"][0]
    return np.array(entry["data"], dtype)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("reader", ["ksrv", "pysimdjson", "orjson + np.array"])
def test_read(benchmark: Any, case: Any, reader: Any) -> None:
    datatype, values, kind = CASES[case]
    body = document(datatype, values)
    spec, parser = ModelSpec("m"), simdjson.Parser()
    dtype = {"FP32": np.float32, "INT64": np.int64}[datatype]
    run: Any = {
        "ksrv": lambda: parse_infer(body, None, spec, LIMITS).inputs[0].data,
        "pysimdjson": lambda: with_simdjson(parser, body, kind),
        "orjson + np.array": lambda: with_orjson(body, dtype),
    }[reader]
    benchmark.group = f"JSON in: {case}"
    found: Any = benchmark(run)
    np.testing.assert_array_equal(found.reshape(values.shape).astype(dtype), values.astype(dtype))


@pytest.mark.parametrize("writer", ["ksrv", "orjson list", "json"])
def test_write(benchmark: Any, writer: Any) -> None:
    response = InferResponse("m", "", "", [Tensor("y", "FP32", FLOATS.shape, FLOATS)])
    request = InferRequest("m")
    document = {"name": "y", "datatype": "FP32", "shape": list(FLOATS.shape)}
    run = {
        "ksrv": lambda: render_infer(response, request).parts[0],
        "orjson list": lambda: orjson.dumps({"outputs": [{**document, "data": FLOATS.tolist()}]}),
        "json": lambda: json.dumps({"outputs": [{**document, "data": FLOATS.tolist()}]}),
    }[writer]
    benchmark.group = "JSON out: 150,528 FP32"
    found = orjson.loads(benchmark(run))
    np.testing.assert_array_equal(
        np.array(found["outputs"][0]["data"], np.float32).ravel(), FLOATS.ravel()
    )
