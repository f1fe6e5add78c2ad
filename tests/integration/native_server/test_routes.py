"""The fast and the slow path give the same answers: comparisons, malformed framing, and slow readers."""

import contextlib
import socket
import threading
import time

import pytest

from tests.support.native.fast_path import stripped
from tests.support.native.gunicorn_server import (
    GunicornServer,
    infer,
)
from tests.support.wire.http_reader import read_all, read_message

SLOWLY = "TE: trailers"
"""A field that has no effect, but that the request-head classifier leaves to gunicorn."""

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def http_server(tmp_path_factory):
    with GunicornServer(tmp_path_factory.mktemp("native"), keepalive=5) as server:
        yield server


@pytest.mark.parametrize("request_", [infer(16), LIVE, READY], ids=["infer", "live", "ready"])
def test_closing_messages_are_answered_equally(http_server, request_):
    before = http_server.counters()["app"]
    closing = request_.replace(b"Host: x", b"Host: x\r\nConnection: close")
    answers = []
    for message in (closing, closing.replace(b"Host: x", b"Host: x\r\n" + SLOWLY.encode())):
        with http_server.connect() as client:
            client.sendall(message + LIVE)
            answers.append(stripped(read_all(client)))
    assert answers[0] == answers[1]
    assert answers[0].count(b"HTTP/1.1 200 OK") == 1
    assert (
        http_server.counters()["app"] == before + 2
    )  # this path, and this reading of the counters


def test_headers_reach_the_handler_on_both_routes(http_server):
    fields = ("X-One: a", "x-two:b", "X-One: c", "Content-Type: application/octet-stream")
    answers = []
    for more in ((), (SLOWLY,)):
        with http_server.connect() as client:
            client.sendall(infer(4, *fields, *more, headers=True))
            answers.append(read_message(client)[1])
    names = (
        b"content-length,content-type,host,inference-header-content-length,x-one,x-request-id,x-two"
    )
    assert names in answers[0]
    assert b"x-one,x-request-id,x-two" in answers[1]


def test_many_pipelined_health_requests_do_not_block_others(http_server):
    with http_server.connect() as client, http_server.connect() as other:
        client.sendall(LIVE * 2000)
        other.sendall(LIVE)
        assert read_message(other)[0].startswith(b"HTTP/1.1 200")
        rest = b""
        for _ in range(2000):
            _, body, rest = read_message(client, rest)
            assert body == b'{"live":true}'


def read_steadily(server):
    """Read 4 KB of short answers every 10 ms, for two seconds; return the longest pause."""
    longest = 0.0
    with server.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)

        def send():
            with contextlib.suppress(OSError):  # the test may end before everything is sent
                client.sendall(LIVE * 100_000)

        sender = threading.Thread(target=send)
        sender.start()
        start = last = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - start < 2 and client.recv(4000):
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
                time.sleep(0.01)
        longest = max(longest, time.monotonic() - last)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        sender.join(60)
        assert not sender.is_alive()
    return longest


def test_slow_reader_of_many_short_answers_is_not_disconnected(tmp_path):
    """Each answer is a fraction of the kernel's buffer for the peer, which reads steadily."""
    settings = {"transfer_grace": 0.3, "min_transfer_rate": 10_000}
    with GunicornServer(tmp_path, settings=settings) as server:
        give_up = time.monotonic() + 60
        while True:
            before = server.counters()["too_slow"]
            pause = read_steadily(server)
            if server.counters()["too_slow"] == before:
                break
            # Only if this process could not read for a large part of the grace period.
            assert pause > 0.1
            assert time.monotonic() < give_up
