"""A handler that calls two models, beside a client that calls the same two one after the other.

    python benchmarks/load/composition.py [--requests 300] [--rounds 7]

One client, one connection. The table has the microseconds of the two calls together, of the call to the handler that
makes them, and the ratio of the medians: for handlers in the server and in processes, and for an ensemble of Triton's
with the two models as its steps. Then the same for the CPU time of the server and its handler processes, which means
more on a busy machine.

A call from a process crosses to the server and back, and so does the batch that makes it. "by hand" is the
same work done by the client: the two calls, and one to a handler in a process that calls no model.
"crossings" are three messages to another Python process and back over the channel of handler processes, with
nothing done at either end: the least that composition from a process can add to the two calls.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from ksrv.engine.processes.link import Link, Packed
from ksrv.testing import Server

HANDLER = """
import msgspec
import numpy as np

from ksrv import BaseHandler


class Layer(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.weights = np.eye(256, dtype=np.float32)

    def inference(self, x):
        return {"y": x @ self.weights}
"""
CHAIN = """
from ksrv import BaseHandler


class Chain(BaseHandler):
    def inference(self, x):
        models = self.context.models
        middle = models["first"].infer({"x": x})["y"]
        return {"y": models["second"].infer({"x": middle})["y"]}
"""
ALONE = """
from ksrv import BaseHandler


class Alone(BaseHandler):
    def inference(self, x):
        return {"y": x}
"""
ECHO = """
import socket, sys
from ksrv.engine.processes.link import ChannelClosed, Link, Packed

link = Link(socket.socket(fileno=int(sys.argv[1])))
try:
    while True:
        link.send(1, Packed(link.receive().payload))
except ChannelClosed:
    pass
"""
YAML = """handler: handler.py
inputs: [{name: x, datatype: FP32, shape: [-1, 256]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 256]}]
batching: {max_batch_size: 8}
"""
ENSEMBLE = """platform: "ensemble" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 256 }
output { name: "y" data_type: TYPE_FP32 dims: 256 }
ensemble_scheduling {
  step { model_name: "first" input_map { key: "x" value: "x" } output_map { key: "y" value: "m" } }
  step { model_name: "second" input_map { key: "x" value: "m" } output_map { key: "y" value: "y" } }
}
"""
BODY = np.random.default_rng(0).standard_normal((1, 256), dtype=np.float32).tobytes()


def write_models(root: Path) -> None:
    """Write two models, and one that calls them, for each executor."""
    models = {
        "first": (HANDLER, "inline"),
        "second": (HANDLER, "inline"),
        "inline": (CHAIN, "inline"),
        "process": (CHAIN, "process"),
        "alone": (ALONE, "process"),
    }
    for name, (code, executor) in models.items():
        folder = root / name
        folder.mkdir()
        (folder / "handler.py").write_text(code)
        (folder / "model.yaml").write_text(f"{YAML}executor: {executor}\n")
    (root / "ensemble/1").mkdir(parents=True)
    (root / "ensemble/config.pbtxt").write_text(ENSEMBLE)


class Client:
    """One connection that sends the same tensor to models."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=30)
        described = {"name": "x", "datatype": "FP32", "shape": [1, 256]}
        described["parameters"] = {"binary_data_size": len(BODY)}  # type: ignore[assignment]
        outputs = {"binary_data_output": True}
        head = json.dumps({"inputs": [described], "parameters": outputs}).encode()
        self._body = head + BODY
        self._headers = {"Inference-Header-Content-Length": str(len(head))}

    def call(self, *names: str) -> None:
        """Call models one after the other."""
        for name in names:
            path = f"/v2/models/{name}/infer"
            self._connection.request("POST", path, self._body, self._headers)
            response = self._connection.getresponse()
            if not response.read().endswith(BODY[-4:]) or response.status != 200:
                raise SystemExit(f"{name} answered {response.status}")

    def time(self, count: int, *names: str) -> tuple[float, float]:
        """Return the microseconds of calling models, one after the other, and the server's CPU time of that."""
        spent, began = cpu_seconds(), time.perf_counter()
        for _ in range(count):
            self.call(*names)
        passed = time.perf_counter() - began
        return passed / count * 1e6, (cpu_seconds() - spent) / count * 1e6


class Echo:
    """Another Python process, which sends back what it receives over a channel."""

    def __init__(self) -> None:
        self._link, end = Link.pair()
        number = end.fileno()
        command = [sys.executable, "-c", ECHO, str(number)]
        self._process = subprocess.Popen(command, pass_fds=[number])
        end.close()

    def __enter__(self) -> "Echo":
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()
        self._process.wait()

    def time(self, count: int) -> tuple[float, float]:
        """Return the microseconds of three messages there and back, and the CPU time of both processes."""
        spent, began = cpu_seconds() + time.process_time(), time.perf_counter()
        for _ in range(3 * count):
            self._link.send(1, Packed(msgspec.msgpack.encode(BODY)))
            self._link.receive()
        passed = time.perf_counter() - began
        spent = cpu_seconds() + time.process_time() - spent
        return passed / count * 1e6, spent / count * 1e6


def cpu_seconds() -> float:
    """Return the CPU time of this process's descendants, by the scheduler's clock."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with suppress(ValueError, OSError):
            number = int(entry.name)
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(number)
    found, spent = list(parents.get(os.getpid(), ())), 0.0
    for number in found:
        found.extend(parents.get(number, ()))
        with suppress(OSError):
            for task in Path(f"/proc/{number}/task").iterdir():
                spent += int((task / "schedstat").read_text().split()[0]) / 1e9
    return spent


def main() -> None:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        with Server(folder) as server, Echo() as echo:
            client = Client(server.http)
            ways = {
                "two calls": ("first", "second"),
                "inline": ("inline",),
                "process": ("process",),
                "ensemble": ("ensemble",),
                "by hand": ("first", "second", "alone"),
            }
            found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            for way in ways:
                client.time(options.requests, *ways[way])  # until every path is warm
            for _ in range(options.rounds):
                for way, names in ways.items():
                    found[way].append(client.time(options.requests, *names))
                found.setdefault("crossings", []).append(echo.time(options.requests))
    for column, what in enumerate(("", " of CPU")):
        alone = statistics.median(times[column] for times in found["two calls"])
        for way, rounds in found.items():
            times = [row[column] for row in rounds]
            middle = statistics.median(times)
            print(
                f"{way:10} {middle:8.0f} us{what}  {middle / alone:5.2f}  "
                f"({min(times):.0f} to {max(times):.0f})"
            )


if __name__ == "__main__":
    main()
