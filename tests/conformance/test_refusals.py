"""Every `InferCall` refuses a request with the same status and sentence: one table, run over all of them."""

import json
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import requests
from grpc import RpcError

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import connect, infer_request, method, stub_infer

HANDLER = """
import time
from pathlib import Path

import numpy as np

from ksrv import BaseHandler, InferenceError


def fail(value):
    if value == -1:
        raise ZeroDivisionError("a secret")
    if value == -2:
        raise InferenceError("no cat today", 422)
    if value == -3:
        raise InferenceError("come back later", 503)
    if value == -4:
        time.sleep(0.5)
    if value == -5:
        Path(__file__).with_name("began").touch()
        while not Path(__file__).with_name("go").exists():
            time.sleep(0.01)


class Fails(BaseHandler):
"""
NUMBERS_HANDLER = f"""{HANDLER}
    def inference(self, x):
        fail(x[0, 0])
        return x
"""
TEXTS_HANDLER = f"""{HANDLER}
    def handle(self, batch, context):
        fail(int(bytes(batch["text"].reshape(-1)[0])))
        return {{"vector": np.ones((1, 2), np.float32)}}
"""
TORCHSERVE_HANDLER = f"""{HANDLER}
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        fail(int(data[0]["body"]))
        return ["answer"]
""".replace(
    "from ksrv import BaseHandler,",
    "from ts.torch_handler.base_handler import BaseHandler\nfrom ksrv import",
)
TEXTS = """
role: embedding
timeout_ms: 200
inputs: [{name: text, datatype: BYTES, shape: [-1, 1]}]
outputs: [{name: vector, datatype: FP32, shape: [-1, -1]}]
"""
YAML = """
timeout_ms: 200
inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 4]}]
"""
FULL = YAML.replace("timeout_ms: 200", "queue_size: 1\nwarmup: false")
RARE = YAML.replace("timeout_ms: 200", "rate_limit: 0.001\nwarmup: false")

REFUSALS = {
    "unknown model": (("nope", "", [1, 2, 3, 4]), 404, "NOT_FOUND", "'nope'"),
    "unknown version": (("fails", "7", [1, 2, 3, 4]), 404, "NOT_FOUND", "version '7'"),
    "wrong shape": (("fails", "", [1, 2, 3]), 400, "INVALID_ARGUMENT", "expects ["),
    "faulty handler": (("fails", "", [-1, 2, 3, 4]), 500, "INTERNAL", "ZeroDivisionError"),
    "handler's error": (("fails", "", [-2, 2, 3, 4]), 422, "INVALID_ARGUMENT", "no cat today"),
    "busy handler": (("fails", "", [-3, 2, 3, 4]), 503, "UNAVAILABLE", "come back later"),
    "late": (("fails", "", [-4, 2, 3, 4]), 504, "DEADLINE_EXCEEDED", "the deadline of the request"),
    "full queue": (("full", "", [1, 2, 3, 4]), 503, "RESOURCE_EXHAUSTED", "queue"),
    "rate limit": (("rare", "", [1, 2, 3, 4]), 429, "RESOURCE_EXHAUSTED", "'rate_limit'"),
}
"""By condition: model, version and values of the request, the HTTP status, the gRPC code, and words of the sentence."""
TORCHSERVE = {
    "unknown model": (404, "Model not found: nope"),
    "faulty handler": (503, "Prediction failed"),
    "handler's error": (503, "Prediction failed"),
    "busy handler": (503, "Prediction failed"),
    "late": (500, "Worker died."),
}
"""The statuses and sentences of TorchServe 0.12 for the conditions."""


def post(server, path, body, **headers):
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = requests.post(server.url + path, data=body, headers=sent, timeout=60)
    return answer.status_code, answer.json()["error"]


def route(prefix, model, version, action):
    return f"{prefix}/models/{model}{f'/versions/{version}' if version else ''}{action}"


def document(values, **fields):
    entry = {"name": "x", "datatype": "FP32", "shape": [1, len(values)], **fields}
    return json.dumps({"inputs": [entry]})


def rest_json(server, model, version, values, **headers):
    body = document(values, data=values)
    return post(server, route("/v2", model, version, "/infer"), body, **headers)


def rest_stream(server, model, version, values):
    return rest_json(server, model, version, values, Accept="text/event-stream")


def rest_chunked(server, model, version, values):
    body = iter([document(values, data=values).encode()])  # requests sends pieces as chunks
    return post(server, route("/v2", model, version, "/infer"), body)


def rest_binary(server, model, version, values):
    raw = struct.pack(f"<{len(values)}f", *values)
    head = document(values, parameters={"binary_data_size": len(raw)}).encode()
    length = {"Inference_Header_Content_Length": str(len(head))}
    return post(server, route("/v2", model, version, "/infer"), head + raw, **length)


def predict(server, model, version, values):
    return post(
        server, route("/v1", model, version, ":predict"), json.dumps({"instances": [values]})
    )


def generate(server, model, version, values):
    return post(server, route("/v2", model, version, "/generate"), json.dumps({"x": values}))


def generate_stream(server, model, version, values):
    return post(server, route("/v2", model, version, "/generate_stream"), json.dumps({"x": values}))


def embeddings(server, model, version, values):
    """Call OpenAI's route with the first value as a text."""
    document = {"model": {"fails": "texts"}.get(model, model), "input": str(values[0])}
    answer = requests.post(server.url + "/v1/embeddings", json=document, timeout=60)
    return answer.status_code, answer.json()["error"]["message"]


def prediction(server, model, version, values):
    """Call TorchServe's route with the first value as a text."""
    path = "/predictions/" + {"fails": "torchserve"}.get(model, model)
    answer = requests.post(server.url + path, data=str(values[0]), timeout=60)
    return answer.status_code, answer.json()["message"]


def message(model, version, values):
    raw = [struct.pack(f"<{len(values)}f", *values)]
    made = infer_request(model, ("x", "FP32", [1, len(values)]), raw=raw)
    made.model_version = version
    return made


def grpc_unary(server, model, version, values):
    with connect(server.grpc) as channel, pytest.raises(RpcError) as caught:
        stub_infer(channel)(message(model, version, values), timeout=60)
    return caught.value.code().name, caught.value.details()


def grpc_stream(server, model, version, values):
    sent = iter([message(model, version, values)])
    with connect(server.grpc) as channel:
        stream = method(channel, "ModelStreamInfer", kind="stream_stream")
        call = stream(sent, metadata=[("triton_grpc_error", "true")], timeout=60)
        with pytest.raises(RpcError) as caught:
            next(call)
    return caught.value.code().name, caught.value.details()


REST = (rest_json, rest_binary, rest_chunked, rest_stream, predict, generate, generate_stream)
GRPC = (grpc_unary, grpc_stream)
NOT_OF_TEXTS = ("unknown version", "wrong shape", "full queue", "rate limit")
OF_TEXTS = [name for name in REFUSALS if name not in NOT_OF_TEXTS]
"""The conditions that OpenAI's route can express."""


@contextmanager
def running(root, **settings):
    """Serve the models; the queue of `full` is full, and `rare` has had its request."""
    write_model(root, "fails", NUMBERS_HANDLER, YAML)
    write_model(root, "texts", TEXTS_HANDLER, TEXTS)
    write_model(root, "torchserve", TORCHSERVE_HANDLER, "timeout_ms: 200\n")
    folder = write_model(root, "full", NUMBERS_HANDLER, FULL)
    write_model(root, "rare", NUMBERS_HANDLER, RARE)
    with Server(root, **settings) as server, ThreadPoolExecutor(5) as pool:
        values = [1, 2, 3, 4]
        rare = server.url + route("/v2", "rare", "", "/infer")
        requests.post(rare, document(values, data=values), timeout=120).raise_for_status()
        body = document([-5, 0, 0, 0], data=[-5, 0, 0, 0])
        url = server.url + route("/v2", "full", "", "/infer")
        try:
            sent = [pool.submit(requests.post, url, body, timeout=120)]
            wait_until((folder / "began").exists)
            sent += [pool.submit(requests.post, url, body, timeout=120) for _ in range(4)]
            wait_until(lambda: sum(one.done() for one in sent) == 3)  # one runs and one waits
            yield server
        finally:
            (folder / "go").touch()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tmp_path_factory.mktemp("models"), torchserve_api=True) as server:
        yield server


def check(server, call, condition):
    given, status, code, words = REFUSALS[condition]
    expected = code if call in GRPC else status
    got, sentence = call(server, *given)
    assert (got, words in sentence) == (expected, True), sentence
    assert "secret" not in sentence


@pytest.mark.parametrize("call", REST + GRPC, ids=lambda call: call.__name__)
@pytest.mark.parametrize("condition", REFUSALS)
def test_a_call_is_refused_with_status_and_sentence(server, call, condition):
    check(server, call, condition)


@pytest.mark.parametrize("condition", OF_TEXTS)
def test_embeddings_are_refused_with_status_and_sentence(server, condition):
    check(server, embeddings, condition)


@pytest.mark.parametrize("condition", TORCHSERVE)
def test_predictions_are_refused_as_torchserve_does(server, condition):
    assert prediction(server, *REFUSALS[condition][0]) == TORCHSERVE[condition]
