"""Stalled clients do not block the threads that answer metadata requests, whatever their framing."""

import contextlib
import re
import socket

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import DOUBLE, VECTOR, write_model
from tests.support.servers.metrics import metric
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import double_body, open_connection, read_all

PATIENT = {"head_timeout": 600, "transfer_grace": 600, "keepalive": 600, "stop_timeout": 1}
"""No client is closed for being slow, so that a blocked client would wait for ever."""

POST = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: x\r\n"
UPLOADS = {
    "closing": POST + b"Connection: close\r\nContent-Length: 100000\r\n\r\n{",
    "chunked": POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{",
    "expect": POST + b"Expect: 100-continue\r\nContent-Length: 100000\r\n\r\n",
    "HTTP/1.0": POST.replace(b"1.1", b"1.0") + b"Content-Length: 100000\r\n\r\n{",
    "gzip": POST + b"Content-Encoding: gzip\r\nContent-Length: 100000\r\n\r\n\x1f\x8b",
    "head": b"GET /v2 HTTP/1.0\n",
    "get": b"GET /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{",
}
CLIENTS = 50

PAGE = """
from ksrv import BaseHandler


class Talkative(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        for name in range(16):
            for label in range(1000):
                self.context.metrics.gauge(f"gauge_{name}", 1.0, label=f"{label:0300}")

    def inference(self, x):
        return {"y": x}
"""


def ask(server, message):
    """Send a message and return the answer of a connection that the server then closes."""
    with open_connection(server.http) as client:
        client.sendall(message)
        return read_all(client)


def assert_answers(server):
    for path in ("/v2", "/metrics", "/v2/models/double", "/v2/models/double/ready", "/ping"):
        assert requests.get(server.url + path, timeout=20).status_code == 200, path
    for line in ("GET /v2/health/live HTTP/1.1", "GET /v2/health/ready HTTP/1.1",
                 "GET /v2/health/live HTTP/1.0"):  # fmt: skip
        probe = f"{line}\r\nHost: x\r\nUser-Agent: kube-probe/1.31\r\nConnection: close\r\n\r\n"
        assert b" 200 OK\r\n" in ask(server, probe.encode())
    closing = {"Connection": "close"}
    url = f"{server.url}/v2/models/double/infer"
    answer = requests.post(url, double_body(), headers=closing, timeout=20)
    assert answer.json()["outputs"][0]["data"] == [2, 4, 6, 8]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "double", DOUBLE, VECTOR)
    with Server(folder, grpc="off", torchserve_api=True, **PATIENT) as running:
        yield running


@pytest.mark.parametrize("upload", UPLOADS.values(), ids=UPLOADS)
def test_stuck_uploads_do_not_delay_metadata_metrics_and_probes(server, upload):
    with contextlib.ExitStack() as stack:
        for _ in range(CLIENTS):
            client = stack.enter_context(open_connection(server.http))
            client.sendall(upload)
        wait_until(lambda: metric(server, "ksrv_connections") >= CLIENTS)
        assert_answers(server)
    wait_until(lambda: metric(server, "ksrv_connections") < CLIENTS)


def test_upload_after_stuck_uploads_is_received_once_they_end(tmp_path):
    write_model(tmp_path, "double", DOUBLE, VECTOR)
    body = double_body()
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    whole = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunks
    with (
        Server(tmp_path, grpc="off", threads=2, **PATIENT) as server,
        contextlib.ExitStack() as all_,
    ):
        stuck = [all_.enter_context(open_connection(server.http)) for _ in range(2)]
        for client in stuck:
            client.sendall(UPLOADS["expect"])
            assert client.recv(12) == b"HTTP/1.1 100"  # a thread reads its body
        waits = all_.enter_context(open_connection(server.http))
        waits.sendall(whole)
        assert requests.get(f"{server.url}/v2", timeout=20).status_code == 200
        stuck.pop().close()
        assert read_all(waits).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.differs_in_processes("metrics come from a process a little later")
def test_client_that_does_not_read_its_page_blocks_no_thread(tmp_path):
    write_model(tmp_path, "double", PAGE, VECTOR)
    page = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with (
        Server(tmp_path, grpc="off", threads=2, **PATIENT) as server,
        contextlib.ExitStack() as all_,
    ):
        slow = []
        for _ in range(6):
            client = all_.enter_context(open_connection(server.http, timeout=60))
            client.sendall(page)
            slow.append(client)
        for client in slow:
            assert client.recv(1, socket.MSG_PEEK)  # the answer is being sent
        assert requests.get(f"{server.url}/v2", timeout=20).status_code == 200
        first = slow.pop(0)
        for client in slow:  # their answers may be sent before their last bytes
            client.close()
        head, _, body = read_all(first).partition(b"\r\n\r\n")
        assert len(body) == int(re.search(rb"(?i)content-length: (\d+)", head)[1]) > 4_000_000
