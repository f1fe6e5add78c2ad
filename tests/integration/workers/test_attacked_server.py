"""One server under every attack that it is meant to outlive, beside clients that it must go on serving.

Each attack is bounded in connections, bytes and time. While they run, in random order, well-behaved
clients send inference requests, probes and metadata requests; afterwards the server holds the
memory, the descriptors and the threads that it held before.
"""

import contextlib
import gzip
import http.client
import json
import os
import random
import socket
import ssl
import struct
import threading
import time
import zlib
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from ksrv.protocol.protobuf import HEALTH, INFERENCE, methods
from ksrv.testing import Server
from tests.integration.workers.test_soak_server import descendants, held
from tests.support.certificates import self_signed
from tests.support.image_files import jpeg

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

LENGTH = "Inference-Header-Content-Length"
STUCK = 50
SETTINGS = {
    "limits": {"body": 64 << 20, "in_flight": 128 << 20, "json": 4 << 20},
    "head_timeout": 2.0,
    "transfer_grace": 2.0,
}
GROWN_BYTES = 96 << 20
POOLED = 32


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


def message(model, name, datatype, data, *fields, version="HTTP/1.1", shape=None):
    """A whole binary infer request."""
    content = data if isinstance(data, bytes) else data.tobytes()
    entry = {"name": name, "datatype": datatype, "shape": shape or list(data.shape)}
    entry["parameters"] = {"binary_data_size": len(content)}
    text = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    lines = [
        f"POST /v2/models/{model}/infer {version}",
        "Host: ksrv",
        f"{LENGTH}: {len(text)}",
        f"Content-Length: {len(text) + len(content)}",
        *fields,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + text + content


def rows(value, count=1):
    return np.full((count, 16), value, "f4")


class Attacks:
    """The attacks, each a method that returns when it is over.

    Args:
        server: The server.
        stop: Set when the attacks are to end.
    """

    def __init__(self, server, stop, tls=None):
        self._server = server
        self._stop = stop
        self._tls = tls
        self.made = []

    def names(self):
        return [name for name in dir(self) if name.startswith("attack_")]

    def _connect(self, timeout=10):
        host, _, port = self._server.http.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=timeout)
        if self._tls is None:
            return plain
        return self._tls.wrap_socket(plain, server_hostname=host)

    @contextlib.contextmanager
    def _many(self, count, data, timeout=10):
        with contextlib.ExitStack() as opened:
            peers = []
            for _ in range(count):
                with contextlib.suppress(OSError):
                    peer = opened.enter_context(self._connect(timeout))
                    peer.sendall(data)
                    peers.append(peer)
            yield peers

    def _send(self, data, timeout=10):
        """Send and return what comes back until the server closes or falls silent."""
        received = b""
        with contextlib.suppress(OSError), self._connect(timeout) as peer:
            peer.sendall(data)
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_WR) if self._tls is None else None
            while piece := peer.recv(1 << 16):
                received += piece
        return received

    def _hold(self, data, seconds=1.0):
        with self._many(STUCK, data):
            self._stop.wait(seconds)

    # ---- handlers ----

    def attack_panics(self):
        for model in ("here", "apart"):
            for value in (-1, -2, -3):
                answer = self._send(message(model, "x", "FP32", rows(value)))
                # A client that has closed its side may be sent an interim answer first.
                assert not answer or b"HTTP/1.1 500 " in answer

    # ---- framing and slow peers ----

    def attack_stuck_bodies_of_every_framing(self):
        whole = message("here", "x", "FP32", rows(1), "Connection: close")
        self._hold(whole[:-10])
        self._hold(message("here", "x", "FP32", rows(1), version="HTTP/1.0")[:-10])
        self._hold(message("here", "x", "FP32", rows(1), "Expect: 100-continue")[:-10])
        self._hold(
            b"POST /v2/models/here/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"
        )
        content = gzip.compress(b"{" * 100)
        self._hold(
            b"POST /v2/models/here/infer HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
            b"Content-Length: %d\r\n\r\n" % len(content) + content[:-5]
        )

    def attack_half_heads(self):
        self._hold(b"POST /v2/models/here/infer HTTP/1.1\r\nHost: x\r\n")

    def attack_single_bytes(self):
        host, _, port = self._server.http.rpartition(":")
        with contextlib.ExitStack() as opened:
            for _ in range(STUCK):
                with contextlib.suppress(OSError):
                    peer = opened.enter_context(socket.create_connection((host, int(port)), 5))
                    peer.sendall(b"\x16" if self._tls is not None else b"G")
            self._stop.wait(1)

    def attack_announced_bodies(self):
        for megabytes in (63, 63, 1, 1):
            size = megabytes << 20
            head = (
                f"POST /v2/models/here/infer HTTP/1.1\r\nHost: x\r\n{LENGTH}: 100\r\n"
                f"Content-Length: {size}\r\n\r\n"
            )
            with self._many(4, head.encode() + b" " * 4096):
                self._stop.wait(0.5)

    def attack_large_json(self):
        size = 60 << 20
        head = f"POST /v2/models/here/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
        with self._many(4, head.encode() + b"[" * 65536):
            self._stop.wait(0.5)

    def attack_slow_readers(self):
        request = message("large", "x", "INT32", np.zeros(2, "i4"))
        with self._many(8, request):
            self._stop.wait(2)

    def attack_malformed_chunks(self):
        for fields, chunks in (
            (b"Transfer-Encoding: gzip, chunked", b"3\r\nabc\r\n0\r\n\r\n"),
            (b"Transfer-Encoding: chunked", b"FFFFFFFFFFFFFFFFF\r\nabc"),
            (b"Transfer-Encoding: chunked", b"3\nabc\n0\n\n"),
            (b"Transfer-Encoding: chunked", b"-1\r\n\r\n"),
        ):
            head = b"POST /v2/models/here/infer HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n\r\n"
            self._send(head + chunks, timeout=4)

    def attack_inflating_bodies(self):
        content = gzip.compress(bytes(80 << 20), 9)
        head = (
            "POST /v2/models/here/infer HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        self._send(head.encode() + content)

    def attack_idle_connections(self):
        with self._many(300, b""):
            self._stop.wait(0.5)

    def attack_resets(self):
        for size in (10, 200, 400):
            with contextlib.suppress(OSError), self._connect() as peer:
                peer.sendall(message("here", "x", "FP32", rows(1))[:size])
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    # ---- paths, headers and fields ----

    def attack_odd_paths(self):
        for path in ("//v2/repository/models/here/unload", "/./v2/repository/models/here/unload",
                     "/v2//repository/models/here/unload"):  # fmt: skip
            head = (
                f"POST {path} HTTP/1.1\r\nHost: x\r\nOrigin: https://evil.example\r\n"
                "X-Forwarded-For: 192.0.2.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            answer = self._send(head.encode())
            assert b"HTTP/1.1 200 " not in answer
        for name in ("SCRIPT_NAME", "PATH_INFO", "SCRIPT-NAME"):
            head = f"GET /v2 HTTP/1.1\r\nHost: x\r\n{name}: /static\r\nConnection: close\r\n\r\n"
            assert b"HTTP/1.1 500 " not in self._send(head.encode())

    def attack_parameters(self):
        for value in (1 << 32, -1, 1 << 64, 1e400, "x", [1], None):
            entry = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [0.0] * 16}
            text = json.dumps({"inputs": [entry], "parameters": {"priority": value}}).encode()
            head = (
                "POST /v2/models/here/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                f"Content-Length: {len(text)}\r\n\r\n"
            )
            assert b"HTTP/1.1 500 " not in self._send(head.encode() + text)

    def attack_forged_lines(self):
        entry = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [-3.0] * 16}
        text = json.dumps({"id": "a\nb\x1b[2J", "inputs": [entry]}).encode()
        head = (
            "POST /v2/models/here/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Content-Length: {len(text)}\r\n\r\n"
        )
        self._send(head.encode() + text)

    # ---- images ----

    def _picture(self, *files):
        content = b"".join(struct.pack("<I", len(file)) + file for file in files)
        data = message(
            "picture", "image", "BYTES", content, "Connection: close", shape=[len(files)]
        )
        return self._send(data, timeout=20)

    def attack_images(self):
        for file in (lying_png(b"IDAT"), lying_png(b"tEXt"), lying_png(b"fdAT"), many_scans(2000)):
            answer = self._picture(file)
            assert not answer or b"HTTP/1.1 400 " in answer, answer[:300]

    # ---- gRPC ----

    @contextlib.contextmanager
    def _channel(self):
        with self._own_channel() as channel:
            yield channel

    def _own_channel(self, **options):
        options = [("grpc.use_local_subchannel_pool", 1), *options.items()]
        if self._tls is None:
            return grpc.insecure_channel(self._server.grpc, options)
        roots = Path(self.certificate).read_bytes()
        return grpc.secure_channel(self._server.grpc, grpc.ssl_channel_credentials(roots), options)

    def attack_calls_without_a_message(self):
        request, response = methods(INFERENCE)["ModelInfer"]

        def nothing():
            self._stop.wait(1.5)
            return
            yield

        with contextlib.ExitStack() as opened:
            calls = []
            for _ in range(4):
                channel = opened.enter_context(self._own_channel())
                stub = channel.stream_unary(
                    f"/{INFERENCE}/ModelInfer", request.SerializeToString, response.FromString
                )
                calls += [stub.future(nothing(), timeout=3) for _ in range(25)]
            self._stop.wait(1)
            for call in calls:
                call.cancel()

    def attack_idle_watches(self):
        request, response = methods(HEALTH)["Watch"]
        with self._channel() as channel:
            stub = channel.unary_stream(
                f"/{HEALTH}/Watch", request.SerializeToString, response.FromString
            )
            calls = [stub(request(), timeout=2) for _ in range(70)]
            self._stop.wait(0.5)
            for call in calls:
                call.cancel()

    def attack_inflating_messages(self):
        request, response = methods(INFERENCE)["ModelInfer"]
        made = request(model_name="here")
        made.raw_input_contents.append(bytes(60 << 20))
        with self._channel() as channel:
            stub = channel.unary_unary(
                f"/{INFERENCE}/ModelInfer", request.SerializeToString, response.FromString
            )
            for _ in range(2):
                with contextlib.suppress(grpc.RpcError):
                    stub(made, timeout=10, compression=grpc.Compression.Gzip)

    # ---- the loop ----

    def run(self, seed):
        choose = random.Random(seed)
        names = self.names()
        while not self._stop.is_set():
            choose.shuffle(names)
            for name in names:
                if self._stop.is_set():
                    return
                getattr(self, name)()
                self.made.append(name)


def lying_png(kind):
    """A PNG with one chunk that announces 4 GiB."""

    def chunk(name, data, length=None):
        body = name + data
        return (
            struct.pack(">I", len(data) if length is None else length)
            + body
            + struct.pack(">I", zlib.crc32(body))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(kind, b"", 0xFFFFFFFF)


def many_scans(count):
    """A progressive JPEG whose last scan is repeated."""
    file = jpeg(64, 64, progressive=True)
    start = file.rindex(b"\xff\xda")
    return file[:-2] + file[start:-2] * count + file[-2:]


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
        self.answered = 0

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
            if answer.status == 503:  # the budget is full for the moment, which is told at once
                continue
            if answer.status != 200 or not content.endswith(rows(turn % 100 + 1).tobytes()):
                self.failures.append(("rest", model, answer.status, content[:200]))
            self.answered += 1
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
                self.answered += 1
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
                    self.answered += 1
                self._stop.wait(0.01)


def threads(pid):
    return sum(len(os.listdir(f"/proc/{one}/task")) for one in descendants(pid))


def attack(server, seconds, tls=None, certificate=None):
    """Run every attack beside good clients; return what was attacked and what failed."""
    stop = threading.Event()
    attacks = [Attacks(server, stop, tls) for _ in range(2)]
    for one in attacks:
        one.certificate = certificate
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
        if (opened <= before[1] + POOLED and count <= before[2] + 8) or time.monotonic() > give_up:
            return bytes_held, opened, count
        time.sleep(0.5)


def outlive(server, seconds, tls=None, certificate=None):
    failures, _ = attack(server, seconds / 4, tls, certificate)  # pools and heaps fill
    assert not failures, failures[:10]
    before = settle(server, (0, 10**9, 10**9))
    time.sleep(3)  # the deadlines of what was left open
    before = (*held(server.pid), threads(server.pid))
    failures, answered = attack(server, seconds, tls, certificate)
    assert not failures, failures[:10]
    assert answered > 0
    after = settle(server, before)
    assert after[0] - before[0] < GROWN_BYTES, (before, after)
    assert after[1] - before[1] <= POOLED, (before, after)
    assert after[2] - before[2] <= 8, (before, after)
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
