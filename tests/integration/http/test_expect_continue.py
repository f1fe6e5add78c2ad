"""`Expect: 100-continue`: the server asks for the body after it has accepted the head."""

import json
import socket

import pytest

from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.wire.http_reader import double_body, infer_head, open_connection, read_message

BODY = double_body()
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("expect")
    write_double(root)
    with Server(root) as running:
        yield running


HEAD = infer_head("double", len(BODY), "Expect: 100-continue")


def test_100_continue_is_sent_and_the_connection_stays_open(server):
    with open_connection(server.http, 30) as connection:
        for _ in range(2):
            connection.sendall(HEAD)
            assert connection.recv(len(CONTINUE), socket.MSG_WAITALL) == CONTINUE
            connection.sendall(BODY)
            top, body, _ = read_message(connection)
            assert top.startswith(b"HTTP/1.1 200")
            assert json.loads(body)["outputs"][0]["data"] == [2, 4, 6, 8]


def test_unrequested_body_is_read(server):
    with open_connection(server.http, 30) as connection:
        connection.sendall(HEAD + BODY)
        start = connection.recv(len(CONTINUE), socket.MSG_WAITALL)
        if start == CONTINUE:  # optional for a server: RFC 9110 10.1.1
            start = b""
        assert read_message(connection, start)[0].startswith(b"HTTP/1.1 200")
