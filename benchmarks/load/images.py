"""JPEGs through real servers: ksrv over REST and gRPC beside FastAPI and beside a bare loop.

    python benchmarks/load/images.py [--seconds 2] [--rounds 3] [--clients 1 4 16] [ROW ...]

Rows: w3 (eight JPEGs of 640x427 a request), w3-one (one of them), small (one of 224x224, which is not
resized). All become FP32 [n,224,224,3]; the answer is ten of these values. The bare loop is
libjpeg-turbo into one buffer, cv2's resize of bytes and a cast, on a thread for each processor and without
any request: processors that share a core slow one another down there as well. wrk must be installed; gRPC
is sent by grpcio's own client, whose time is not counted but which shares the processors.

All servers are up at once and a round gives each in turn the same load. Told are medians: requests per
second, CPU time of the server for each request, both as ratios: to FastAPI's, and to the bare loop's; and the
client's CPU time for each request, which no server can give back if the processors are shared.
Only ratios mean anything.
"""

import argparse
import json
import os
import re
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import grpc
import numpy as np
import simplejpeg
from grpc_load import METHOD
from servers import HERE, LoadedServer, free_port

from ksrv.protocol.protobuf import message_class

ROWS = {"w3": (8, (427, 640)), "w3-one": (1, (427, 640)), "small": (1, (224, 224))}
FASTAPI = "FastAPI"

MODEL = """
handler: handler.py
timeout_ms: 60000
inputs: [{name: x, datatype: FP32, shape: [-1, 224, 224, 3]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 10]}]
batching: {max_batch_size: 16}
"""
HANDLER = """
from ksrv import BaseHandler


class Answer(BaseHandler):
    def inference(self, x):
        return {"y": x.reshape(len(x), -1)[:, :10].copy()}
"""


@dataclass
class Load:
    """Measurements of one server, over the rounds."""

    rates: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    clients: list[float] = field(default_factory=list)


def photographs(count: int, size: tuple[int, int]) -> list[bytes]:
    """Return JPEGs of quality 90, 4:2:0."""
    from sklearn.datasets import load_sample_image

    picture = cv2.resize(load_sample_image("china.jpg")[:, :, ::-1], size[::-1])
    quality = [cv2.IMWRITE_JPEG_QUALITY, 90]
    return [
        cv2.imencode(".jpg", np.roll(picture, 16 * i, axis=1), quality)[1].tobytes()
        for i in range(count)
    ]


def bare_loop(images: list[bytes], seconds: float) -> tuple[float, float]:
    """Return the requests per second and the CPU seconds for each, of their images without a server."""
    until = time.monotonic() + seconds
    costs: list[float] = []

    def loop() -> None:
        out = np.empty((len(images), 224, 224, 3), np.float32)
        buffer = np.zeros(640 * 427 * 3, np.uint8)
        small = np.zeros((224, 224, 3), np.uint8)
        while time.monotonic() < until:
            began = time.thread_time()
            for row, data in enumerate(images):
                height, width, _, _ = simplejpeg.decode_jpeg_header(data)
                pixels: Any = buffer[: height * width * 3].reshape(height, width, 3)
                simplejpeg.decode_jpeg(data, "BGR", buffer=pixels)
                if pixels.shape != small.shape:
                    pixels = cv2.resize(pixels, (224, 224), dst=small)
                np.copyto(out[row], pixels)
            costs.append(time.thread_time() - began)

    threads = [threading.Thread(target=loop) for _ in os.sched_getaffinity(0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(costs) / seconds, statistics.median(costs)


def rest_body(images: list[bytes]) -> tuple[bytes, int]:
    """Return a KServe v2 body and the length of its JSON."""
    raw = b"".join(struct.pack("<I", len(image)) + image for image in images)
    entry = {"name": "x", "shape": [len(images)], "datatype": "BYTES",
             "parameters": {"binary_data_size": len(raw)}}  # fmt: skip
    header = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    return header + raw, len(header)


def grpc_body(images: list[bytes]) -> bytes:
    """Return a ModelInferRequest."""
    request = message_class("inference.ModelInferRequest")(model_name="m")
    request.inputs.add(name="x", datatype="BYTES", shape=[len(images)])
    request.raw_input_contents.append(
        b"".join(struct.pack("<I", len(image)) + image for image in images)
    )
    encoded: bytes = request.SerializeToString()
    return encoded


def client_seconds() -> float:
    """Return the CPU time of this process and of the clients that it ran and that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def rest_load(server: LoadedServer, body: Path, target: str, header: int, clients: int,
              seconds: float) -> int:  # fmt: skip
    environment = os.environ | {"BODY": str(body), "TARGET": target, "JSON": str(header)}
    out = subprocess.run(
        ["wrk", "-t1", f"-c{clients}", f"-d{seconds:.0f}s", "-s", str(HERE / "image.lua"),
         f"http://127.0.0.1:{server.port}/"],
        env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    if "Non-2xx" in out or "Socket errors" in out:
        raise RuntimeError(f"{server.name}: {out}")
    counted = re.search(r"(\d+) requests in", out)
    assert counted, out
    return int(counted[1])


def grpc_load(port: int, body: bytes, clients: int, seconds: float) -> int:
    """Call from so many threads, each with a separate channel."""
    done = [0] * clients
    until = time.monotonic() + seconds

    def client(number: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            call = channel.unary_unary(METHOD)
            while time.monotonic() < until:
                call(body, timeout=60)
                done[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done)


def measure(row: str, servers: dict[str, LoadedServer], grpc_port: int, folder: Path,
            options: argparse.Namespace) -> None:  # fmt: skip
    images = photographs(*ROWS[row])
    body, header = rest_body(images)
    (folder / "v2").write_bytes(body)
    (folder / "plain").write_bytes(body[header:])
    message = grpc_body(images)

    def once(name: str, clients: int, seconds: float) -> int:
        if name == "ksrv gRPC":
            return grpc_load(grpc_port, message, clients, seconds)
        if name == FASTAPI:
            return rest_load(servers[name], folder / "plain", "/infer", 0, clients, seconds)
        target = "/v2/models/m/infer"
        return rest_load(servers[name], folder / "v2", target, header, clients, seconds)

    for clients in options.clients:
        loads = {name: Load() for name in servers}
        bare = Load()
        for round_ in range(-1, options.rounds):
            for noted, value in zip((bare.rates, bare.costs), bare_loop(images, 1), strict=True):
                noted.append(value)
            for name, load in loads.items():
                began, spent = time.monotonic(), servers[name].cpu_seconds()
                sent = client_seconds()
                count = once(name, clients, options.seconds)
                if round_ >= 0:
                    load.rates.append(count / (time.monotonic() - began))
                    load.costs.append((servers[name].cpu_seconds() - spent) / count)
                    load.clients.append((client_seconds() - sent) / count)
        rate = statistics.median(loads[FASTAPI].rates)
        cost = statistics.median(loads[FASTAPI].costs)
        limit = statistics.median(bare.costs)
        for name, load in {"bare loop": bare, **loads}.items():
            mine, spent = statistics.median(load.rates), statistics.median(load.costs)
            client = statistics.median(load.clients or [0.0])
            print(
                f"{row:<7} c{clients:<3} {name:<10} {mine:8.1f} requests/s {mine / rate:5.2f}x"
                f"   {spent * 1e3:7.3f} ms CPU/request {spent / cost:5.2f}x FastAPI"
                f" {spent / limit:5.2f}x bare loop   client {client * 1e3:6.3f} ms"
            )


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("rows", nargs="*", metavar="ROW")
    arguments.add_argument("--seconds", type=float, default=2)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    options = arguments.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = folder / "models" / "m"
        model.mkdir(parents=True)
        (model / "model.yaml").write_text(MODEL)
        (model / "handler.py").write_text(HANDLER)
        grpc_port = free_port()
        python = sys.executable
        server = LoadedServer(
            "ksrv",
            [python, "-m", "ksrv", "serve", str(model.parent), "--http", "127.0.0.1:{port}",
             "--grpc", f"127.0.0.1:{grpc_port}", "--drain-delay", "0"],
        )  # fmt: skip
        peer = LoadedServer(
            FASTAPI,
            [python, "-m", "uvicorn", "--app-dir", str(HERE / "peers"), "--port", "{port}",
             "--log-level", "warning", "fastapi_images:app"],
        )  # fmt: skip
        for started, path in ((server, "/v2/health/ready"), (peer, "/ready")):
            started.start(path)
            stack.callback(started.stop)
        servers = {FASTAPI: peer, "ksrv REST": server, "ksrv gRPC": server}
        for row in options.rows or ROWS:
            measure(row, servers, grpc_port, folder, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
