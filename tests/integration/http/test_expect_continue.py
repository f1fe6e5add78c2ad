"""`Expect: 100-continue`: the body is asked for once the head is accepted, on every worker."""

import json
import socket

import pytest

from ksrv.testing import Server
from tests.support.models import write_double

BODY = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
).encode()
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture(scope="module", params=["ksrv.server.worker:KsrvWorker", "gthread"])
def server(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("expect")
    write_double(root)
    with Server(root, worker_class=request.param, limits={"body": 10_000}) as running:
        yield running


def head(path="/v2/models/double/infer", length=None, *more):
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {length or len(BODY)}", *more]
    return "\r\n".join([*lines, "Expect: 100-continue", "", ""]).encode()


def connect(server):
    host, port = server.http.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=30)


def whole_answer(connection):
    """Read until the server closes."""
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def one_answer(connection):
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    top, _, body = received.partition(b"\r\n\r\n")
    length = int(top.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return top, body


def test_a_body_is_asked_for_and_the_connection_goes_on(server):
    with connect(server) as connection:
        for _ in range(2):
            connection.sendall(head())
            assert connection.recv(len(CONTINUE), socket.MSG_WAITALL) == CONTINUE
            connection.sendall(BODY)
            top, body = one_answer(connection)
            assert top.startswith(b"HTTP/1.1 200")
            assert json.loads(body)["outputs"][0]["data"] == [2, 4, 6, 8]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (head(length=10_001), 413),
        (head("/v2/models/nope/infer"), 404),
        (head("/v2/zzz"), 404),
        (head("/v2/health/live"), 405),
        (head("/v2/models/double/infer", 10, "Content-Encoding: br"), 415),
    ],
    ids=["large", "model", "route", "method", "encoding"],
)
def test_a_head_that_is_refused_is_answered_without_asking(server, sent, status):
    with connect(server) as connection:
        connection.sendall(sent)
        answer = whole_answer(connection)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in answer.lower()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


def test_a_body_that_comes_unasked_is_read(server):
    with connect(server) as connection:
        connection.sendall(head() + BODY)
        assert connection.recv(len(CONTINUE), socket.MSG_WAITALL) == CONTINUE
        assert one_answer(connection)[0].startswith(b"HTTP/1.1 200")
