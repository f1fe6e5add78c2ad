"""Slow, stalled, idle, vanished and too many peers: each is closed, and other clients are not affected."""

import contextlib
import json
import os
import select
import time

import pytest

from ksrv.engine.available_memory import bytes_in_flight
from ksrv.limits import Limits
from tests.support.native.gunicorn_server import (
    GunicornServer,
    assert_no_answer,
    infer,
    infer_head,
)
from tests.support.native.held_gil import held_gil
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import read_all, read_message

pytestmark = pytest.mark.long

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
SHORT = {"head_timeout": 0.5, "transfer_grace": 0.5, "min_transfer_rate": 1000}
LONG = {"head_timeout": 60, "transfer_grace": 60}


@pytest.fixture(scope="module")
def http_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("native")
    with GunicornServer(folder, settings=SHORT, threads=2) as server:
        yield server


def sent(server, data):
    """A connection with its first bytes; another connection if they arrived too late for a short timeout."""
    while True:
        began = time.monotonic()
        client = server.connect()
        try:
            client.sendall(data)
            in_time = True
        except OSError:
            in_time = False
        if time.monotonic() - began < SHORT["head_timeout"] / 2:
            assert in_time
            return client
        client.close()


def counters(server):
    """The counters of the HTTP server."""
    with sent(server, b"GET /counters HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") as client:
        return json.loads(read_message(client)[1])


def assert_serves(server):
    with sent(server, infer(16)) as client:
        head, body, _ = read_message(client)
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert body.endswith(bytes(range(64)))


@pytest.mark.parametrize(
    "start",
    [
        b"POST /v2/models/add/infer HTTP/1.1\r\nHost: x\r\n",
        infer(16)[:-1],
        infer_head(None, 10_000_000) + b"{",
        b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    ],
    ids=["head", "body", "large body", "body of a slow route"],
)
def test_stalled_message_gets_408_and_is_closed(http_server, start):
    with sent(http_server, start) as client:
        head, body, rest = read_message(client)
        assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert b"\r\nConnection: close" in head
        assert b"in time" in json.loads(body)["error"].encode()
        assert rest + read_all(client) == b""
    assert_serves(http_server)


def test_slow_large_body_is_awaited_and_keeps_its_connection(http_server):
    request = infer(100_000)
    with sent(http_server, request[:1000]) as client:
        client.sendall(request[1000:100_000])
        for start in range(100_000, len(request), 25_000):  # below the kernel's low-water mark
            client.sendall(request[start : start + 25_000])
            time.sleep(0.12)
        assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")
        client.sendall(infer(4))
        assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")


def test_at_the_limit_of_connections_accepting_pauses(tmp_path):
    options = {"worker_connections": 20, "threads": 4, "keepalive": 60}
    with GunicornServer(tmp_path, settings=LONG, **options) as server:
        held = [server.connect() for _ in range(20)]
        try:
            late = server.connect()
            late.sendall(LIVE)
            assert_no_answer(late)
            held.pop().close()
            assert read_message(late)[0].startswith(b"HTTP/1.1 200 OK")
            assert counters_over(late)["accept_pauses"] > 0
            late.close()
        finally:
            for client in held:
                client.close()
        assert_serves(server)


def test_longest_idle_connections_are_closed_at_the_limit(tmp_path):
    options = {"worker_connections": 20, "threads": 4, "keepalive": 600}
    with (
        GunicornServer(tmp_path, settings=LONG, **options) as server,
        contextlib.ExitStack() as stack,
    ):
        first = stack.enter_context(server.connect())
        # no other client is connected any more
        wait_until(lambda: counters_over(first)["open"] == 1)
        held = [first, *(stack.enter_context(server.connect()) for _ in range(19))]
        idle, active = held[2:12], [held[0], *held[12:]]
        for client in (*held, *active):  # the last connections become idle a second time, later
            client.sendall(LIVE)
            read_message(client)
        held[1].sendall(infer(16)[:50])  # not idle
        while idle:
            late = stack.enter_context(server.connect())
            late.sendall(infer(16)[:50])
            gone = select.select(idle, [], [], 20)[0]
            assert len(gone) == 1
            assert read_all(gone[0]) == b""
            idle.remove(gone[0])
            late.sendall(infer(16)[50:])
            assert read_message(late)[0].startswith(b"HTTP/1.1 200 OK")
        held[1].sendall(infer(16)[50:])
        for client in active:
            client.sendall(LIVE)
        for client in (held[1], *active):
            assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")
        assert counters_over(held[1])["recycled"] == 10


def counters_over(client):
    """The counters of the HTTP server, over a connection that stays open."""
    client.sendall(b"GET /counters HTTP/1.1\r\nHost: x\r\n\r\n")
    return json.loads(read_message(client)[1])


def test_bytes_in_flight_default_to_a_share_of_the_memory(tmp_path):
    quarter = bytes_in_flight(Limits())
    server = GunicornServer(tmp_path, settings={"limits": {"body": quarter}})
    with server, server.connect() as first, server.connect() as second:
        first.sendall(infer_head(100, quarter // 2) + b" ")  # announced bytes do not use memory
        second.sendall(infer_head(100, quarter))
        head, body, _ = read_message(second)
        assert head.startswith(b"HTTP/1.1 413 ")
        assert f"limit --limits-in-flight ({quarter} bytes)" in json.loads(body)["error"]
        assert_serves(server)


def test_health_is_answered_without_the_gil(tmp_path):
    """The HTTP server answers health without the GIL. Requests in Python wait."""
    os.mkfifo(pipe := tmp_path / "pipe")
    with (
        GunicornServer(tmp_path, gil=pipe) as server,
        server.connect() as client,
        server.connect() as through_python,
    ):
        with held_gil(pipe):
            through_python.sendall(b"GET /counters HTTP/1.1\r\nHost: x\r\n\r\n")
            for _ in range(101):
                client.sendall(LIVE)
                assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")
            assert_no_answer(through_python)
        assert read_message(through_python)[0].startswith(b"HTTP/1.1 200 OK")
