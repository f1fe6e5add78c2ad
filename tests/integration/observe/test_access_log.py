"""The access log over HTTP and gRPC: a line for each request, as text or as fields."""

import json
import re
import socket

import grpc
import numpy as np
import pytest
import requests
from tritonclient import grpc as triton

from ksrv.testing import Server
from tests.support.models import VECTOR, write_double, write_model
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import call, infer_request, stub_infer
from tests.support.wire.http2_wire import Wire
from tests.support.wire.http_reader import double_body


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_double(folder)
    source = "from ksrv import BaseHandler\nclass P(BaseHandler):\n    def inference(self, x):\n        return {'y': x}\n"
    write_model(folder, "process", source, VECTOR + "executor: process\n")
    return folder


@pytest.fixture(scope="module")
def server(models):
    with Server(models, access_log=True, log_format="json") as running:
        yield running


def record(server, request_id):
    """The fields of the access log's only record of a request, once it is there."""
    found = []

    def look():
        lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
        found[:] = [
            line for line in lines
            if line["logger"] == "gunicorn.access" and line["request_id"] == request_id
        ]  # fmt: skip
        return found

    wait_until(look)
    (only,) = found
    return only


@pytest.mark.parametrize("model", ["double", "process"])
@pytest.mark.parametrize("way", [{}, {"TE": "trailers"}])
def test_a_request_over_http(server, model, way):
    name = f"{server.grpc}-{model}-{len(way)}".replace(":", ".")
    url = (
        f"{server.url}/v2/models/{model}/infer?a=b"
        if way
        else f"{server.url}/v2/models/{model}/infer"
    )
    answer = requests.post(url, data=double_body(), headers={"X-Request-ID": name} | way)
    assert answer.status_code == 200
    found = record(server, name)
    assert (found["method"], found["status"], found["model"]) == ("POST", 200, model)
    assert found["path"] == url.removeprefix(server.url)
    assert found["bytes"] == len(answer.content)
    assert found["duration_ms"] > 0
    assert 0 <= found["queue_ms"] <= found["duration_ms"]
    assert 0 < found["inference_ms"] <= found["duration_ms"]
    assert found["peer"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/health/live", 200),
        ("/v2", 200),
        ("/v2/models", 200),
        ("/none", 404),
        ("/v2/models/n%0Ao/ready", 400),
    ],
)
def test_other_routes(server, path, status):
    name = f"{server.grpc}{path}".replace("%", "~")
    requests.get(server.url + path, headers={"X-Request-ID": name})
    found = record(server, name)
    assert (found["method"], found["path"], found["status"]) == ("GET", path, status)
    assert "queue_ms" not in found
    assert "\n" not in found["message"]


@pytest.mark.parametrize("model", ["double", "process"])
def test_a_call_over_grpc(server, model):
    with grpc.insecure_channel(server.grpc) as channel:
        request = infer_request(model, ("x", "FP32", [1, 4]), raw=[bytes(16)])
        stub_infer(channel)(request, timeout=30, metadata=[("x-request-id", f"call-{model}")])
    found = record(server, f"call-{model}")
    assert found["method"] == "/inference.GRPCInferenceService/ModelInfer"
    assert (found["status"], found["model"], found["peer"]) == ("OK", model, "127.0.0.1")
    assert found["bytes"] > 16
    assert found["duration_ms"] > 0


def test_calls_that_fail_and_calls_of_other_methods(server):
    request = infer_request("nope", ("x", "FP32", [1, 4]), raw=[bytes(16)])
    with grpc.insecure_channel(server.grpc) as channel:
        with pytest.raises(grpc.RpcError):
            stub_infer(channel)(request, timeout=30, metadata=[("x-request-id", "fails")])
        call(channel, "ServerLive", metadata=[("x-request-id", "lives")])
    assert record(server, "fails")["status"] == "NOT_FOUND"
    assert record(server, "lives")["method"].endswith("/ServerLive")


def test_a_stream_is_one_call(server):
    answers = []
    client = triton.InferenceServerClient(server.grpc)
    client.start_stream(
        lambda result, error: answers.append(error), headers={"x-request-id": "streams"}
    )
    entry = triton.InferInput("x", [1, 4], "FP32")
    entry.set_data_from_numpy(np.zeros((1, 4), np.float32))
    for _ in range(3):
        client.async_stream_infer("double", [entry])
    wait_until(lambda: len(answers) == 3)
    client.stop_stream()
    client.close()
    assert answers == [None] * 3
    assert record(server, "streams")["method"].endswith("/ModelStreamInfer")


QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


@pytest.mark.parametrize(
    "value",
    ['a" 200 0 "-" "forged', "ends with a backslash\\", '\\" 200 0 "-" "forged', 'a\tb"c\\d'],
)
def test_a_client_cannot_end_the_quotes_around_its_own_text(models, value):
    with Server(models, access_log=True) as running:
        host, port = running.http.rsplit(":", 1)
        target = value.replace(" ", "%20").replace("\t", "%09")
        with socket.create_connection((host, int(port)), 60) as client:
            fields = f"X-Request-ID: mine\r\nUser-Agent: {value}\r\nReferer: {value}\r\nConnection: close"
            client.sendall(f"GET /{target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n".encode())
            while client.recv(4096):
                pass
        with Wire(running.grpc) as wire:
            wire.until_ended(wire.call(f"/{target}"))
        found = []

        def look():
            lines = [line for line in running.log.splitlines() if "gunicorn.access" in line]
            found[:] = [line for line in lines if line.endswith(" mine") or '"gRPC ' in line]
            return len(found) == 2

        wait_until(look)
        escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\t", r"\t")
        path = target.replace("\\", r"\\").replace('"', r"\"")
        for line in found:
            if line.endswith(" mine"):
                assert QUOTED.findall(line) == [f"GET /{path} HTTP/1.1", escaped, escaped]
            else:
                assert QUOTED.findall(line) == [f"gRPC /{path}"]


def test_the_text_form(models):
    with Server(models, access_log=True) as running:
        url = f"{running.url}/v2/models/double/infer"
        requests.post(url, data=double_body(), headers={"X-Request-ID": "a-text"})
        with grpc.insecure_channel(running.grpc) as channel:
            call(channel, "ServerLive", metadata=[("x-request-id", "a-call")])
        line = re.compile(
            r'127\.0\.0\.1 - - \[.*\] "POST /v2/models/double/infer HTTP/1\.1" 200 \d+ .* a-text$',
            re.M,
        )
        wait_until(lambda: line.search(running.log))
        rpc = re.compile(
            r'127\.0\.0\.1 - - \[.*\] "gRPC /inference\S+/ServerLive" OK \d+ [0-9.]+ a-call$', re.M
        )
        wait_until(lambda: rpc.search(running.log))
