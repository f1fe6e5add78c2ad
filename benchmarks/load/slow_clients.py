"""Compare a client's latency with and without slow clients, and print the peak memory of a large request.

    python benchmarks/load/slow_clients.py [--uploads 500] [--idle 1000] [--requests 4000] [--memory]

The first table is the latency of a good client (W1, one connection) while other connections are idle and uploads stall
in the middle, divided by the latency of this client without them, which is measured before and after. It has a row for
each framing of the uploads (`STALLED`), over HTTP and over TLS. In the row `handler process` all models run in
processes. The second table is the peak memory that a W4 request (64 MiB in and out) adds to the largest process, as a
multiple of 64 MiB: with the handler in the worker, and in a process. benchmarks/README.md describes W1 and W4.
"""

import argparse
import contextlib
import functools
import gzip
import resource
import shutil
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from conditions import READY, certificate, infer
from servers import LoadedServer, write_models

PAYLOAD = 64 << 20
HEAD_START = "POST /v2/models/w4/infer HTTP/1.1\r\nHost: x\r\n"
STALLED = {
    "Content-Length": (f"{HEAD_START}Content-Length: 60000\r\n\r\n", b"{" + b" " * 59_989),
    # Above 64 KiB (`EARLY_BODY`) the server tries the route before it receives the body.
    "a long body": (f"{HEAD_START}Content-Length: 200000\r\n\r\n", b"{" + b" " * 199_989),
    "chunked": (f"{HEAD_START}Transfer-Encoding: chunked\r\n\r\n", b"ea60\r\n{" + b" " * 59_989),
    "Expect": (f"{HEAD_START}Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n", b""),
    "gzip": (
        f"{HEAD_START}Content-Encoding: gzip\r\nContent-Length: 5000\r\n\r\n",
        gzip.compress(np.random.default_rng(1).bytes(6000))[:4990],
    ),
    "Connection: close": (
        f"{HEAD_START}Connection: close\r\nContent-Length: 60000\r\n\r\n",
        b"{" + b" " * 59_989,
    ),
    "another route": (
        "POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
        b"{" + b" " * 989,
    ),
    "half a head": ("POST /v2/models/w4/infer HTTP/1.1\r\nHost", b""),
    "handler process": (
        f"{HEAD_START.replace('w4', 'w4-process')}Content-Length: 60000\r\n\r\n",
        b"{" + b" " * 59_989,
    ),
}
HEADER = (
    b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,16777216],'
    b'"parameters":{"binary_data_size":67108864}}],"parameters":{"binary_data_output":true}}'
)
LARGE_FRAMINGS = ("Content-Length", "chunked", "gzip", "Expect", "to the app")

Ways: TypeAlias = dict[str, tuple[LoadedServer, ssl.SSLContext | None]]
"""The servers without and with TLS, and the context for connections to them."""


def write_process_models(folder: Path) -> None:
    """Write W1's and W4's models with handlers in separate processes.

    Switches W4's warm-up off, because it would leave a block of memory that the first request then reuses.
    """
    w4 = folder / "w4" / "model.yaml"
    w4.write_text(w4.read_text() + "warmup: false\n")
    for name in ("w1", "w4"):
        settings = shutil.copytree(folder / name, folder / f"{name}-process") / "model.yaml"
        settings.write_text(settings.read_text() + "executor: process\n")


def wait_ready(port: int, context: ssl.SSLContext | None) -> None:
    """Wait until a server has loaded its models."""
    until = time.monotonic() + 120
    while True:
        with connect(port, context) as client:
            client.sendall(f"GET {READY} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            if b" 200 OK" in client.recv(4096):
                return
        if time.monotonic() > until:
            raise RuntimeError("the server did not get ready")
        time.sleep(0.1)


def connect(port: int, context: ssl.SSLContext | None) -> socket.socket:
    """Return a connection, encrypted or not."""
    plain = socket.create_connection(("127.0.0.1", port), 60)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return plain if context is None else context.wrap_socket(plain)


def begin_upload(client: socket.socket, framing: str) -> None:
    """Send the part of an upload that arrives before it stalls."""
    head, body = STALLED[framing]
    client.sendall(head.encode() + body)


def read_answer(client: socket.socket) -> bytes:
    """Read one answer and return its body, or the start of a body of more than 1 MiB."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = client.recv(65536)
        if not piece:
            raise RuntimeError(f"the connection ended after {received!r}")
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    if b" 200 OK" not in head:
        raise RuntimeError(f"{head!r} {body[:200]!r}")
    length = int(head.lower().partition(b"\r\ncontent-length: ")[2].split(b"\r\n")[0])
    pieces = [body]
    left = length - len(body)
    while left:
        piece = client.recv(min(left, 1 << 20))
        if not piece:
            raise RuntimeError(f"the connection ended {left} bytes before the end of an answer")
        left -= len(piece)
        if length <= 1 << 20:  # The bytes of a large answer are not kept: nobody reads them.
            pieces.append(piece)
    return b"".join(pieces)


def latencies(
    port: int, context: ssl.SSLContext | None, model: str, count: int
) -> tuple[float, float]:
    """Return the 50th and the 99th percentile of a good client's latency, in seconds."""
    message = infer(model)
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
    """Keep stalled uploads and idle connections open."""
    with contextlib.ExitStack() as stack:
        for _ in range(idle):
            stack.enter_context(connect(port, context))
        for _ in range(uploads):
            begin_upload(stack.enter_context(connect(port, context)), framing)
        yield


def message_of(framing: str, model: str) -> Iterator[bytes]:
    """Yield a W4 request of 64 MiB in pieces."""
    start = HEAD_START.replace("w4", model)
    head = f"{start}Inference-Header-Content-Length: {len(HEADER)}\r\n"
    length = len(HEADER) + PAYLOAD
    piece = bytes(1 << 20)
    if framing == "gzip":
        body = gzipped_body()
        yield (head + f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n").encode()
        yield body
        return
    if framing == "chunked":
        yield (head + "Transfer-Encoding: chunked\r\n\r\n").encode()
        yield b"%x\r\n%b\r\n" % (len(HEADER), HEADER)
        for _ in range(PAYLOAD >> 20):
            yield b"%x\r\n%b\r\n" % (len(piece), piece)
        yield b"0\r\n\r\n"
        return
    # The native server leaves requests with TE to the app.
    more = {"Expect": "Expect: 100-continue\r\n", "to the app": "TE: trailers\r\n"}.get(framing, "")
    yield (head + more + f"Content-Length: {length}\r\n\r\n").encode() + HEADER
    for _ in range(PAYLOAD >> 20):
        yield piece


@functools.cache
def gzipped_body() -> bytes:
    """Return W4's body, compressed by gzip to about one half."""
    numbers = np.random.default_rng(1).integers(0, 16, PAYLOAD, np.uint8)
    return gzip.compress(HEADER + numbers.tobytes(), 1)


def peak(
    server: LoadedServer,
    context: ssl.SSLContext | None,
    framing: str,
    model: str,
    idle_bytes: int,
) -> float:
    """Return the peak memory of one request above `idle_bytes`, as a multiple of `PAYLOAD`."""
    server.forget_peak()
    with connect(server.port, context) as client:
        for piece in message_of(framing, model):
            client.sendall(piece)
        read_answer(client)
    return (server.memory("VmHWM") - idle_bytes) / PAYLOAD


def print_latencies(ways: Ways, requests: int, uploads: int, idle: int) -> None:
    """Print the first table."""
    print(f"{'way':<6} {'slow clients':<18} {'median':>8} {'p99':>8}   (without slow clients: 1)")
    for way, (server, tls) in ways.items():
        latencies(server.port, tls, "w1", requests // 4)
        for framing in STALLED:
            model = "w1-process" if framing == "handler process" else "w1"
            before = latencies(server.port, tls, model, requests)
            with crowd(server.port, tls, framing, uploads, idle):
                beside = latencies(server.port, tls, model, requests)
            after = latencies(server.port, tls, model, requests)
            alone = [statistics.mean(pair) for pair in zip(before, after, strict=True)]
            median, p99 = (found / base for found, base in zip(beside, alone, strict=True))
            print(f"{way:<6} {framing:<18} {median:7.2f}x {p99:7.2f}x", flush=True)
    print()


def print_peaks(ways: Ways) -> None:
    """Print the second table."""
    print(f"{'way':<6} {'64 MiB in and out':<18} {'in the worker':>14} {'in a process':>14}")
    for way, (server, tls) in ways.items():
        for framing in LARGE_FRAMINGS:
            print(f"{way:<6} {framing:<18}", end="", flush=True)
            for model in ("w4", "w4-process"):
                server.stop()  # because blocks that an earlier request has left would be counted
                server.start(None)
                wait_ready(server.port, tls)
                time.sleep(0.5)
                idle_bytes = server.memory("VmRSS")
                found = peak(server, tls, framing, model, idle_bytes)
                print(f" {found:13.2f}x", end="", flush=True)
            print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--uploads", type=int, default=500)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--memory", action="store_true", help="print the second table only")
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with tempfile.TemporaryDirectory(prefix="ksrv-slow-") as name:
        folder = Path(name)
        write_models(folder / "models")
        write_process_models(folder / "models")
        key, chain = certificate(folder)
        command = [
            sys.executable, "-m", "ksrv", "serve", str(folder / "models"), "--http",
            "127.0.0.1:{port}", "--grpc", "off", "--drain-delay", "0", "--max-connections",
            str(2 * (options.uploads + options.idle) + 100), "--head-timeout", "600",
            "--transfer-grace", "600",
        ]  # fmt: skip
        ways: Ways = {
            "plain": (LoadedServer("plain", command), None),
            "TLS": (
                LoadedServer("tls", [*command, "--tls-key", str(key), "--tls-cert", str(chain)]),
                context,
            ),
        }
        for server, tls in ways.values():
            server.start(None)
            wait_ready(server.port, tls)
        try:
            if not options.memory:
                print_latencies(ways, options.requests, options.uploads, options.idle)
            print_peaks(ways)
        finally:
            for server, _ in ways.values():
                server.stop()


if __name__ == "__main__":
    main()
