"""Attacks on a server, each bounded in connections, bytes and time."""

import contextlib
import gzip
import json
import random
import socket
import struct
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from ksrv.protocol.protobuf import HEALTH, methods
from tests.support.images import files
from tests.support.wire.grpc_calls import infer_request, method, stub_infer

LENGTH = "Inference-Header-Content-Length"
STUCK = 50
"""The connections that an attack holds at most."""


def message(
    model: Any,
    name: Any,
    datatype: Any,
    data: Any,
    *fields: Any,
    version: Any = "HTTP/1.1",
    shape: Any = None,
) -> Any:
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


def rows(value: Any, count: Any = 1) -> Any:
    return np.full((count, 16), value, "f4")


class Attacks:
    """The attacks, each a method that returns when it is over."""

    def __init__(
        self, server: Any, stop: Any, tls: Any = None, certificate: str | None = None
    ) -> None:
        self._server = server
        self._stop = stop
        self._tls = tls
        self._certificate = certificate
        self.made: list[str] = []

    def names(self) -> Any:
        return [name for name in dir(self) if name.startswith("attack_")]

    def _connect(self, timeout: Any = 10) -> Any:
        host, _, port = self._server.http.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=timeout)
        if self._tls is None:
            return plain
        return self._tls.wrap_socket(plain, server_hostname=host)

    @contextlib.contextmanager
    def _many(self, count: Any, data: Any, timeout: Any = 10) -> Any:
        with contextlib.ExitStack() as opened:
            peers = []
            for _ in range(count):
                with contextlib.suppress(OSError):
                    peer = opened.enter_context(self._connect(timeout))
                    peer.sendall(data)
                    peers.append(peer)
            yield peers

    def _send(self, data: Any, timeout: Any = 10) -> Any:
        """Send, and return the received bytes until the server closes or falls silent."""
        received = b""
        with contextlib.suppress(OSError), self._connect(timeout) as peer:
            peer.sendall(data)
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_WR) if self._tls is None else None
            while piece := peer.recv(1 << 16):
                received += piece
        return received

    def _hold(self, data: Any, seconds: Any = 1.0) -> None:
        with self._many(STUCK, data):
            self._stop.wait(seconds)

    # ---- handlers ----

    def attack_panics(self) -> None:
        for model in ("attacked", "attacked_separate"):
            for value in (-1, -2, -3):
                answer = self._send(message(model, "x", "FP32", rows(value)))
                # A client that has closed its side may be sent an interim answer first.
                assert not answer or b"HTTP/1.1 500 " in answer

    # ---- framing and slow peers ----

    def attack_stuck_bodies_of_every_framing(self) -> None:
        whole = message("attacked", "x", "FP32", rows(1), "Connection: close")
        self._hold(whole[:-10])
        self._hold(message("attacked", "x", "FP32", rows(1), version="HTTP/1.0")[:-10])
        self._hold(message("attacked", "x", "FP32", rows(1), "Expect: 100-continue")[:-10])
        self._hold(
            b"POST /v2/models/attacked/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"
        )
        content = gzip.compress(b"{" * 100)
        self._hold(
            b"POST /v2/models/attacked/infer HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
            b"Content-Length: %d\r\n\r\n" % len(content) + content[:-5]
        )

    def attack_half_heads(self) -> None:
        self._hold(b"POST /v2/models/attacked/infer HTTP/1.1\r\nHost: x\r\n")

    def attack_single_bytes(self) -> None:
        host, _, port = self._server.http.rpartition(":")
        with contextlib.ExitStack() as opened:
            for _ in range(STUCK):
                with contextlib.suppress(OSError):
                    peer = opened.enter_context(socket.create_connection((host, int(port)), 5))
                    peer.sendall(b"\x16" if self._tls is not None else b"G")
            self._stop.wait(1)

    def attack_announced_bodies(self) -> None:
        for megabytes in (63, 63, 1, 1):
            size = megabytes << 20
            head = (
                f"POST /v2/models/attacked/infer HTTP/1.1\r\nHost: x\r\n{LENGTH}: 100\r\n"
                f"Content-Length: {size}\r\n\r\n"
            )
            with self._many(4, head.encode() + b" " * 4096):
                self._stop.wait(0.5)

    def attack_large_json(self) -> None:
        size = 60 << 20
        head = (
            f"POST /v2/models/attacked/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
        )
        with self._many(4, head.encode() + b"[" * 65536):
            self._stop.wait(0.5)

    def attack_slow_readers(self) -> None:
        request = message("large", "x", "INT32", np.zeros(2, "i4"))
        with self._many(8, request):
            self._stop.wait(2)

    def attack_malformed_chunks(self) -> None:
        for fields, chunks in (
            (b"Transfer-Encoding: gzip, chunked", b"3\r\nabc\r\n0\r\n\r\n"),
            (b"Transfer-Encoding: chunked", b"FFFFFFFFFFFFFFFFF\r\nabc"),
            (b"Transfer-Encoding: chunked", b"3\nabc\n0\n\n"),
            (b"Transfer-Encoding: chunked", b"-1\r\n\r\n"),
        ):
            head = b"POST /v2/models/attacked/infer HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n\r\n"
            self._send(head + chunks, timeout=4)

    def attack_inflating_bodies(self) -> None:
        content = gzip.compress(bytes(80 << 20), 9)
        head = (
            "POST /v2/models/attacked/infer HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        self._send(head.encode() + content)

    def attack_idle_connections(self) -> None:
        with self._many(300, b""):
            self._stop.wait(0.5)

    def attack_resets(self) -> None:
        for size in (10, 200, 400):
            with contextlib.suppress(OSError), self._connect() as peer:
                peer.sendall(message("attacked", "x", "FP32", rows(1))[:size])
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    # ---- paths, headers and fields ----

    def attack_odd_paths(self) -> None:
        for path in ("//v2/repository/models/attacked/unload", "/./v2/repository/models/attacked/unload",
                     "/v2//repository/models/attacked/unload"):  # fmt: skip
            head = (
                f"POST {path} HTTP/1.1\r\nHost: x\r\nOrigin: https://evil.example\r\n"
                "X-Forwarded-For: 192.0.2.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            answer = self._send(head.encode())
            assert b"HTTP/1.1 200 " not in answer
        for name in ("SCRIPT_NAME", "PATH_INFO", "SCRIPT-NAME"):
            head = f"GET /v2 HTTP/1.1\r\nHost: x\r\n{name}: /static\r\nConnection: close\r\n\r\n"
            assert b"HTTP/1.1 500 " not in self._send(head.encode())

    def attack_parameters(self) -> None:
        for value in (1 << 32, -1, 1 << 64, 1e400, "x", [1], None):
            entry = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [0.0] * 16}
            text = json.dumps({"inputs": [entry], "parameters": {"priority": value}}).encode()
            head = (
                "POST /v2/models/attacked/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                f"Content-Length: {len(text)}\r\n\r\n"
            )
            assert b"HTTP/1.1 500 " not in self._send(head.encode() + text)

    def attack_forged_lines(self) -> None:
        entry = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [-3.0] * 16}
        text = json.dumps({"id": "a\nb\x1b[2J", "inputs": [entry]}).encode()
        head = (
            "POST /v2/models/attacked/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Content-Length: {len(text)}\r\n\r\n"
        )
        self._send(head.encode() + text)

    # ---- images ----

    def _picture(self, *sent: Any) -> Any:
        content = b"".join(struct.pack("<I", len(file)) + file for file in sent)
        data = message("picture", "image", "BYTES", content, "Connection: close", shape=[len(sent)])
        return self._send(data, timeout=20)

    def attack_images(self) -> None:
        kinds = (b"IDAT", b"tEXt", b"fdAT")
        lying = [files.png_announcing(kind, 0xFFFFFFFF) for kind in kinds]
        for file in (*lying, files.jpeg_of_scans(2000, 64, 64)):
            answer = self._picture(file)
            assert not answer or b"HTTP/1.1 400 " in answer, answer[:300]

    # ---- gRPC ----

    def _own_channel(self, **options: Any) -> Any:
        pairs = [("grpc.use_local_subchannel_pool", 1), *options.items()]
        if self._certificate is None:
            return grpc.insecure_channel(self._server.grpc, pairs)
        roots = Path(self._certificate).read_bytes()
        return grpc.secure_channel(self._server.grpc, grpc.ssl_channel_credentials(roots), pairs)

    def attack_calls_without_a_message(self) -> None:
        def nothing() -> Any:
            self._stop.wait(1.5)
            yield from ()

        with contextlib.ExitStack() as opened:
            calls = []
            for _ in range(4):
                channel = opened.enter_context(self._own_channel())
                stub = method(channel, "ModelInfer", kind="stream_unary")
                calls += [stub.future(nothing(), timeout=3) for _ in range(25)]
            self._stop.wait(1)
            for call in calls:
                call.cancel()

    def attack_idle_watches(self) -> None:
        request, _ = methods(HEALTH)["Watch"]
        with self._own_channel() as channel:
            stub = method(channel, "Watch", HEALTH, "unary_stream")
            calls = [stub(request(), timeout=2) for _ in range(70)]
            self._stop.wait(0.5)
            for call in calls:
                call.cancel()

    def attack_inflating_messages(self) -> None:
        made = infer_request("attacked", raw=[bytes(60 << 20)])
        with self._own_channel() as channel:
            for _ in range(2):
                with contextlib.suppress(grpc.RpcError):
                    stub_infer(channel)(made, timeout=10, compression=grpc.Compression.Gzip)

    # ---- the loop ----

    def run(self, seed: Any, names: Any = None) -> None:
        choose = random.Random(seed)
        names = list(names or self.names())
        while not self._stop.is_set():
            choose.shuffle(names)
            for name in names:
                if self._stop.is_set():
                    return
                getattr(self, name)()
                self.made.append(name)
