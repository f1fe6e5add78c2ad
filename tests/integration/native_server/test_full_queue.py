"""A full queue is answered without Python, and without reading the rest of a large body."""

import contextlib
import inspect
import os

import pytest

from ksrv.testing import Server
from tests.support.models import HOLD
from tests.support.native.fast_path import stripped
from tests.support.native.gunicorn_server import NATIVE, assert_no_answer, infer, infer_head
from tests.support.native.held_gil import MOST_IN_A_PIPE, held_gil, hold_gil
from tests.support.servers.metrics import metric
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import open_connection, read_all, read_message

HANDLER = f"""
{HOLD}
import ctypes, os, threading

MOST_IN_A_PIPE = {MOST_IN_A_PIPE}

{inspect.getsource(hold_gil)}

class Held(BaseHandler):
    def inference(self, x):
        if x[0, 0] == 1:
            threading.Thread(target=hold_gil, args=(HERE / "pipe",), daemon=True).start()
            return {{"y": x}}
        hold()
        return {{"y": x}}
"""

WAITING = 'ksrv_pending_requests{model="add",version=""}'
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
    with Server(folder.parent, worker_class=NATIVE, grpc="off", stop_timeout=5) as running:
        running.folder = folder
        yield running


@contextlib.contextmanager
def full(server):
    """The queue is full: one request runs, two wait."""
    began, go = server.folder / "began", server.folder / "go"
    for file in (began, go):
        file.unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(open_connection(server.http)) for _ in range(3)]
        try:
            clients[0].sendall(infer(16))
            wait_until(began.exists)
            for client in clients[1:]:
                client.sendall(infer(16))
            wait_until(lambda: metric(server, WAITING) == 2)
            yield
        finally:
            go.touch()
        for client in clients:
            assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")


def test_both_routes_answer_equally_and_keep_the_connection(server):
    with full(server), open_connection(server.http) as client:
        client.sendall(infer(16))
        fast = read_message(client)
        client.sendall(infer(16, "TE: trailers"))
        slow = read_message(client)
        assert fast[0].startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"\r\nretry-after: 1\r\n" in fast[0]
        assert b"queue_size" in fast[1]
        assert (stripped(fast[0]), fast[1]) == (stripped(slow[0]), slow[1])


def test_full_queue_is_reported_before_a_fault(server):
    """The request is not read until the queue has room. Then its fault is reported."""
    faulty = infer_head(None, 9) + b'{"inputs"'
    with open_connection(server.http) as client:
        with full(server):
            client.sendall(faulty)
            assert read_message(client)[0].startswith(b"HTTP/1.1 503 ")
        client.sendall(faulty)
        assert read_message(client)[0].startswith(b"HTTP/1.1 400 ")


def test_a_large_body_is_not_read(server):
    with full(server), open_connection(server.http) as client:
        client.sendall(infer_head(100, 500_000_000))
        head, body, _ = read_message(client)
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nConnection: close" in head
        assert b"queue_size" in body
        assert read_all(client) == b""


def test_full_queue_is_answered_without_the_gil(server):
    """A request in Python would wait for the GIL, but refusing a request does not."""
    os.mkfifo(pipe := server.folder / "pipe")
    holding = bytearray(infer(16))
    holding[-64:-60] = b"\0\0\x80\x3f"
    with open_connection(server.http) as client:
        client.sendall(bytes(holding))
        assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")
    with (
        full(server),
        open_connection(server.http) as client,
        open_connection(server.http) as through_python,
    ):
        with held_gil(pipe):
            through_python.sendall(b"GET /v2/models HTTP/1.1\r\nHost: x\r\n\r\n")
            for _ in range(101):
                client.sendall(infer(16))
                assert read_message(client)[0].startswith(b"HTTP/1.1 503 ")
            assert_no_answer(through_python)
        assert read_message(through_python)[0].startswith(b"HTTP/1.1 200 OK")
