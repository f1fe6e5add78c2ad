"""Response headers that are too large fail only their request, over every protocol."""

import grpc
import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wire.grpc_calls import infer_request, stub_infer

SIZED = """
from ksrv import BaseHandler, InferenceError


class Sized(BaseHandler):
    def handle(self, batch, context):
        large = "a" * int(batch["x"][0, 0])
        if batch["x"][0, 1]:
            raise InferenceError("no", 429, {"x-large": large})
        if batch["x"][0, 2]:
            batch.failures[0] = InferenceError("no", 429, {"x-large": large})
        batch.set_header(0, "x-large", large)
        return {"y": batch["x"]}
"""
SETTINGS = """
executor: {executor}
inputs: [{{name: x, datatype: FP32, shape: [-1, 3]}}]
outputs: [{{name: y, datatype: FP32, shape: [-1, 3]}}]
warmup: false
"""
FITS, TOO_LARGE = 8 * 1024 - 32 - len("x-large"), 8 * 1024 - 31 - len("x-large")
SAID = "of which 'x-large' takes"


@pytest.fixture(scope="module", params=["inline", "process"])
def server(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_model(root, "sized", SIZED, SETTINGS.format(executor=request.param))
    with Server(root) as running:
        yield running


def values(size, way):
    return [size, int(way == "raised"), int(way == "failed")]


def body(size, way):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": values(size, way)}
    return {"inputs": [tensor]}


@pytest.mark.parametrize("way", ["answered", "raised", "failed"])
@pytest.mark.parametrize("size", [FITS, TOO_LARGE, 70_000])
def test_over_http(server, way, size):
    path = "/v2/models/sized/infer"
    plain = requests.post(server.url + path, json=body(size, way), timeout=60)
    if size == FITS:
        assert plain.status_code == (200 if way == "answered" else 429)
        assert plain.headers["x-large"] == "a" * size
    else:
        assert plain.status_code == 500
        assert SAID in plain.json()["error"]


@pytest.mark.parametrize("way", ["answered", "raised", "failed"])
@pytest.mark.parametrize("size", [FITS, TOO_LARGE])
def test_over_grpc(server, way, size):
    raw = np.array(values(size, way), np.float32).tobytes()
    with grpc.insecure_channel(server.grpc, [("grpc.max_metadata_size", 1 << 20)]) as channel:
        stub = stub_infer(channel)
        request = infer_request("sized", ("x", "FP32", [1, 3]), raw=[raw])
        if size == FITS and way == "answered":
            _, call = stub.with_call(request, timeout=60)
            assert dict(call.trailing_metadata())["x-large"] == "a" * size
            return
        with pytest.raises(grpc.RpcError) as refused:
            stub(request, timeout=60)
    if size == FITS:
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(refused.value.trailing_metadata())["x-large"] == "a" * size
    else:
        assert refused.value.code() == grpc.StatusCode.INTERNAL
        assert SAID in refused.value.details()


STREAMED = """
from ksrv import BaseHandler


class Streamed(BaseHandler):
    def inference(self, text):
        self.context.batch.set_header(0, "x-large", "a" * 70_000)
        yield [b"one "]
        yield [b"two "]
"""


def test_a_stream_ends_with_the_error(tmp_path):
    declared = "outputs: [{name: piece, datatype: BYTES, shape: [-1]}]\nwarmup: false\n"
    settings = f"inputs: [{{name: text, datatype: BYTES, shape: [-1]}}]\n{declared}"
    write_model(tmp_path, "streamed", STREAMED, settings)
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    with Server(tmp_path) as running:
        answer = requests.post(
            f"{running.url}/v2/models/streamed/infer",
            json={"inputs": [tensor]},
            headers={"Accept": "text/event-stream"},
            timeout=60,
        )
        assert SAID in answer.text
        assert "one " not in answer.text
