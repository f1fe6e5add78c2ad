"""ModelInferRequest and ModelInferResponse of 602 KB against the protobuf class (upb).

The protobuf readers do what a server has to do with what they parsed: get an array of the tensor. The
protobuf writer builds the message and serializes it; ksrv's writes the engine's response, which exists
by then. malloc is tuned as in a worker, for both: without it the protobuf writer is many times slower,
since it maps new memory for each of its three copies. One copy is the least that gRPC allows.
"""

from typing import Any

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool
from ksrv._native.protobuf import infer_request as native
from ksrv.limits import Limits
from ksrv.model.spec import ModelSpec
from ksrv.protocol import grpc as protocol
from ksrv.protocol.protobuf import message_class
from ksrv.protocol.tensors import measure, view
from ksrv.request import InferRequest, InferResponse, Tensor

SHAPE = (1, 224, 224, 3)
VALUES = np.random.default_rng(1).random(SHAPE, np.float32)
SMALL = VALUES.reshape(-1)[:16].reshape(1, 16)
SPEC = ModelSpec("m")
LIMITS = Limits()
REQUEST = message_class("inference.ModelInferRequest")
RESPONSE = message_class("inference.ModelInferResponse")


@pytest.fixture(scope="module", autouse=True)
def worker_settings() -> None:
    buffer_pool.tune_malloc()


def aligned(form: Any, values: Any = VALUES) -> Any:
    """Return a request whose tensor is aligned to its item size, as one request in four is by chance."""
    for padding in range(8):
        made = REQUEST(model_name="m", id="i" * (padding + 1))
        entry = made.inputs.add(name="x", datatype="FP32", shape=values.shape)
        if form == "raw":
            made.raw_input_contents.append(values.tobytes())
        else:
            entry.contents.fp32_contents.extend(values.reshape(-1).tolist())
        message = made.SerializeToString()
        data = read_with_scan(message)
        if np.shares_memory(data, np.frombuffer(message, np.uint8)):
            return message
    raise AssertionError("no padding aligned the tensor")


def read_with_scan(message: Any) -> Any:
    found = native.scan(message)
    assert found is not None
    entry = found.inputs[0]
    offset = found.raw[0][0] if found.raw else entry.packed[0]
    count, _ = measure(entry.name, 0, entry.datatype, entry.shape, LIMITS)
    return view(message, offset, entry.datatype, entry.shape, count)


def read_with_upb(message: Any) -> Any:
    found = REQUEST.FromString(message)
    assert found is not None
    entry = found.inputs[0]
    if found.raw_input_contents:
        return np.frombuffer(found.raw_input_contents[0], np.float32).reshape(tuple(entry.shape))
    values = np.array(entry.contents.fp32_contents, np.float32)
    return values.reshape(tuple(entry.shape))


@pytest.mark.parametrize("form", ["raw", "packed fp32"])
@pytest.mark.parametrize("reader", ["ksrv", "upb"])
def test_scan(benchmark: Any, form: Any, reader: Any) -> None:
    message = aligned(form)
    run = {"ksrv": read_with_scan, "upb": read_with_upb}[reader]
    benchmark.group = f"message scan 602 KB {form}"
    found = benchmark(run, message)
    assert found.tobytes() == VALUES.tobytes()


@pytest.mark.parametrize("reader", ["ksrv", "upb"])
def test_varints(benchmark: Any, reader: Any) -> None:
    values = np.random.default_rng(2).integers(-1000, 1000, 150_528, np.int32)
    made = REQUEST(model_name="m")
    entry = made.inputs.add(name="x", datatype="INT32", shape=[values.size])
    entry.contents.int_contents.extend(values.tolist())
    message = made.SerializeToString()

    def with_scan() -> Any:
        return parse(message).inputs[0].data

    def with_upb() -> Any:
        return np.array(REQUEST.FromString(message).inputs[0].contents.int_contents, np.int32)

    benchmark.group = "message scan packed INT32, 150,528 values"
    found = benchmark({"ksrv": with_scan, "upb": with_upb}[reader])
    assert found.tolist() == values.tolist()


def parse(message: Any) -> Any:
    return protocol.parse_infer(message, lambda name, version: SPEC, LIMITS)


@pytest.mark.parametrize("reader", ["ksrv", "upb"])
def test_small_request(benchmark: Any, reader: Any) -> None:
    message = aligned("raw", SMALL)
    benchmark.group = "message small request (whole parse_infer against upb and one array)"
    if reader == "ksrv":
        assert benchmark(parse, message).inputs[0].data.tobytes() == SMALL.tobytes()
    else:
        assert benchmark(read_with_upb, message).tobytes() == SMALL.tobytes()


def write_with_upb(values: Any) -> Any:
    made = RESPONSE(model_name="m", model_version="1", id="7")
    made.outputs.add(name="y", datatype="FP32", shape=values.shape)
    made.raw_output_contents.append(values.tobytes())
    return made.SerializeToString()


@pytest.mark.parametrize("values", [VALUES, SMALL], ids=["602 KB", "64 B"])
@pytest.mark.parametrize("writer", ["ksrv", "one copy", "upb"])
def test_response(benchmark: Any, values: Any, writer: Any) -> None:
    response = InferResponse("m", "1", "7", [Tensor("y", "FP32", values.shape, values)])
    request = InferRequest("m", id="7")
    run = {
        "ksrv": lambda: b"".join(protocol.render_infer(response, request)),
        "one copy": values.tobytes,
        "upb": lambda: write_with_upb(values),
    }[writer]
    # Making the InferResponse is the handler's side and in no way's time; upb makes its message here.
    benchmark.group = f"message response {values.nbytes} bytes (ksrv: of an InferResponse)"
    wanted = values.tobytes() if writer == "one copy" else write_with_upb(values)
    assert benchmark(run) == wanted
