"""Stops, reloads, retirement and death of workers under load: accepted requests are answered."""

import os
import signal
import socket
import threading
import time

import pytest

from ksrv.testing import Server
from tests.support.native.gunicorn_server import NATIVE, GunicornServer, infer
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import open_connection, read_all, read_message

pytestmark = pytest.mark.long

HANDLER = """
import os, time
from pathlib import Path
from ksrv import BaseHandler

HERE = Path(__file__).parent

class Echo(BaseHandler):
    def initialize(self, context):
        time.sleep({load})

    def inference(self, x):
        (HERE / "began").touch()
        time.sleep(0.005)
        while (HERE / "hold").exists():
            time.sleep(0.005)
        return {{"y": x}}
"""

MODEL = """
handler: handler.py
queue_size: 1000
warmup: false
inputs:
  - {name: x, datatype: FP32, shape: [-1, 16]}
outputs:
  - {name: y, datatype: FP32, shape: [-1, 16]}
"""

READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def models(tmp_path):
    def make(load=0.0):
        folder = tmp_path / "models" / "add"
        folder.mkdir(parents=True)
        (folder / "model.yaml").write_text(MODEL)
        (folder / "handler.py").write_text(HANDLER.format(load=load))
        return tmp_path / "models"

    return make


class Load:
    """Clients that send requests one after the other until they are stopped, and the results.

    Attributes:
        answered: Requests with a 200 that echoed the input.
        refused: Connections that were refused because no worker accepted them.
        lost: All other results, as text: accepted requests without an answer. A client that pauses
            between two requests may find its connection closed, because a retiring worker waits
            only two seconds for the next request.
    """

    def __init__(self, address, clients=8, keep=True):
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._keep = keep
        self._stop = threading.Event()
        self.answered = 0
        self.refused = 0
        self.lost = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def _run(self):
        while not self._stop.is_set():
            try:
                client = socket.create_connection(self._address, timeout=20)
            except ConnectionRefusedError:
                with self._lock:
                    self.refused += 1
                time.sleep(0.01)
                continue
            with client:
                self._talk(client)

    def _talk(self, client):
        sent, last = False, time.monotonic()
        try:
            while not self._stop.is_set():
                sent = False
                client.sendall(infer(16))
                last, before = time.monotonic(), last
                sent = last - before < 1
                head, body, _ = read_message(client)
                good = head.startswith(b"HTTP/1.1 200 OK") and body.endswith(bytes(range(64)))
                with self._lock:
                    self.answered += good
                    if not good:
                        self.lost.append((head, body))
                if b"\r\nConnection: close" in head or not self._keep:
                    return
        except (OSError, EOFError) as error:
            if sent:
                with self._lock:
                    self.lost.append(repr(error))

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception):
        self._stop.set()
        for thread in self._threads:
            thread.join()


def workers_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return [int(child) for child in children.read().split()]


def test_sigterm_turns_unready_and_loses_no_request(models):
    with Server(models(), worker_class=NATIVE, drain_delay=5.0, grpc="off") as server:
        host, _, port = server.http.rpartition(":")
        with Load(server.http) as load:
            wait_until(lambda: load.answered > 50)
            os.kill(server.pid, signal.SIGTERM)
            before = load.answered
            statuses = []
            while server.process.poll() is None:
                try:
                    with socket.create_connection((host, int(port)), timeout=5) as client:
                        client.sendall(READY)
                        statuses.append(read_message(client)[0][:12])
                except (OSError, EOFError):
                    pass  # the listener is closed
                time.sleep(0.02)
            assert server.process.wait(30) == 0
        assert b"HTTP/1.1 503" in statuses
        assert load.answered > before
        assert load.lost == []


def test_sigterm_finishes_accepted_requests(models):
    folder = models() / "add"
    (folder / "hold").touch()
    with Server(folder, worker_class=NATIVE, grpc="off") as server:
        with open_connection(server.http) as client, open_connection(server.http) as idle:
            client.sendall(infer(16))
            wait_until((folder / "began").exists)
            idle.sendall(READY)
            read_message(idle)
            os.kill(server.pid, signal.SIGTERM)
            assert read_all(idle) == b""  # the worker is leaving
            (folder / "hold").unlink()
            head, body, _ = read_message(client)
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert b"\r\nConnection: close" in head
            assert body.endswith(bytes(range(64)))
        assert server.process.wait(30) == 0


def test_reloads_under_load_lose_nothing(models):
    with (
        Server(models(load=0.3), worker_class=NATIVE, grpc="off") as server,
        Load(server.http) as load,
    ):
        wait_until(lambda: load.answered > 20)
        seen = set(workers_of(server.pid))
        for _ in range(3):
            before = set(workers_of(server.pid))
            os.kill(server.pid, signal.SIGHUP)
            wait_until(lambda before=before: not before & set(workers_of(server.pid)))
            count = load.answered
            wait_until(lambda count=count: load.answered > count + 20)
            seen |= set(workers_of(server.pid))
        assert len(seen) == 4
        load._stop.set()
        assert load.lost == []
        assert load.refused == 0


def test_a_killed_worker_leaves_the_other_serving(models):
    with (
        Server(models(load=0.5), worker_class=NATIVE, workers=2, grpc="off") as server,
        Load(server.http, keep=False) as load,
    ):
        # A worker that is still loading answers 503 if no other worker is left.
        wait_until(lambda: server.log.count("ready: True") == 2 and load.answered > 50)
        killed = workers_of(server.pid)[0]
        os.kill(killed, signal.SIGKILL)
        count = load.answered
        wait_until(lambda: load.answered > count + 50)
        wait_until(lambda: len(set(workers_of(server.pid)) - {killed}) == 2)
        assert load.refused == 0
        assert len(load.lost) <= 8  # at most one per client, in the killed worker
        server.wait_ready(20)


def test_max_requests_retires_a_worker(tmp_path):
    with GunicornServer(tmp_path, max_requests=20, workers=1) as server:
        first = server.counters()["pid"]
        answered = 0
        deadline = time.monotonic() + 60
        while server.counters()["pid"] == first:
            assert time.monotonic() < deadline
            answer = server.exchange(infer(16))
            answered += answer.startswith(b"HTTP/1.1 200")
        assert answered >= 5
        assert "Autorestarting worker" in server.log


def test_a_stuck_io_thread_gets_the_worker_replaced(tmp_path):
    """The handler never returns on the HTTP server's thread, so that the heartbeat stops."""
    with GunicornServer(tmp_path, timeout=4, settings={"drain_delay": 0}) as server:
        first = server.counters()["pid"]
        with server.connect() as client:
            client.sendall(infer(16, model="stuck"))
            wait_until(lambda: f"WORKER TIMEOUT (pid:{first})" in server.log)
        wait_until(lambda: first not in workers_of(server.process.pid))
        assert server.counters()["pid"] != first


def test_idle_connections_end_when_the_worker_stops(tmp_path):
    with GunicornServer(tmp_path, keepalive=100) as server, server.connect() as client:
        client.sendall(READY)
        read_message(client)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert read_all(client) == b""
        assert server.process.wait(50) == 0
        assert time.monotonic() - began < 50  # the keep-alive time is 100


def test_endless_request_does_not_delay_the_stop(models):
    settings = {"stop_timeout": 1, "worker_class": NATIVE, "grpc": "off"}
    folder = models() / "add"
    (folder / "hold").touch()
    with Server(folder, **settings) as server:
        with open_connection(server.http) as client:
            client.sendall(infer(16))
            wait_until((folder / "began").exists)
            os.kill(server.pid, signal.SIGTERM)
            assert server.process.wait(50) == 0
        assert "still open after graceful_timeout" in server.log
