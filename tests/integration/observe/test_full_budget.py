"""A server's health, metadata and metrics while its requests use all of the memory budget."""

import json
import socket
from contextlib import contextmanager

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import call, connect

HANDLER = """
import time
from pathlib import Path


def inference(x):
    here = Path(__file__).parent
    (here / "began").touch()
    while not (here / "go").exists():
        time.sleep(0.005)
    return {"y": x[:, :1]}
"""
YAML = """
inputs: [{name: x, datatype: UINT8, shape: [1, -1]}]
outputs: [{name: y, datatype: UINT8, shape: [1, -1]}]
warmup: false
"""
BOUND = 1 << 20
HEALTH = "grpc.health.v1.Health"


def header(nbytes: int) -> bytes:
    tensor = {"name": "x", "datatype": "UINT8", "shape": [1, nbytes]}
    return json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": nbytes}}]}).encode()


@contextmanager
def filled(server: Server, folder):
    """Hold a request whose body is as large as the whole budget."""
    nbytes = BOUND - len(header(BOUND - 200))
    head = header(nbytes)
    host, _, port = server.http.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as client:
        client.sendall(
            b"POST /v2/models/held/infer HTTP/1.1\r\nHost: x\r\n"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
            % (len(head), BOUND)
        )
        client.sendall(head + bytes(nbytes))
        wait_until((folder / "began").exists)
        try:
            yield
        finally:
            (folder / "go").touch()
            assert b"200 OK" in client.recv(65536)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    folder = write_model(root, "held", HANDLER, YAML)
    with (
        Server(root, limits={"in_flight": BOUND, "body": BOUND}) as server,
        filled(server, folder),
    ):
        yield server


@pytest.mark.parametrize(
    "path",
    ["/metrics", "/v2/health/live", "/v2/health/ready", "/v2/models/held/ready", "/v2/models/held"],
)
def test_questions_over_http_are_answered(full, path):
    answer = requests.get(full.url + path, timeout=60)
    assert answer.status_code == 200
    if path == "/metrics":
        assert "\nksrv_bytes_in_flight 1.048576e+06\n" in answer.text


@pytest.mark.parametrize(
    ("method", "service", "fields"),
    [
        ("ServerLive", (), {}),
        ("ServerReady", (), {}),
        ("Check", (HEALTH,), {}),
        ("Check", (HEALTH,), {"service": "held"}),
        ("ServerMetadata", (), {}),
        ("ModelReady", (), {"name": "held"}),
        ("ModelMetadata", (), {"name": "held"}),
    ],
)
def test_questions_over_grpc_are_answered(full, method, service, fields):
    with connect(str(full.grpc)) as channel:
        call(channel, method, *service, **fields)
