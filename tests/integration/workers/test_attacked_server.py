"""One server under every attack that it is meant to outlive, beside clients that it must go on serving.

Each attack is bounded in connections, bytes and time. While they run, in random order, well-behaved
clients send inference requests, probes and metadata requests; afterwards the server holds the
memory, the descriptors and the threads that it held before.
"""

import collections
import http.client
import os
import ssl
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from ksrv.server.grpc.limits import MAX_OPEN_WATCHES, MAX_WATCHES, SPARE_THREADS
from ksrv.testing import Server
from tests.integration.workers.test_soak_server import descendants, held
from tests.support.certificates import self_signed
from tests.support.clients.attacks import Attacks, message, rows

HANDLER = """
import asyncio
import os

from ksrv import BaseHandler

class Panic(BaseException):
    pass

class Sensitive(BaseHandler):
    def inference(self, x):
        first = float(x[0, 0])
        if first == -1:
            raise Panic("an odd input")
        if first == -2:
            raise asyncio.CancelledError
        if first == -3:
            raise ValueError("a wrong input")
        if first == -4 and os.environ.get("KSRV_TEST_MAY_EXIT") == "1":
            os._exit(3)
        return {"y": x}
"""

MODEL = """
handler: handler.py
inputs: [{{name: x, datatype: FP32, shape: [-1, 16]}}]
outputs: [{{name: y, datatype: FP32, shape: [-1, 16]}}]
executor: {executor}
timeout_ms: 5000
"""

PICTURES = """
handler: handler.py
inputs: [{name: image, datatype: FP32, shape: [-1, 32, 32, 3]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 1]}]
"""

PICTURE_HANDLER = """
from ksrv import BaseHandler

class Mean(BaseHandler):
    def inference(self, image):
        return {"y": image.mean(axis=(1, 2, 3)).reshape(-1, 1)}
"""

LARGE = """
handler: handler.py
inputs: [{name: x, datatype: INT32, shape: [-1]}]
outputs: [{name: y, datatype: UINT8, shape: [-1, -1]}]
"""

LARGE_HANDLER = """
import numpy as np
from ksrv import BaseHandler

class Large(BaseHandler):
    def inference(self, x):
        return {"y": np.zeros((len(x), 8 << 20), np.uint8)}
"""

SETTINGS = {
    "limits": {"body": 64 << 20, "in_flight": 128 << 20, "json": 4 << 20},
    "head_timeout": 2.0,
    "transfer_grace": 2.0,
}
GROWN_BYTES = 96 << 20
POOLED = 32
# Threads that served watches are kept for later watches: they become as many as were ever needed at a time.
WATCHING_THREADS = MAX_WATCHES + MAX_OPEN_WATCHES + SPARE_THREADS


def write_models(folder):
    for name, handler, text in (
        ("here", HANDLER, MODEL.format(executor="inline")),
        ("apart", HANDLER, MODEL.format(executor="process")),
        ("picture", PICTURE_HANDLER, PICTURES),
        ("large", LARGE_HANDLER, LARGE),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / "handler.py").write_text(handler)
        (folder / name / "model.yaml").write_text(text)
    return folder


class Good:
    """Clients that behave, each answered all the time.

    Args:
        server: The server.
        stop: Set when they are to end.
        context: The client's side of TLS.
    """

    def __init__(self, server, stop, context=None, certificate=None):
        self._server, self._stop, self._context = server, stop, context
        self._certificate = certificate
        self.failures = []
        self.answered = collections.Counter()

    def _connection(self):
        host, _, port = self._server.http.rpartition(":")
        if self._context is None:
            return http.client.HTTPConnection(host, int(port), timeout=30)
        return http.client.HTTPSConnection(host, int(port), timeout=30, context=self._context)

    def rest(self):
        connection, turn = None, 0
        while not self._stop.is_set():
            turn += 1
            model = ("here", "apart")[turn % 2]
            whole = message(model, "x", "FP32", rows(turn % 100 + 1))
            head, _, body = whole.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
            connection = connection or self._connection()
            began = time.monotonic()
            try:
                connection.request("POST", f"/v2/models/{model}/infer", body, headers)
                sent = time.monotonic()
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(("rest", model, repr(error)))
                connection.close()
                connection = None
                continue
            if answer.status == 408 and sent - began >= SETTINGS["head_timeout"]:
                continue  # on a busy machine this thread itself may be too slow
            if answer.status == 503:  # the budget is full for the moment, which is reported at once
                continue
            if answer.status != 200 or not content.endswith(rows(turn % 100 + 1).tobytes()):
                self.failures.append(("rest", model, answer.status, content[:200]))
            self.answered["rest"] += 1
        if connection is not None:
            connection.close()

    def probes(self):
        paths = ("/v2/health/live", "/v2/health/ready", "/v2/models/here", "/metrics")
        while not self._stop.is_set():
            for path in paths:
                connection = self._connection()
                sent = began = time.monotonic()
                try:
                    connection.request("GET", path, headers={"Connection": "close"})
                    sent = time.monotonic()
                    status = connection.getresponse().status
                except (OSError, http.client.HTTPException) as error:
                    # On a busy machine this thread itself may be too slow with its head.
                    if sent - began < SETTINGS["head_timeout"]:
                        self.failures.append(("probe", path, sent - began, repr(error)))
                    continue
                finally:
                    connection.close()
                if status != 200:
                    self.failures.append(("probe", path, status))
                self.answered["probes"] += 1
            self._stop.wait(0.1)

    def grpc(self):
        options = {"ssl": True, "root_certificates": self._certificate} if self._context else {}
        with grpcclient.InferenceServerClient(self._server.grpc, **options) as client:
            while not self._stop.is_set():
                tensor = grpcclient.InferInput("x", [1, 16], "FP32")
                tensor.set_data_from_numpy(rows(5))
                try:
                    found = client.infer("here", [tensor], client_timeout=30).as_numpy("y")
                except grpcclient.InferenceServerException as error:
                    if error.status() not in (
                        "StatusCode.RESOURCE_EXHAUSTED",
                        "StatusCode.UNAVAILABLE",
                    ):
                        self.failures.append(("grpc", str(error)))
                else:
                    assert np.array_equal(found, rows(5))
                    self.answered["grpc"] += 1
                self._stop.wait(0.01)


def threads(pid):
    return sum(len(os.listdir(f"/proc/{one}/task")) for one in descendants(pid))


def attack(server, seconds, tls=None, certificate=None):
    """Run every attack beside good clients; return what was attacked and what failed."""
    stop = threading.Event()
    attacks = [Attacks(server, stop, tls, certificate) for _ in range(2)]
    good = Good(server, stop, tls, certificate)
    failures = []

    def guard(target, *arguments):
        try:
            target(*arguments)
        except BaseException as error:  # shown by the test, which is on another thread
            failures.append(repr(error))

    running = [
        threading.Thread(target=guard, args=(one.run, seed)) for seed, one in enumerate(attacks)
    ]
    running += [
        threading.Thread(target=guard, args=(one,)) for one in (good.rest, good.probes, good.grpc)
    ]
    for thread in running:
        thread.start()
    begin = time.monotonic()
    wanted = set(attacks[0].names())
    while time.monotonic() - begin < seconds and not failures:
        time.sleep(0.2)
    while not wanted <= {name for one in attacks for name in one.made} and not failures:
        assert time.monotonic() - begin < seconds + 240, "an attack never ended"
        time.sleep(0.2)
    stop.set()
    for thread in running:
        thread.join(120)
    assert not any(thread.is_alive() for thread in running)
    return failures + good.failures, good.answered


def settle(server, before, seconds=60):
    """Wait until descriptors and threads are what they were; return what is held then."""
    give_up = time.monotonic() + seconds
    while True:
        bytes_held, opened = held(server.pid)
        count = threads(server.pid)
        if (opened <= before[1] + POOLED and count <= before[2]) or time.monotonic() > give_up:
            return bytes_held, opened, count
        time.sleep(0.5)


def outlive(server, seconds, tls=None, certificate=None):
    most_threads = threads(server.pid) + WATCHING_THREADS + 8
    failures, _ = attack(server, seconds / 4, tls, certificate)  # pools and heaps fill
    assert not failures, failures[:10]
    before = settle(server, (0, 10**9, 10**9))
    time.sleep(3)  # the deadlines of what was left open
    before = (*held(server.pid), most_threads)
    failures, answered = attack(server, seconds, tls, certificate)
    assert not failures, failures[:10]
    assert answered.keys() == {"rest", "probes", "grpc"}
    after = settle(server, before)
    assert after[0] - before[0] < GROWN_BYTES, (before, after)
    assert after[1] - before[1] <= POOLED, (before, after)
    assert after[2] <= most_threads, (before, after)
    status, _ = server.get("/v2/health/ready")
    assert status == 200


@pytest.fixture
def repository(tmp_path):
    return write_models(tmp_path / "models")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_outlives_every_attack(repository):
    with Server(repository, **SETTINGS) as server:
        outlive(server, 8)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_with_tls_outlives_every_attack(repository, tmp_path):
    key, cert = self_signed(tmp_path)
    context = ssl.create_default_context(cafile=str(cert))
    with Server(repository, tls_cert=str(cert), tls_key=str(key), **SETTINGS) as server:
        outlive(server, 8, context, str(cert))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_server_outlives_ten_minutes_of_attacks(repository):
    with Server(repository, **SETTINGS) as server:
        outlive(server, 600)
