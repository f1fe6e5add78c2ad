"""How ksrv scales with its workers, on a machine with many cores, and what a GPU changes; without a network, in six minutes.

    python benchmarks/peers/scale.py [--workers 1 2 4 8 16] [--seconds 2] [--json FILE]

W1 to W4 go to handlers in the workers; W5 is ResNet-18 of torch, on CUDA if the machine has a device, in batches of up to 32.
For each number of workers ksrv is started with all of them, and loaded over REST and gRPC by half as many clients as there
are processors, each a process with eight requests under way, so that client and server have half of the machine each. The
table has requests a second, the speed-up beside one worker, CPU time a request, and the worst client's 99th percentile.
It needs g++ and what ksrv needs; the client speaks no TLS here, so OpenSSL's headers may be missing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from calls import Call, ask, grpc_call, tensor, v2_binary
from peers import RunningServer, free_port

HERE = Path(__file__).parent

HANDLER = """
import numpy as np
from ksrv import BaseHandler


class Echo(BaseHandler):
    def inference(self, x):
        return {"y": x}


class TenValues(BaseHandler):
    def inference(self, x):
        return {"y": np.ascontiguousarray(x.reshape(len(x), -1)[:, :10])}
"""
NETWORK = """
import numpy as np
import torch
from torch import nn
from ksrv import BaseHandler


class Block(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride, 1)
        self.second = nn.Conv2d(width, width, 3, 1, 1)
        self.short = nn.Conv2d(before, width, 1, stride) if before != width else nn.Identity()

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))) + self.short(x))


class Network(BaseHandler):
    def initialize(self, context):
        torch.manual_seed(0)
        layers, before = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [Block(before, width, stride), Block(width, width, 1)]
            before = width
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.network = nn.Sequential(*layers).eval().to(self.device)

    def inference(self, x):
        with torch.inference_mode():
            y = self.network(torch.from_numpy(np.ascontiguousarray(x)).to(self.device))
        return {"y": y[:, :10].cpu().numpy()}
"""

MODELS = {
    "W1": ("Echo", "16", "16", ""),
    "W2": ("TenValues", "224, 224, 3", "10", ""),
    "W3": ("TenValues", "224, 224, 3", "10", "batching: {max_batch_size: 16}"),
    "W4": ("Echo", "16777216", "16777216", ""),
    "W5": ("Network", "3, 224, 224", "10", "batching: {max_batch_size: 32}"),
}
ANSWER_VALUES = {"W1": 16, "W2": 10, "W3": 80, "W4": 16 << 20, "W5": 10}


def write_repository(folder: Path, workloads: list[str]) -> None:
    """Write a model for each of these workloads."""
    for name in workloads:
        handler, shape, values, more = MODELS[name]
        model = folder / name.lower()
        model.mkdir(parents=True)
        (model / "handler.py").write_text(NETWORK if handler == "Network" else HANDLER)
        (model / "model.yaml").write_text(
            f"handler: handler.py:{handler}\ntimeout_ms: 60000\n"
            f"inputs: [{{name: x, datatype: FP32, shape: [-1, {shape}]}}]\n"
            f"outputs: [{{name: y, datatype: FP32, shape: [-1, {values}]}}]\n{more}\n"
        )


class Ksrv(RunningServer):
    """ksrv with a number of workers.

    Args:
        models: The repository.
        workers: How many.
    """

    def __init__(self, models: Path, workers: int) -> None:
        self.certificate = None
        self.http, self.grpc = free_port(), free_port()
        self._mark = f"SCALE_BENCH={os.getpid()}-{workers}"
        self.output = models.parent / f"output-{workers}"
        name, _, value = self._mark.partition("=")
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ksrv", "serve", models, "--workers", str(workers),
                 "--http", f"127.0.0.1:{self.http}", "--grpc", f"127.0.0.1:{self.grpc}", "--drain-delay", "0"],
                cwd=models.parent, env=os.environ | {name: value}, stdout=output, stderr=output,
            )  # fmt: skip

    def wait(self) -> None:
        """Return once it is ready.

        Raises:
            RuntimeError: It is not, after two minutes.
        """
        until = time.monotonic() + 120
        while time.monotonic() < until and self._process.poll() is None:
            with suppress(OSError, urllib.error.HTTPError):
                address = f"http://127.0.0.1:{self.http}/v2/health/ready"
                urllib.request.urlopen(address, timeout=5).close()
                time.sleep(1)  # so that the other workers are ready as well
                return
            time.sleep(0.1)
        raise RuntimeError(f"ksrv does not start: {self.output.read_text()[-2000:]}")

    def end(self) -> None:
        """End it at once."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self._process.wait()


def load(
    program: Path, file: Path, server: Ksrv, call: Call, clients: int, seconds: float
) -> dict[str, float]:
    """Load a server from several processes; returns what they saw together."""
    port, protocol = (server.grpc, "grpc") if call.is_grpc else (server.http, "http")
    # The streams of one connection go to one worker: each client has eight connections, as eight clients have.
    command = [
        str(program),
        str(port),
        protocol,
        "plain",
        str(file),
        "8",
        "1",
        "closed",
        str(seconds),
    ]
    before = server.cpu_seconds()
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(clients)]
    found = [json.loads(one.communicate(timeout=90)[0].splitlines()[0]) for one in running]
    answered = sum(one["answered"] for one in found)
    return {
        "requests_s": sum(one["answered"] / one["seconds"] for one in found),
        "cpu_us": 1e6 * (server.cpu_seconds() - before) / max(answered, 1),
        "p50_ms": float(np.median([one["p50_ms"] for one in found])),
        "p99_ms": max(one["p99_ms"] for one in found),
        "errors": sum(one["errors"] for one in found),
    }


def check(call: Call, workload: str, server: Ksrv) -> None:
    """Ask once and look at the size of the answer's tensor.

    Raises:
        ValueError: It has another size.
    """
    body = ask(call, server.grpc if call.is_grpc else server.http, None)
    nbytes = 4 * ANSWER_VALUES[workload]
    if len(body) < nbytes or len(body) > nbytes + 1000:
        raise ValueError(f"{workload} is answered with {len(body)} bytes: {body[:200]!r}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--workloads", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    clients = max(1, len(os.sched_getaffinity(0)) // 2)
    results: list[dict[str, Any]] = []
    one_worker: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory(prefix="ksrv-scale-") as made:
        folder = Path(made)
        write_repository(folder / "models", given.workloads)
        program = folder / "client"
        build = [
            "g++",
            "-O2",
            "-std=c++17",
            "-DWITHOUT_TLS",
            str(HERE / "client.cpp"),
            "-o",
            str(program),
        ]
        subprocess.run(build, check=True)
        print(
            f"{len(os.sched_getaffinity(0))} processors, {clients} client processes with 8 requests each"
        )
        for workers in given.workers:
            server = Ksrv(folder / "models", workers)
            try:
                server.wait()
                for workload in given.workloads:
                    model = workload.lower()
                    for protocol, call in (
                        ("REST", v2_binary(tensor(workload), f"/v2/models/{model}/infer")),
                        ("gRPC", grpc_call(tensor(workload), model)),
                    ):
                        check(call, workload, server)
                        file = folder / "request"
                        file.write_bytes(call.file())
                        many = min(clients, 2) if workload == "W4" else clients
                        load(program, file, server, call, many, 0.3)  # warm
                        row: dict[str, Any] = {
                            "workload": workload,
                            "protocol": protocol,
                            "workers": workers,
                        }
                        row |= load(program, file, server, call, many, given.seconds)
                        first = one_worker.setdefault((workload, protocol), row["requests_s"])
                        row["speed_up"] = row["requests_s"] / first if first else 0.0
                        results.append(row)
                        print(f"{workload} {protocol} {workers:3} workers {row['requests_s']:12,.1f} req/s  x{row['speed_up']:5.2f}  "
                              f"{row['cpu_us']:12,.1f} us CPU  p50 {row['p50_ms']:8.2f}  p99 {row['p99_ms']:8.2f} ms  {row['errors']} errors",
                              flush=True)  # fmt: skip
                        if given.json:
                            given.json.write_text(json.dumps(results, indent=1) + "\n")
            finally:
                server.end()


if __name__ == "__main__":
    main()
