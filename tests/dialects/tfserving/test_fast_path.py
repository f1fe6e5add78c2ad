"""Which calls of Predict reach their handler without Python."""

import grpc
import numpy as np
import pytest

from ksrv._native.memory.memory_budget import PROCESS
from tests.support.native.fast_path import PAIR, PAIR_YAML, opened_grpc, serving
from tests.support.tfserving import (
    PREDICTION,
    Client,
    content,
    predict_request,
    tensor_proto,
    values_of,
)
from tests.support.wait_until import wait_until

BATCHES = "batching: {max_batch_size: 8192, max_delay_ms: 0}\n"
RANDOM = np.random.default_rng(7)


def floats(array, datatype):
    """Return an array as a TensorProto with `float_val`."""
    return tensor_proto(datatype, array.shape, float_val=array.ravel().tolist())


def asked(rows, write=content, **spec):
    """Return the fields of a call, and the answer to it."""
    a, b = RANDOM.standard_normal((2, rows, 4), np.float32)
    inputs = {"a": write(a, "FP32"), "b": write(b, "FP32")}
    return predict_request("pair", inputs, **spec), a + b


@pytest.fixture(params=["", BATCHES, "executor: process\n"], ids=["alone", "joined", "process"])
def opened(tmp_path, request):
    """Yield a native server and a client of it."""
    with (
        serving(tmp_path / "pair", PAIR, PAIR_YAML + request.param) as engine,
        opened_grpc(engine) as (server, address),
        grpc.insecure_channel(address) as channel,
    ):
        yield server, Client(channel)
        # The server lets go of an answer after its client has it, and other tests measure what is held.
        wait_until(lambda: PROCESS.held == 0)


@pytest.mark.parametrize(
    ("rows", "form", "fast"),
    [
        (1, {}, 1),
        (3, {}, 1),
        (3, {"write": floats}, 1),
        (3, {"outputs": ["rows"]}, 1),
        (3, {"outputs": ["rows", "sum"]}, 1),
        (6000, {}, 1),  # Python reads the request again, and writes the answer, which is large
        (3, {"version": 0}, 0),
    ],
    ids=["one", "content", "typed", "filter", "order", "large", "version"],
)
def test_ordinary_calls_need_no_python_before_their_handler(opened, rows, form, fast):
    server, client = opened
    request, wanted = asked(rows, **form)
    answer = client.call(PREDICTION, "Predict", request)
    found = {name: values_of(tensor) for name, tensor in answer.outputs.items()}
    assert set(found) == set(form.get("outputs", ["sum", "rows"]))
    if "sum" in found:
        assert found["sum"].tobytes() == wanted.tobytes()
    assert found["rows"].tolist() == [[rows]] * rows
    assert answer.model_spec.name == "pair"
    assert answer.model_spec.version.value == 1
    assert server._core.counters()["fast_path"] == fast


@pytest.mark.parametrize("length", range(0, 40, 7))
def test_tensors_may_lie_at_any_offset(opened, length):
    """The length of the signature's name determines the offset of the first tensor."""
    server, client = opened
    request, wanted = asked(3, signature_name="s" * length)
    answer = client.call(PREDICTION, "Predict", request)
    assert values_of(answer.outputs["sum"]).tobytes() == wanted.tobytes()
    assert server._core.counters()["fast_path"] == 1


def test_stopped_server_holds_no_bytes_of_its_answers(tmp_path):
    with serving(tmp_path / "pair", PAIR, PAIR_YAML) as engine:
        with opened_grpc(engine) as (_, address), grpc.insecure_channel(address) as channel:
            request, _ = asked(6000)  # Python writes the answer, and must free it after it is sent
            Client(channel).call(PREDICTION, "Predict", request)
        assert PROCESS.held == 0
