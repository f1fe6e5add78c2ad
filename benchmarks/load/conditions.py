"""CPU of the server for a request as clients and proxies send it, beside the plain request.

    python benchmarks/load/conditions.py [--rounds 5] [--seconds 1] [--connections 16] [ROW ...]

The plain request is W1 over HTTP/1.1 with a Content-Length, without token or TLS. A round gives each row
its turn, and medians are compared. A bare C server is the limit for the plain request and for a
connection for each request. A row compares the requests per second of two handler processes with one, for a handler
that computes a millisecond. Needs cc and OpenSSL's headers. Only ratios mean anything.
"""

import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import orjson
from sklearn.datasets import load_sample_image

from ksrv._native.json import number_array

sys.path.insert(0, str(Path(__file__).parent))

from servers import HERE, LoadedServer, bare, write_models

READY = "/v2/health/ready"
TOKEN = "a-token-of-some-length-0123456789"
EXPECT = "Expect: 100-continue\r\n"
PROXY = (
    "X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: models.example\r\n"
    "X-Real-IP: 203.0.113.7\r\nX-Request-Id: 3f2b8d1c9a7e4f60b1a2c3d4e5f60718\r\nVia: 1.1 proxy\r\n"
    "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
)


@dataclass(frozen=True)
class Row:
    """One condition: the request's bytes, and who gets them how.

    Attributes:
        server: The server's name; "reader" for the reader of JSON numbers alone.
        mode: "keep", "close" or "expect"; see client.c.
        limit: The row that this row is compared with.
        connections: How many send at once; 0 for as many as the run has.
    """

    server: str
    request: bytes
    mode: str = "keep"
    limit: str = "plain"
    connections: int = 0


def infer(
    model: str = "w1",
    fields: str = "",
    *,
    version: str = "1.1",
    chunks: int = 0,
    text: bool = False,
) -> bytes:
    """Return W1 as a message: in binary or as JSON text, whole or in so many chunks."""
    entry: dict[str, object] = {"name": "x", "datatype": "FP32", "shape": [1, 16]}
    if text:
        body = json.dumps({"inputs": [entry | {"data": NUMBERS[:16].tolist()}]}).encode()
        lengths = ""
    else:
        entry["parameters"] = {"binary_data_size": 64}
        outputs = [{"name": "y", "parameters": {"binary_data": True}}]
        header = json.dumps({"inputs": [entry], "outputs": outputs}).encode()
        body = header + bytes(64)
        lengths = f"Inference-Header-Content-Length: {len(header)}\r\n"
    if chunks:
        size = -(-len(body) // chunks)
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        lengths += "Transfer-Encoding: chunked\r\n"
    else:
        lengths += f"Content-Length: {len(body)}\r\n"
    head = f"POST /v2/models/{model}/infer HTTP/{version}\r\nHost: x\r\n{fields}{lengths}\r\n"
    return head.encode() + body


def infer_pair() -> bytes:
    """Return a request with two inputs and two outputs of W1's size."""
    entry = {"datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
    inputs = [{"name": name, **entry} for name in "ab"]
    parameters = {"binary_data_output": True}
    header = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    lengths = (
        f"Inference-Header-Content-Length: {len(header)}\r\nContent-Length: {len(header) + 128}"
    )
    head = f"POST /v2/models/pair/infer HTTP/1.1\r\nHost: x\r\n{lengths}\r\n\r\n"
    return head.encode() + header + bytes(128)


def infer_image_sized(model: str) -> bytes:
    """Return W2 in binary."""
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 224, 224, 3]}
    return _infer_in_binary(model, entry, bytes(224 * 224 * 3 * 4))


def infer_huge(model: str) -> bytes:
    """Return W4 in binary."""
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 16777216]}
    return _infer_in_binary(model, entry, bytes(64 << 20))


def infer_image(model: str) -> bytes:
    """Return a JPEG of 224x224 for W2's input."""
    picture = cv2.resize(load_sample_image("china.jpg")[:, :, ::-1], (224, 224))
    jpeg = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()
    entry = {"name": "x", "datatype": "BYTES", "shape": [1]}
    return _infer_in_binary(model, entry, struct.pack("<I", len(jpeg)) + jpeg)


def _infer_in_binary(model: str, entry: Mapping[str, object], data: bytes) -> bytes:
    named = {**entry, "parameters": {"binary_data_size": len(data)}}
    header = json.dumps({"inputs": [named], "parameters": {"binary_data_output": True}}).encode()
    lengths = (
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {len(header) + len(data)}"
    )
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n{lengths}\r\n\r\n"
    return head.encode() + header + data


def infer_large() -> bytes:
    """Return W2 as JSON text."""
    head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,224,224,3],"data":'
    body = head + LARGE + b"}]}"
    start = f"POST /v2/models/w2/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return start.encode() + body


def reading_cost(seconds: float) -> float:
    """Return the CPU seconds in which the native reader alone reads the numbers of W2."""
    count, began, until = 0, time.thread_time(), time.monotonic() + seconds
    while time.monotonic() < until:
        number_array.read(LARGE, 0, len(LARGE), "FP32", NUMBERS.size)
        count += 1
    return (time.thread_time() - began) / count


NUMBERS = np.random.default_rng(1).standard_normal(224 * 224 * 3, np.float32)
LARGE = orjson.dumps(NUMBERS, option=orjson.OPT_SERIALIZE_NUMPY)
ROWS = {
    "bare C": Row("bare", infer(), limit="bare C"),
    "bare C, close": Row("bare", infer(), "close", limit="bare C"),
    "bare C, Expect": Row("bare", infer(fields=EXPECT), "expect", limit="bare C"),
    "bare C, W2 c1": Row("bare", infer_image_sized("w2"), limit="bare C", connections=1),
    "bare C, W2 c8": Row("bare", infer_image_sized("w2"), limit="bare C", connections=8),
    "plain": Row("plain", infer(), limit="bare C"),
    "token": Row("token", infer(fields=f"Authorization: Bearer {TOKEN}\r\n")),
    "proxy headers": Row("plain", infer(fields=PROXY)),
    "HTTP/1.0 kept open": Row("plain", infer(fields="Connection: keep-alive\r\n", version="1.0")),
    "Expect: 100-continue": Row("plain", infer(fields=EXPECT), "expect"),
    "chunked": Row("plain", infer(chunks=2)),
    "connection for each": Row(
        "plain", infer(fields="Connection: close\r\n"), "close", limit="bare C, close"
    ),
    "HTTP/1.0, one for each": Row("plain", infer(version="1.0"), "close", limit="bare C, close"),
    "two inputs and outputs": Row("plain", infer_pair()),
    "JSON body": Row("plain", infer(text=True)),
    "number reader, W2": Row("reader", b"", limit="number reader, W2"),
    "JSON body, W2": Row("plain", infer_large(), limit="number reader, W2"),
    "GET metadata": Row("plain", b"GET /v2/models/w1 HTTP/1.1\r\nHost: x\r\n\r\n"),
    "handler process": Row("plain", infer("process")),
    "handler process, batches": Row("plain", infer("process-batched")),
    "W2 c1": Row("plain", infer_image_sized("w2"), limit="bare C, W2 c1", connections=1),
    "W2 c8": Row("plain", infer_image_sized("w2"), limit="bare C, W2 c8", connections=8),
    "W2 c8, handler process": Row(
        "plain", infer_image_sized("w2-process"), limit="W2 c8", connections=8
    ),
    "W4 c1": Row("plain", infer_huge("w4"), limit="W4 c1", connections=1),
    "W4 c1, handler process": Row("plain", infer_huge("w4-process"), limit="W4 c1", connections=1),
    "a JPEG": Row("plain", infer_image("w2"), limit="a JPEG"),
    "a JPEG, handler process": Row("plain", infer_image("w2-process"), limit="a JPEG"),
    "1 ms in one process": Row("plain", infer("computes"), limit="1 ms in one process"),
    "1 ms in two processes": Row("plain", infer("computes-twice"), limit="1 ms in one process"),
    "bare C, TLS": Row("bare-tls", infer(), limit="bare C"),
    "bare C, TLS, close": Row("bare-tls", infer(), "close", limit="bare C"),
    "TLS": Row("tls", infer(), limit="bare C, TLS"),
    "TLS, connection for each": Row(
        "tls", infer(fields="Connection: close\r\n"), "close", limit="bare C, TLS, close"
    ),
}
TLS = ("bare-tls", "tls")
PAIR_HANDLER = """
from ksrv import BaseHandler


class Pair(BaseHandler):
    def inference(self, a, b):
        return {"c": a, "d": b}
"""
PAIR = """
handler: handler.py
inputs: [{name: a, datatype: FP32, shape: [-1, 16]}, {name: b, datatype: FP32, shape: [-1, 16]}]
outputs: [{name: c, datatype: FP32, shape: [-1, 16]}, {name: d, datatype: FP32, shape: [-1, 16]}]
"""
IN_PROCESS = {
    "process": "executor: process",
    "process-batched": "executor: process\nbatching: {max_batch_size: 8, max_delay_ms: 0}",
}
COMPUTES = """
import time
from ksrv import BaseHandler


class Computes(BaseHandler):
    def inference(self, x):
        until = time.thread_time_ns() + 1_000_000
        while time.thread_time_ns() < until:
            pass
        return {"y": x}
"""
COMPUTING = {
    "computes": "executor: process",
    "computes-twice": "executor: process\ninstances: 2",
}


def write_more(folder: Path) -> None:
    """Write W1's model with a handler in a separate process, and a model of two inputs."""
    (folder / "pair").mkdir()
    (folder / "pair" / "model.yaml").write_text(PAIR)
    (folder / "pair" / "handler.py").write_text(PAIR_HANDLER)
    for name in ("w2", "w4"):
        large = shutil.copytree(folder / name, folder / f"{name}-process") / "model.yaml"
        large.write_text(large.read_text() + "executor: process\n")
    text = (folder / "w1" / "model.yaml").read_text()
    handler = (folder / "w1" / "handler.py").read_text()
    for name, more in (IN_PROCESS | COMPUTING).items():
        model = folder / name
        model.mkdir()
        (model / "model.yaml").write_text(f"{text}{more}\n")
        (model / "handler.py").write_text(COMPUTES if name in COMPUTING else handler)


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a key and a certificate and return their files."""
    made = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "1", "-subj", "/CN=localhost", "-keyout", str(made[0]),
         "-out", str(made[1])],
        check=True, capture_output=True,
    )  # fmt: skip
    return made


def servers(folder: Path, models: Path) -> dict[str, LoadedServer]:
    """Return the servers by name, not yet started."""
    command = [
        sys.executable, "-m", "ksrv", "serve", str(models), "--http", "127.0.0.1:{port}",
        "--grpc", "off", "--drain-delay", "0",
    ]  # fmt: skip
    key, chain = certificate(folder)
    tokens = folder / "tokens"
    tokens.write_text(TOKEN + "\n")
    return {
        "bare": bare(64),
        "plain": LoadedServer("plain", command),
        "token": LoadedServer("token", [*command, "--token-file", str(tokens)]),
        "bare-tls": bare(64, tls=(key, chain)),
        "tls": LoadedServer("tls", [*command, "--tls-key", str(key), "--tls-cert", str(chain)]),
    }


class Client:
    """The compiled load client.

    Args:
        folder: The folder for the files of its requests.
    """

    def __init__(self, folder: Path, connections: int) -> None:
        self._folder = folder
        self._connections = connections
        self._binary = Path(tempfile.gettempdir()) / f"ksrv-load-client-{os.getuid()}"
        source = HERE / "client.c"
        if not self._binary.exists() or self._binary.stat().st_mtime < source.stat().st_mtime:
            command = [
                "cc",
                "-O2",
                "-o",
                str(self._binary),
                str(source),
                "-lssl",
                "-lcrypto",
                "-lpthread",
            ]
            subprocess.run(command, check=True)

    def cost(self, server: LoadedServer, row: Row, seconds: float) -> tuple[float, float]:
        """Return the CPU seconds of a server for one request, and the requests per second."""
        before = server.cpu_seconds()
        wire = "tls" if row.server in TLS else "plain"
        count = self.count(server.port, row.request, seconds, row.mode, wire, row.connections)
        return (server.cpu_seconds() - before) / count, count / seconds

    def count(
        self,
        port: int,
        request: bytes,
        seconds: float,
        mode: str = "keep",
        wire: str = "plain",
        connections: int = 0,
    ) -> int:
        """Return how many requests a port of this machine answers in some seconds.

        Args:
            mode: "keep", "close" or "expect"; see client.c.
            wire: "plain" or "tls".
            connections: How many send at once; 0 for as many as were given to this client.
        """
        file = self._folder / "request"
        file.write_bytes(request)
        command = [
            str(self._binary), str(port), str(connections or self._connections), str(seconds),
            str(file), mode, wire,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"port {port}: {done.stderr}")
        return int(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    wanted = options.rows or list(ROWS)
    for name in wanted:
        if name not in ROWS:
            parser.error(f"unknown row {name!r}; expected one of {', '.join(ROWS)}")
    shown = {"bare C", "plain", *wanted}
    for _ in range(2):  # a row's limit has one too
        shown |= {ROWS[name].limit for name in shown}
    rows = {name: row for name, row in ROWS.items() if name in shown}
    costs: dict[str, list[float]] = {name: [] for name in rows}
    rates: dict[str, list[float]] = {name: [] for name in rows}
    with tempfile.TemporaryDirectory(prefix="ksrv-conditions-") as name:
        folder = Path(name)
        models = folder / "models"
        write_models(models)
        write_more(models)
        running = servers(folder, models)
        client = Client(folder, options.connections)
        used = {row.server for row in rows.values()} - {"reader"}
        try:
            for name in used:
                running[name].start(None if name in ("bare", "token", *TLS) else READY)
            for row in rows.values():
                if row.server != "reader":
                    client.cost(running[row.server], row, 1)  # warm
            for _ in range(options.rounds):
                for name, row in rows.items():
                    cost, rate = (
                        (reading_cost(options.seconds), 0.0)
                        if row.server == "reader"
                        else client.cost(running[row.server], row, options.seconds)
                    )
                    costs[name].append(cost)
                    rates[name].append(rate)
        finally:
            for name in used:
                if hasattr(running[name], "process"):
                    running[name].stop()
    middles = {name: statistics.median(found) for name, found in costs.items()}
    speeds = {name: statistics.median(found) for name, found in rates.items()}
    print(f"{'the request':<26} {'CPU':>9}  {'ratio':>6}  {'spread':<12} {'req/s':>6}  beside")
    for name, row in rows.items():
        floor, speed = middles[row.limit], speeds[row.limit]
        faster = f"{speeds[name] / speed:5.2f}x" if speed else ""
        spread = f"{min(costs[name]) / floor:.2f}-{max(costs[name]) / floor:.2f}"
        print(
            f"{name:<26} {middles[name] * 1e6:6.1f} us  {middles[name] / floor:5.2f}x  {spread:<12} {faster:>6}  "
            f"{row.limit}"
        )


if __name__ == "__main__":
    main()
