"""Before a server has read its model repository, it answers 503 for its models: they may be there, so try again."""

import json

import grpc
import numpy as np
import pytest
import requests
from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException

from ksrv.protocol.protobuf import message_class
from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.wait_until import wait_until

HOLD_SCAN = """
import time
from pathlib import Path

from ksrv.repository.layout import Repository

scan = Repository.scan

def held(self):
    while not Path(__file__).with_name("go").exists():
        time.sleep(0.01)
    return scan(self)

Repository.scan = held
"""

JSON = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
BINARY_HEAD = json.dumps(
    {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4],
                    "parameters": {"binary_data_size": 16}}]
    }
).encode()  # fmt: skip
CALLS = {
    "infer": ("POST", "/v2/models/double/infer", {"json": JSON}),
    "infer version": ("POST", "/v2/models/double/versions/1/infer", {"json": JSON}),
    "binary infer": (
        "POST",
        "/v2/models/double/infer",
        {
            "data": BINARY_HEAD + np.ones(4, np.float32).tobytes(),
            "headers": {"Inference-Header-Content-Length": str(len(BINARY_HEAD))},
        },
    ),
    "form infer": ("POST", "/v2/models/double/infer", {"files": {"x": b"1"}}),
    "explain": ("POST", "/v2/models/double/explain", {"json": JSON}),
    "generate": ("POST", "/v2/models/double/generate", {"json": {"x": [1, 2, 3, 4]}}),
    "generate_stream": ("POST", "/v2/models/double/generate_stream", {"json": {"x": [1]}}),
    "metadata": ("GET", "/v2/models/double", {}),
    "config": ("GET", "/v2/models/double/config", {}),
    "stats": ("GET", "/v2/models/double/stats", {}),
    "ready": ("GET", "/v2/models/double/ready", {}),
    "unload": ("POST", "/v2/repository/models/double/unload", {}),
    "v1 predict": ("POST", "/v1/models/double:predict", {"json": {"instances": [[1, 2, 3, 4]]}}),
    "predictions": ("POST", "/predictions/double", {"data": b"1"}),
    "explanations": ("POST", "/explanations/double", {"data": b"1"}),
    "invocations": ("POST", "/invocations?model_name=double", {"data": b"1"}),
    "TorchServe description": ("GET", "/models/double", {}),
    "embeddings": ("POST", "/v1/embeddings", {"json": {"model": "double", "input": "a"}}),
}


UNKNOWN_REQUESTS = "ksrv_unknown_model_requests_total "


def metrics(server):
    return requests.get(f"{server.url}/metrics", timeout=30).text


def call(server, name):
    method, path, body = CALLS[name]
    return requests.request(method, server.url + path, timeout=30, **body)


@pytest.fixture(scope="module")
def starting(tmp_path_factory):
    """A server that has not read its repository yet, and the file that makes it read it."""
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(HOLD_SCAN)
    repository = tmp_path_factory.mktemp("models")
    write_double(repository)
    environment = {"PYTHONPATH": str(site)}
    with Server(
        repository, wait_ready=False, torchserve_api=True, environment=environment
    ) as server:
        wait_until(lambda: requests.get(f"{server.url}/v2/health/live", timeout=30).ok)
        yield server, site / "go"


@pytest.mark.parametrize("name", CALLS)
def test_rest_answers_503_with_retry_after(starting, name):
    answer = call(starting[0], name)
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["Retry-After"]) > 0
    assert "has not read the model repository" in answer.text


def test_v1_state_answers_503_with_retry_after(starting):
    answer = requests.get(f"{starting[0].url}/v1/models/double", timeout=30)
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert answer.json()["ready"] is False


def test_grpc_answers_unavailable(starting):
    server = starting[0]
    values = triton.InferInput("x", [1, 4], "FP32")
    values.set_data_from_numpy(np.ones((1, 4), np.float32))
    with triton.InferenceServerClient(server.grpc) as client:
        assert not client.is_model_ready("double")
        for asks in (
            lambda: client.infer("double", [values]),
            lambda: client.get_model_metadata("double"),
            lambda: client.get_model_config("double"),
            lambda: client.get_inference_statistics("double"),
            lambda: client.unload_model("double"),
        ):
            with pytest.raises(InferenceServerException, match="has not read the model repository") as refused:  # fmt: skip
                asks()
            assert refused.value.status() == "StatusCode.UNAVAILABLE"


def test_grpc_health_says_not_serving(starting):
    request = message_class("grpc.health.v1.HealthCheckRequest")
    answer = message_class("grpc.health.v1.HealthCheckResponse")
    with grpc.insecure_channel(starting[0].grpc) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        assert check(request(service="double")).status == 2  # NOT_SERVING


def test_unknown_models_get_404_once_the_repository_is_read(starting):
    server, go = starting
    assert UNKNOWN_REQUESTS + "0.0" in metrics(server)
    go.touch()
    wait_until(lambda: call(server, "infer").status_code == 200)
    answer = requests.post(f"{server.url}/v2/models/other/infer", json=JSON, timeout=30)
    assert answer.status_code == 404
    assert UNKNOWN_REQUESTS + "1.0" in metrics(server)
