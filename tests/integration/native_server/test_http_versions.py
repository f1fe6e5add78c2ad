"""HTTP/1.0 on the fast path gets the same answers as through Python; HTTP/2 is refused."""

import re
import socket

import pytest

from ksrv.testing import Server
from tests.support.models import write_double, write_slow
from tests.support.native.fast_path import (
    stripped,
)
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import double_body, open_connection, read_all

SLOWLY = "TE: trailers\r\n"
BODY = double_body()
LENGTH = len(BODY)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_double(folder)
    write_slow(folder)
    with Server(folder) as server:
        yield server


def head(model="double", fields="", length=LENGTH, version="1.1"):
    return (
        f"POST /v2/models/{model}/infer HTTP/{version}\r\nHost: x\r\n{fields}"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


@pytest.mark.parametrize(
    "request_",
    [
        head(version="1.0") + BODY,
        head(version="1.0", fields="Connection: close\r\n") + BODY,
        head("nope", version="1.0") + BODY,
        b"GET /v2/health/ready HTTP/1.0\r\nHost: x\r\n\r\n",
        b"GET /v2/models/double HTTP/1.0\r\nHost: x\r\n\r\n",
    ],
    ids=["infer", "closing", "unknown", "ready", "metadata"],
)
def test_a_message_of_http_1_0_is_answered_in_kind_and_closes(server, request_):
    answers = []
    for way in (b"", SLOWLY.encode()):
        with open_connection(server.http) as client:
            client.sendall(request_.replace(b"Host: x\r\n", b"Host: x\r\n" + way))
            answers.append(stripped(read_all(client)))
    assert answers[0] == answers[1]
    assert answers[0].startswith(b"HTTP/1.0 ")
    assert b"\r\nConnection: close\r\n" in answers[0]


def test_a_client_of_http_1_0_that_ends_its_sending_gets_no_interim_answer(server):
    body = double_body((0.7, 0, 0, 0))
    with open_connection(server.http) as client:
        client.sendall(head("slow", version="1.0", length=len(body)) + body)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client).startswith(b"HTTP/1.0 200 OK\r\n")


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
REASON = b"this address serves REST over HTTP/1.1 only; gRPC has a separate address"
HTTP_1_1_REQUIRED = 13
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"


def assert_refused(client):
    """The server has sent SETTINGS and GOAWAY, and has closed the connection."""
    refused = (
        bytes([0, 0, 8 + len(REASON), 7, 0, 0, 0, 0, 0, *bytes(7), HTTP_1_1_REQUIRED]) + REASON
    )
    assert read_all(client) == SETTINGS + refused


@pytest.mark.parametrize("step", [1, 5, 17, 24, 100])
def test_http2_is_refused_by_goaway_however_its_preface_is_cut(server, step):
    sent = PREFACE + SETTINGS
    with open_connection(server.http) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(sent), step):
            client.sendall(sent[at : at + step])
        assert_refused(client)


def test_clients_of_http2_are_logged_once_for_each_look(server):
    line = f"HTTP/2: a connection from 127.0.0.1 is closed: {REASON.decode()}"
    before = server.log.count(line)
    for _ in range(100):
        with open_connection(server.http) as client:
            client.sendall(PREFACE)
            assert_refused(client)
    wait_until(lambda: server.log.count(line) > before)
    assert server.log.count(line) - before < 100


def test_preface_after_a_request_is_a_malformed_request(server):
    with open_connection(server.http) as client:
        client.sendall(LIVE + b"\r\n" + PREFACE)
        answers = read_all(client)
    assert re.match(rb"HTTP/1\.1 200 OK.*HTTP/1\.1 (400|505) ", answers, re.DOTALL)
