"""Connections end at their maximum age and number of requests, without losing a request."""

import contextlib
import ssl
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ksrv.client import Client
from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import write_double, write_slow
from tests.support.wire.http2_wire import Wire
from tests.support.wire.http_reader import (
    infer_message,
    open_connection,
    parse_answers,
    read_all,
    read_answer,
)

ROW = np.ones((1, 4), np.float32)
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
MISSING = b"GET /v2/models/missing HTTP/1.1\r\nHost: x\r\n\r\n"
ON_EACH_PATH = [LIVE, MISSING, infer_message(), infer_message("double", None, "X-Unusual: 1")]
"""Requests that are answered without Python, by the app, on the fast path, and on the fast path with another field."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_double(folder)
    write_slow(folder, 0.5)
    return folder


@pytest.fixture(scope="module", params=["cleartext", "TLS"])
def security(request, tmp_path_factory):
    """The settings of a server, and a function that encrypts a client's socket if needed."""
    if request.param == "cleartext":
        return {}, lambda plain: plain
    key, cert = self_signed(tmp_path_factory.mktemp("certificates"), "server")
    context = ssl.create_default_context(cafile=str(cert))
    settings = {"tls_cert": str(cert), "tls_key": str(key)}
    return settings, lambda plain: context.wrap_socket(
        plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False
    )


@pytest.fixture
def started(models, security):
    settings, wrap = security
    with contextlib.ExitStack() as stack:

        def start(**more):
            server = stack.enter_context(Server(models, **settings, **more))
            return server, lambda: stack.enter_context(wrap(open_connection(server.http, 60)))

        yield start


@pytest.mark.parametrize("message", ON_EACH_PATH, ids=["native", "app", "infer", "more fields"])
def test_the_last_of_its_requests_closes_a_connection(started, message):
    _, connect = started(max_connection_requests=3)
    for _ in range(2):
        client = connect()
        told = []
        for _ in range(3):
            client.sendall(message)
            told.append(read_answer(client).headers["connection"])
        assert told == ["keep-alive", "keep-alive", "close"]
        assert client.recv(1) == b""


def test_request_pipelined_before_the_last_answer_is_not_begun(started):
    _, connect = started(max_connection_requests=2)
    client = connect()
    client.sendall(LIVE * 4)
    answers = parse_answers(read_all(client))
    assert [answer.headers["connection"] for answer in answers] == ["keep-alive", "close"]


def test_busy_connection_closes_with_an_answer_at_its_maximum_age(started):
    _, connect = started(max_connection_age=0.3)
    client = connect()
    began = time.monotonic()
    told = "keep-alive"
    while told == "keep-alive":
        client.sendall(LIVE)
        answer = read_answer(client)
        assert answer.status == 200
        told = answer.headers["connection"]
    assert told == "close"
    assert time.monotonic() - began >= 0.25
    assert client.recv(1) == b""


def test_request_running_at_the_maximum_age_is_answered(started):
    _, connect = started(max_connection_age=0.2)
    client = connect()
    client.sendall(infer_message("slow"))
    answer = read_answer(client)
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert client.recv(1) == b""


def test_idle_connection_is_closed_at_its_maximum_age(started):
    _, connect = started(max_connection_age=0.2)
    client = connect()
    client.sendall(LIVE)
    assert read_answer(client).headers["connection"] == "keep-alive"
    began = time.monotonic()
    assert client.recv(1) == b"", "closed properly, without a reset"
    assert time.monotonic() - began >= 1, "a client that is about to send has time to do so"


def test_reconnecting_clients_lose_no_request(models):
    settings = {"max_connection_age": 0.2, "max_connection_requests": 7}

    def ask(address):
        with Client(address) as client:
            for _ in range(300):
                assert client.infer("double", {"x": ROW})["y"].tolist() == (ROW * 2).tolist()

    with Server(models, **settings) as server, ThreadPoolExecutor(6) as threads:
        addresses = [server.http] * 4 + ["grpc://" + server.grpc] * 2
        for asking in [threads.submit(ask, address) for address in addresses]:
            asking.result()


PING = "/inference.GRPCInferenceService/ServerLive"


class TestGrpc:
    def test_goaway_follows_the_last_call(self, models):
        with (
            Server(models, max_connection_requests=3, head_timeout=1.0) as server,
            Wire(server.grpc) as client,
        ):
            streams = [client.call(PING, message=b"") for _ in range(3)]
            client.until_closed()
            assert all(b"grpc-status: 0" in client.ended[stream] for stream in streams)
            assert client.goodbye == 0

    def test_connection_ends_at_its_maximum_age(self, models):
        settings = {"max_connection_age": 0.3, "head_timeout": 1.0}
        with Server(models, **settings) as server, Wire(server.grpc) as client:
            client.until_closed()
            assert client.goodbye == 0


def test_grpcio_ends_connections_at_their_age(models):
    with Server(models, max_connection_age=0.3, grpc_server="grpcio") as server:
        with Wire(server.grpc) as client:
            client.until_closed()
            assert client.goodbye == 0
        with Client("grpc://" + server.grpc) as client:
            for _ in range(50):
                assert client.infer("double", {"x": ROW})["y"].tolist() == (ROW * 2).tolist()
