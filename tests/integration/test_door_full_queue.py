"""A full queue is answered without Python and without reading the rest of a large body."""

import contextlib
import re
import time

import pytest

from ksrv.testing import Server
from tests.integration.door_server import (
    DOOR,
    infer,
    infer_head,
    median_seconds,
    open_connection,
    read_all,
    read_answer,
)

HANDLER = """
import threading, time
from ksrv import BaseHandler

def hog():
    while True:
        sum(range(1000))

class Slow(BaseHandler):
    def inference(self, x):
        if x[0, 0] > 0:
            threading.Thread(target=hog, daemon=True).start()
        open(__file__.replace("handler.py", "began"), "a").write("x")
        time.sleep(3)
        return {"y": x}
"""

MODEL = """
handler: handler.py
queue_size: 2
warmup: false
inputs:
  - {name: x, datatype: FP32, shape: [-1, 16]}
outputs:
  - {name: y, datatype: FP32, shape: [-1, 16]}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "add"
    folder.mkdir(parents=True)
    (folder / "model.yaml").write_text(MODEL)
    (folder / "handler.py").write_text(HANDLER)
    with Server(folder.parent, worker_class=DOOR, grpc="off", stop_timeout=5) as running:
        time.sleep(0.6)  # the worker tells its door about queues four times a second
        running.folder = folder.parent
        yield running


@contextlib.contextmanager
def full(server):
    """The queue is full: one request runs, two wait."""
    began = server.folder / "add" / "began"
    before = began.stat().st_size if began.exists() else 0
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(open_connection(server.http)) for _ in range(3)]
        clients[0].sendall(infer(16))
        while not began.exists() or began.stat().st_size == before:
            time.sleep(0.01)
        for client in clients[1:]:
            client.sendall(infer(16))
        time.sleep(0.5)
        yield
        for client in clients:
            assert read_answer(client)[0].startswith(b"HTTP/1.1 200 OK")


def without_date(head):
    return re.sub(rb"\r\nDate: [^\r]+", b"", head)


def test_both_routes_say_the_same_and_keep_the_connection(server):
    with full(server), open_connection(server.http) as client:
        client.sendall(infer(16))
        hot = read_answer(client)
        client.sendall(infer(16, "TE: trailers"))
        slow = read_answer(client)
        assert hot[0].startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"\r\nretry-after: 1\r\n" in hot[0]
        assert b"queue_size" in hot[1]
        assert (without_date(hot[0]), hot[1]) == (without_date(slow[0]), slow[1])


def test_a_request_with_a_fault_is_told_that_the_queue_is_full_first(server):
    """It is not looked at until there is a place; afterwards it is told its fault."""
    faulty = infer_head(None, 9) + b'{"inputs"'
    with open_connection(server.http) as client:
        with full(server):
            client.sendall(faulty)
            assert read_answer(client)[0].startswith(b"HTTP/1.1 503 ")
        client.sendall(faulty)
        assert read_answer(client)[0].startswith(b"HTTP/1.1 400 ")


def test_a_large_body_is_not_read(server):
    with full(server), open_connection(server.http) as client:
        client.sendall(infer_head(None, 500_000_000))
        head, body, _ = read_answer(client)
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nConnection: close" in head
        assert b"queue_size" in body
        assert read_all(client) == b""


def test_pipelined_requests_are_each_told(server):
    with full(server), open_connection(server.http) as client:
        client.sendall(infer(16) * 20)
        rest = b""
        for _ in range(20):
            head, _, rest = read_answer(client, rest)
            assert head.startswith(b"HTTP/1.1 503 ")


def test_it_is_answered_while_a_thread_hogs_the_gil(server):
    """A request through Python waits for the GIL; one that is turned away does not."""
    hogging = bytearray(infer(16))
    hogging[-64:-60] = b"\0\0\x80\x3f"
    with open_connection(server.http) as client:
        client.sendall(bytes(hogging))
        read_answer(client)
    with full(server), open_connection(server.http) as client:
        turned_away = median_seconds(client, infer(16), 101)
        through_python = median_seconds(client, b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n", 11)
    assert turned_away < through_python / 4
