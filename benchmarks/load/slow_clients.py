"""What slow clients cost a good one, and what a large request holds at its peak.

    python benchmarks/load/slow_clients.py [--uploads 500] [--idle 1000] [--requests 4000]

The first table has the latency of a good client (W1, one connection) beside so many uploads that stall ten bytes
before their end, in each framing in turn, and so many idle connections, over plain HTTP and TLS: as a ratio to
the same client with nobody beside it, measured around each turn. The second has the peak memory of the worker
while 64 MiB go in and out, beyond what it held before the first of them, in payloads. Only ratios mean anything.
"""

import argparse
import contextlib
import gzip
import resource
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from conditions import READY, certificate, infer
from servers import LoadedServer, write_models

PAYLOAD = 64 << 20
PATH = "POST /v2/models/w4/infer HTTP/1.1\r\nHost: x\r\n"
STALLED = {
    "Content-Length": (f"{PATH}Content-Length: 60000\r\n\r\n", b"{" + b" " * 59_989),
    "a long body": (f"{PATH}Content-Length: 200000\r\n\r\n", b"{" + b" " * 199_989),
    "chunked": (f"{PATH}Transfer-Encoding: chunked\r\n\r\n", b"ea60\r\n{" + b" " * 59_989),
    "Expect": (f"{PATH}Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n", b""),
    "gzip": (
        f"{PATH}Content-Encoding: gzip\r\nContent-Length: 5000\r\n\r\n",
        gzip.compress(np.random.default_rng(1).bytes(6000))[:4990],
    ),
    "Connection: close": (
        f"{PATH}Connection: close\r\nContent-Length: 60000\r\n\r\n",
        b"{" + b" " * 59_989,
    ),
    "another route": (
        "POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
        b"{" + b" " * 989,
    ),
    "half a head": ("POST /v2/models/w4/infer HTTP/1.1\r\nHost", b""),
}


def connect(port: int, context: ssl.SSLContext | None) -> socket.socket:
    """Return a connection, encrypted or not."""
    plain = socket.create_connection(("127.0.0.1", port), 60)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return plain if context is None else context.wrap_socket(plain)


def read_answer(client: socket.socket) -> bytes:
    """Read one answer and return its body."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = client.recv(65536)
        if not piece:
            raise RuntimeError(f"the connection ended behind {received!r}")
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    if b" 200 OK" not in head:
        raise RuntimeError(f"{head!r} {body[:200]!r}")
    length = int(head.lower().partition(b"\r\ncontent-length: ")[2].split(b"\r\n")[0])
    pieces = [body]
    left = length - len(body)
    while left:
        piece = client.recv(min(left, 1 << 20))
        left -= len(piece)
        pieces = [b""] if length > 1 << 20 else [*pieces, piece]
    return b"".join(pieces)


def latencies(port: int, context: ssl.SSLContext | None, count: int) -> tuple[float, float]:
    """Return the 50th and the 99th percentile of a good client's latency, in seconds."""
    message = infer()
    took = []
    with connect(port, context) as client:
        for _ in range(count):
            began = time.perf_counter()
            client.sendall(message)
            read_answer(client)
            took.append(time.perf_counter() - began)
    took.sort()
    return took[count // 2], took[count * 99 // 100]


@contextlib.contextmanager
def crowd(
    port: int, context: ssl.SSLContext | None, framing: str, uploads: int, idle: int
) -> Iterator[None]:
    """Have stalled uploads and idle connections beside what is measured."""
    head, body = STALLED[framing]
    with contextlib.ExitStack() as stack:
        for _ in range(idle):
            stack.enter_context(connect(port, None if context is None else context))
        for _ in range(uploads):
            client = stack.enter_context(connect(port, context))
            client.sendall(head.encode() + body)
        yield


def message_of(framing: str) -> Iterator[bytes]:
    """Yield a W4 request of 64 MiB in pieces."""
    header = (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,16777216],'
        b'"parameters":{"binary_data_size":67108864}}],"parameters":{"binary_data_output":true}}'
    )
    head = f"{PATH}Inference-Header-Content-Length: {len(header)}\r\n"
    length = len(header) + PAYLOAD
    piece = bytes(1 << 20)
    if framing == "chunked":
        yield (head + "Transfer-Encoding: chunked\r\n\r\n").encode()
        yield b"%x\r\n%b\r\n" % (len(header), header)
        for _ in range(PAYLOAD >> 20):
            yield b"%x\r\n%b\r\n" % (len(piece), piece)
        yield b"0\r\n\r\n"
        return
    more = {"Expect": "Expect: 100-continue\r\n", "to the app": "TE: trailers\r\n"}.get(framing, "")
    yield (head + more + f"Content-Length: {length}\r\n\r\n").encode() + header
    for _ in range(PAYLOAD >> 20):
        yield piece


def peak(
    server: LoadedServer, context: ssl.SSLContext | None, framing: str, idle_bytes: int
) -> float:
    """Return what the worker holds at most for one request beyond an idle worker, in payloads."""
    server.forget_peak()
    with connect(server.port, context) as client:
        for piece in message_of(framing):
            client.sendall(piece)
        read_answer(client)
    return (server.memory("VmHWM") - idle_bytes) / PAYLOAD


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--uploads", type=int, default=500)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=4000)
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with tempfile.TemporaryDirectory(prefix="ksrv-slow-") as name:
        folder = Path(name)
        write_models(folder / "models")
        key, chain = certificate(folder)
        command = [
            sys.executable, "-m", "ksrv", "serve", str(folder / "models"), "--http",
            "127.0.0.1:{port}", "--grpc", "off", "--drain-delay", "0", "--max-connections",
            str(2 * (options.uploads + options.idle) + 100), "--head-timeout", "600",
            "--transfer-grace", "600",
        ]  # fmt: skip
        ways = {
            "plain": (LoadedServer("plain", command), None, READY),
            "TLS": (
                LoadedServer("tls", [*command, "--tls-key", str(key), "--tls-cert", str(chain)]),
                context,
                None,
            ),
        }
        for server, _, path in ways.values():
            server.start(path)
        try:
            print(f"{'way':<6} {'beside':<18} {'median':>8} {'p99':>8}   (ratios to nobody beside)")
            for way, (server, tls, _) in ways.items():
                latencies(server.port, tls, options.requests // 4)
                for framing in STALLED:
                    before = latencies(server.port, tls, options.requests)
                    with crowd(server.port, tls, framing, options.uploads, options.idle):
                        beside = latencies(server.port, tls, options.requests)
                    after = latencies(server.port, tls, options.requests)
                    alone = [statistics.mean(pair) for pair in zip(before, after, strict=True)]
                    print(
                        f"{way:<6} {framing:<18} {beside[0] / alone[0]:7.2f}x {beside[1] / alone[1]:7.2f}x"
                    )
            print(f"\n{'way':<6} {'64 MiB in and out':<18} {'payloads at the peak':>20}")
            for way, (server, tls, _) in ways.items():
                for framing in ("Content-Length", "chunked", "Expect", "to the app"):
                    server.stop()  # blocks that an earlier request has left would be counted
                    server.start(READY if tls is None else None)
                    idle_bytes = server.memory("VmRSS")
                    time.sleep(0.5)
                    print(f"{way:<6} {framing:<18} {peak(server, tls, framing, idle_bytes):19.2f}x")
        finally:
            for server, _, _ in ways.values():
                server.stop()


if __name__ == "__main__":
    main()
