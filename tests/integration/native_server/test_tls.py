"""TLS in gunicorn's worker: the native HTTP server serves it."""

import contextlib
import json
import socket

import pytest

from tests.support.native.fast_path import chunked
from tests.support.native.gunicorn_server import TlsServer, infer
from tests.support.wait_until import wait_until
from tests.support.wire.arrival_times import came_at, note_arrivals, stopped
from tests.support.wire.client_hello import client_hello
from tests.support.wire.http_reader import read_message

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
FORMS = [
    infer(16),
    infer(1 << 20),
    chunked(infer(16)),
    chunked(infer(1 << 16)),
    infer(16, "TE: trailers"),  # leaves the fast path
    infer(16).replace(b"HTTP/1.1", b"HTTP/1.0\r\nConnection: keep-alive", 1),
]


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    with TlsServer(tmp_path_factory.mktemp("server")) as server:
        yield server


def test_every_framing_is_served_by_the_http_server(native):
    before = native.counters()
    with native.connect() as client:
        for _ in range(2):
            for data in FORMS:
                client.sendall(data)
                head, body, _ = read_message(client)
                assert b" 200 OK\r\n" in head
                assert body[-64:] in (bytes(range(64)), bytes(range(192, 256)))
    assert native.counters()["tls_agreed"] - before["tls_agreed"] == 2


def test_app_sees_the_https_scheme(native):
    assert native.counters()["scheme"] == "https"


def test_request_waits_for_at_most_one_earlier_handshake(native):
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(native.connect())
        client.sendall(b"GET /pid HTTP/1.1\r\nHost: x\r\n\r\n")
        pid = json.loads(read_message(client)[1])["pid"]
        peers = [
            stack.enter_context(socket.create_connection(native.address, 60)) for _ in range(64)
        ]
        wait_until(lambda: native.counters()["open"] > len(peers))
        for each in (client, *peers):
            note_arrivals(each)
        with stopped(pid):
            for peer in peers:
                peer.sendall(client_hello(native.context))
            client.sendall(LIVE)
        answered = came_at(client)
        assert b" 200 OK\r\n" in read_message(client)[0]
        before = sum(came_at(peer) < answered for peer in peers)
    assert before <= 1
