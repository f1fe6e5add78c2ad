"""Stalled TLS clients, with and without the native HTTP server, do not delay other clients."""

import contextlib
import os
import resource
import signal
import ssl
import threading

import pytest
import requests

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import DOUBLE, HELD, VECTOR, write_model
from tests.support.processes import children
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import double_body, open_connection, read_answer

pytestmark = pytest.mark.long

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
THREADS = 6


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return self_signed(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "double", DOUBLE, VECTOR)
    write_model(folder, "held", HELD, f"{VECTOR}warmup: false\nqueue_size: 100\n")
    return folder


def tls_server(models, certificate, **more):
    key, cert = certificate
    given = {"grpc": "off", "threads": THREADS, "tls_cert": str(cert), "tls_key": str(key)}
    return Server(models, **given | more)


@pytest.fixture(scope="module")
def patient(models, certificate):
    """A server whose time limits never expire during a test."""
    with tls_server(
        models, certificate, head_timeout=300, transfer_grace=300, stop_timeout=0
    ) as server:
        yield server


@pytest.fixture(scope="module")
def impatient(models, certificate):
    """A server whose time limits are one second."""
    limits = {"head_timeout": 1, "transfer_grace": 1, "keepalive": 1}
    with tls_server(models, certificate, **limits) as server:
        yield server


def encrypted(server):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain(server))


def infer_head(length, model="double"):
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"


def plain(server):
    return open_connection(server.http, 60)


def one_byte(server):
    connection = plain(server)
    connection.sendall(b"\x16")
    return connection


def half_handshake(server):
    connection = plain(server)
    connection.sendall(b"\x16\x03\x01\x02\x00")
    return connection


def half_head(server):
    connection = encrypted(server)
    connection.sendall(LIVE[:20])
    return connection


def empty_lines(server):
    connection = encrypted(server)
    connection.sendall(b"\r\n\r\n" + LIVE[:20])
    return connection


def half_body(server):
    connection = encrypted(server)
    connection.sendall(infer_head(1000).encode() + b"{")
    return connection


def chunked_body(server):
    connection = encrypted(server)
    head = infer_head(0).replace("Content-Length: 0", "Transfer-Encoding: chunked")
    connection.sendall(head.encode() + b"5\r\nabc")
    return connection


STALLS = [plain, one_byte, half_handshake, encrypted, half_head, empty_lines, half_body,
          chunked_body]  # fmt: skip


@pytest.mark.parametrize("stall", STALLS, ids=lambda stall: stall.__name__)
def test_stalled_clients_do_not_delay_others(patient, stall):
    with contextlib.ExitStack() as stalled:
        for _ in range(2 * THREADS):
            stalled.enter_context(stall(patient))
        assert patient.get("/v2/health/live")[0] == 200
        assert patient.get("/metrics")[0] == 200


def test_long_requests_do_not_delay_health(patient, models):
    """More requests run than the server has threads."""
    with contextlib.ExitStack() as waiting:
        connections = [waiting.enter_context(encrypted(patient)) for _ in range(2 * THREADS)]
        body = double_body()
        for connection in connections:
            connection.sendall(infer_head(len(body), "held").encode() + body)
        assert patient.get("/v2/health/live")[0] == 200
        assert patient.get("/v2/models")[0] == 200
        (models / "held" / "go").touch()
        assert [read_answer(connection).status for connection in connections] == [200] * len(
            connections
        )


@pytest.mark.parametrize("stall", STALLS, ids=lambda stall: stall.__name__)
def test_stalled_clients_are_disconnected(impatient, stall):
    """Each connection is closed, whatever it had begun."""
    with stall(impatient) as connection:
        try:
            while connection.recv(1000):
                pass
        except TimeoutError:
            pytest.fail("the connection was kept")
        except OSError:
            pass  # closing with an error counts, too


def test_worker_without_descriptors_continues_to_serve(models, certificate):
    with tls_server(models, certificate) as server:
        [worker] = children(server.pid)
        before = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        # the limit applies to descriptor numbers
        most = max(map(int, os.listdir(f"/proc/{worker}/fd"))) + 9
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (most, before[1]))
        with contextlib.ExitStack() as idle:
            for _ in range(most):
                idle.enter_context(plain(server))
            wait_until(lambda: len(os.listdir(f"/proc/{worker}/fd")) == most)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, before)
        assert server.get("/v2/health/live")[0] == 200
        assert children(server.pid) == [worker]


class Clients:
    """TLS clients that send requests one after the other, and their results."""

    def __init__(self, server, cert, *, count, keep):
        self._url = f"{server.url}/v2/models/double/infer"
        self._cert, self._keep = str(cert), keep
        self.answered, self.refused, self.lost = 0, 0, []
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def _run(self):
        session = requests.Session()
        while not self._end.is_set():
            if not self._keep:
                session.close()
            try:
                answer = session.post(self._url, data=double_body(), verify=self._cert, timeout=60)
            except requests.ConnectionError as error:
                if "refused" in str(error):
                    self.refused += 1
                else:
                    self.lost.append(str(error))
            else:
                if answer.status_code == 200:
                    self.answered += 1
                else:
                    self.lost.append(answer.status_code)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "new"])
def test_a_reload_and_a_stop_lose_no_request(models, certificate, keep):
    with tls_server(models, certificate, workers=2, drain_delay=1) as server:
        wait_until(lambda: server.log.count("ready: True") == 2)
        with Clients(server, certificate[1], count=8, keep=keep) as clients:
            wait_until(lambda: clients.answered > 100)
            os.kill(server.pid, signal.SIGHUP)
            wait_until(lambda: server.log.count("ready: True") == 4)
            before = clients.answered
            wait_until(lambda: clients.answered > before + 100)
            assert clients.refused == 0
            assert server.terminate() == 0
            wait_until(lambda: clients.refused > 0)
        assert clients.lost == []
