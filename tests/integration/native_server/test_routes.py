"""The fast and the slow path give the same answers: comparisons, malformed framing, splits and pipelines."""

import contextlib
import json
import re
import socket
import struct
import threading
import time

import pytest

from tests.support.native.gunicorn_server import (
    GunicornServer,
    infer,
    infer_head,
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


def without_date(head):
    """The head of an answer without fields that differ each time, such as the durations of the stages."""
    head = re.sub(rb";dur=[0-9.]+", b"", head)
    return re.sub(rb"\r\n(?:Date|x-request-id): [^\r]+", b"", head)


def json_infer(document, *fields, model="add"):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return infer_head(None, len(body), *fields, model=model) + body


def tensor(datatype="FP32", shape=(1, 2), data=(1, 2), **more):
    return {"name": "x", "datatype": datatype, "shape": list(shape), "data": list(data), **more}


def many_tensors(*fields):
    inputs = [
        tensor(shape=[5000], data=(), name=f"x{n}", parameters={"binary_data_size": 20_000})
        for n in range(9)
    ]
    for entry in inputs:
        del entry["data"]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    blocks = b"".join(bytes([n]) * 20_000 for n in range(9))
    return infer_head(len(head), len(head) + len(blocks), *fields) + head + blocks


REQUESTS = {
    "binary": lambda *f: infer(16, *f),
    "binary, unaligned": lambda *f: infer(3, *f, note="odd"),
    "large": lambda *f: infer(400_000, *f),
    "JSON": lambda *f: json_infer({"id": "42", "inputs": [tensor()]}, *f),
    "BYTES": lambda *f: json_infer({"inputs": [tensor("BYTES", (2,), ["a", "é"])]}, *f),
    "handler's header": lambda *f: infer(4, *f, header="yes"),
    "handler's long header": lambda *f: infer(4, *f, header="long" * 500),
    "many tensors": many_tensors,
    "handler's bad header": lambda *f: infer(4, *f, header="no\r\nway"),
    "outputs named": lambda *f: json_infer({"inputs": [tensor()], "outputs": [{"name": "x"}]}, *f),
    "not JSON": lambda *f: json_infer(b"{", *f),
    "empty object": lambda *f: json_infer(b"{}", *f),
    "null": lambda *f: json_infer(b"null", *f),
    "count differs": lambda *f: json_infer({"inputs": [tensor(shape=(1, 3))]}, *f),
    "deep": lambda *f: json_infer(b"[" * 1000, *f),
    "bytes missing": lambda *f: infer_head(2, 2, *f) + b"{}",
    "header too short": lambda *f: infer_head(1, 2, *f) + b"{}",
    "unknown model": lambda *f: infer(4, *f, model="nope"),
    "full": lambda *f: infer(4, *f, model="full"),
    "handler's error": lambda *f: infer(4, *f, fail=422),
    "handler's fault": lambda *f: infer(4, *f, **{"break": True}),
}


@pytest.mark.parametrize("make", REQUESTS.values(), ids=REQUESTS)
def test_both_routes_answer_equally(http_server, make):
    before = http_server.counters()
    with http_server.connect() as client:
        client.sendall(make())
        fast = read_message(client)
        client.sendall(make(SLOWLY))
        slow = read_message(client)
    after = http_server.counters()
    assert after["infer"] - before["infer"] == 1
    assert fast[1] == slow[1]
    assert without_date(fast[0]) == without_date(slow[0])


@pytest.mark.parametrize("request_", [LIVE, READY], ids=["live", "ready"])
def test_health_is_answered_equally(http_server, request_):
    with http_server.connect() as client:
        client.sendall(request_)
        fast = read_message(client)
        client.sendall(request_.replace(b"Host: x", b"Host: x\r\n" + SLOWLY.encode()))
        slow = read_message(client)
    assert without_date(fast[0]) == without_date(slow[0])
    assert fast[1] == slow[1]


@pytest.mark.parametrize("request_", [infer(16), LIVE, READY], ids=["infer", "live", "ready"])
def test_closing_messages_are_answered_equally(http_server, request_):
    before = http_server.counters()["app"]
    closing = request_.replace(b"Host: x", b"Host: x\r\nConnection: close")
    answers = []
    for message in (closing, closing.replace(b"Host: x", b"Host: x\r\n" + SLOWLY.encode())):
        with http_server.connect() as client:
            client.sendall(message + LIVE)
            answers.append(without_date(read_all(client)))
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


def status_of(answer):
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3})", answer)]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            b"POST /v2/models/add/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{",
            b"the chunked body ended behind 2 bytes, before its last chunk",
        ),
        (
            b"POST /v2/models/add/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"FFFFFFFFFFFFFFFFF\r\n{}\r\n0\r\n\r\n",
            b"a chunk's size has more than 64 bits",
        ),
        (b"\x16\x03\x01\x02\x00", b"does not end with CR LF, or holds a NUL"),
        (LIVE.replace(b"Host", b"Ho\0st"), b"does not end with CR LF, or holds a NUL"),
    ],
    ids=["chunk cut", "huge chunk", "TLS", "NUL"],
)
def test_messages_that_gunicorn_drops_get_an_answer(http_server, data, told):
    answer = http_server.exchange(data)
    assert status_of(answer) == [400]
    assert told in answer


def test_pipelined_mixes_are_answered_in_order(http_server):
    mix = [
        infer(4, sleep=0.05),
        LIVE,
        b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        infer(4, SLOWLY),
        READY,
        infer(5000),
        b"GET /pid HTTP/1.1\r\nHost: x\r\n\r\n",
        infer(8),
    ] * 5
    with http_server.connect() as client:
        client.sendall(b"".join(mix))
        rest, bodies = b"", []
        for _ in mix:
            head, body, rest = read_message(client, rest)
            assert head.startswith(b"HTTP/1.1 200 OK"), head
            bodies.append(body)
        assert rest == b""
    keys = ("extensions", "binary_data_size", "ready", "live", "pid")
    kinds = [next(key for key in keys if f'"{key}"'.encode() in body) for body in bodies]
    assert kinds == [
        "binary_data_size", "live", "extensions", "binary_data_size", "ready", "binary_data_size",
        "pid", "binary_data_size",
    ] * 5  # fmt: skip
    assert [len(body) > 20_000 for body in bodies] == [kind == 5 for kind in [*range(8)] * 5]


def test_many_pipelined_health_requests_do_not_block_others(http_server):
    with http_server.connect() as client, http_server.connect() as other:
        client.sendall(LIVE * 2000)
        other.sendall(LIVE)
        assert read_message(other)[0].startswith(b"HTTP/1.1 200")
        rest = b""
        for _ in range(2000):
            _, body, rest = read_message(client, rest)
            assert body == b'{"live":true}'


def test_a_reader_of_health_answers_that_pauses_gets_all_of_them(http_server):
    count = 40_000
    with http_server.connect() as client:
        sender = threading.Thread(target=client.sendall, args=(LIVE * count,))
        sender.start()
        time.sleep(0.5)  # until neither side can send
        assert status_of(http_server.exchange(LIVE)) == [200]
        found, tail = 0, b""
        while found < count:
            received = client.recv(1 << 20)
            assert received, f"closed after {found} answers"
            found += (tail + received).count(b'{"live":true}') - tail.count(b'{"live":true}')
            tail = received[-20:]
        sender.join(10)
    assert found == count


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


def test_peers_that_reset_while_they_are_answered_are_forgotten(http_server):
    before = http_server.counters()["open"]
    for _ in range(10):
        client = http_server.connect()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(BlockingIOError):
            client.setblocking(False)
            client.send(LIVE * 3000)
        client.close()
    deadline = time.monotonic() + 60
    # Read once: each reading is a connection, which may still be closing at the next reading.
    while (left := http_server.counters()["open"]) > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left <= before
    assert status_of(http_server.exchange(LIVE)) == [200]
