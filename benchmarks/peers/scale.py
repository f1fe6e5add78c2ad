"""How the throughput of ksrv grows with processors, and what a GPU adds; without a network.

    python benchmarks/peers/scale.py [--processors 1 2 4 8 16] [--seconds 2] [--json FILE] [--plot FILE.svg]

For each number N of processors the server is confined to the first N. The clients run on the rest, and share the
server's processors otherwise. Each way of using processors is one model, and one start of the server:

- `loop`: 16 numbers, an inline handler, one worker: what the event loop and the GIL of one process carry
- `workers`: the same model in N workers
- `python`: an inline handler that computes in Python for a millisecond: the GIL
- `process`: the same handler with `executor: process` and N instances
- `onnx`: an inline ONNX network with N instances of one thread each
- `pictures`: eight JPEGs a request, decoded by ksrv's threads
- `gpu`: a network of torch in batches of up to 32, only where torch finds a CUDA device, beside a loop without a server

The table has requests a second, the speed-up over the smallest N, CPU time a request and the worst client's 99th
percentile. The plot has the speed-up of each way. It needs g++ and what ksrv needs, and matplotlib for the plot.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
from calls import Call, ask, grpc_call, tensor, v2_binary
from peers import RunningServer, free_port

HERE = Path(__file__).parent

HANDLERS = '''
import time

import numpy as np
from ksrv import BaseHandler


class Echo(BaseHandler):
    def inference(self, x):
        return {"y": x}


class TenValues(BaseHandler):
    def inference(self, x):
        return {"y": np.ascontiguousarray(x.reshape(len(x), -1)[:, :10])}


class Sum(BaseHandler):
    """About a millisecond of Python for a request; the work is fixed, not the time."""

    def inference(self, x):
        total = 0
        for number in range(25_000):
            total += number & 7
        return {"y": x + (total & 1)}
'''

NETWORK = '''
import numpy as np
import torch
from torch import nn
from ksrv import BaseHandler


def network():
    """Return the layers of ResNet-18 with random weights."""
    torch.manual_seed(0)
    layers, before = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(before, width, stride), Block(width, width, 1)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).eval().cuda()


class Block(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride, 1)
        self.second = nn.Conv2d(width, width, 3, 1, 1)
        self.short = nn.Conv2d(before, width, 1, stride) if before != width else nn.Identity()

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))) + self.short(x))


def ten_values(model, x):
    """Return ten values of each row, computed on the GPU."""
    with torch.inference_mode():
        return model(torch.from_numpy(np.ascontiguousarray(x)).cuda())[:, :10].cpu().numpy()


class Network(BaseHandler):
    def initialize(self, context):
        self.network = network()

    def inference(self, x):
        return {"y": ten_values(self.network, x)}
'''


@dataclass(frozen=True)
class Way:
    """One way of using processors.

    Attributes:
        work: The workload whose request is sent.
        handler: The handler's class, or "" for the ONNX file.
        shape: The input's shape after the batch axis.
        values: The output's values of a row.
        keys: More of `model.yaml`; `{n}` is the number of processors.
        every: Whether there is a worker for each processor, instead of one.
        answered: Values in a request's answer.
    """

    work: str
    handler: str
    shape: str
    values: int
    keys: str = ""
    every: bool = False
    answered: int = 0


WAYS = {
    "loop": Way("W1", "Echo", "16", 16),
    "workers": Way("W1", "Echo", "16", 16, every=True),
    "python": Way("W1", "Sum", "16", 16),
    "process": Way("W1", "Sum", "16", 16, "executor: process\ninstances: {n}"),
    "onnx": Way("W5", "", "3, 224, 224", 10, "instances: {n}\nthreads: 1"),
    "pictures": Way("W3", "TenValues", "224, 224, 3", 10, answered=80),
    "gpu": Way("W5", "Network", "3, 224, 224", 10, "batching: {{max_batch_size: 32}}"),
}
BATCHES = (1, 8, 32)


def write_model(folder: Path, way: Way, processors: int) -> None:
    """Write the repository with the only model, `m`, of a way."""
    model = folder / "m"
    model.mkdir(parents=True)
    source = f"handler: handler.py:{way.handler}"
    if way.handler:
        (model / "handler.py").write_text(NETWORK if way.handler == "Network" else HANDLERS)
    else:
        from onnx_models import RESNET_18, write_onnx_models

        write_onnx_models(folder.parent, RESNET_18)
        (folder.parent / "network.onnx").rename(model / "network.onnx")
        source = "model: network.onnx"
    (model / "model.yaml").write_text(
        f"{source}\ntimeout_ms: 60000\nqueue_size: 1000\n"
        f"inputs: [{{name: x, datatype: FP32, shape: [-1, {way.shape}]}}]\n"
        f"outputs: [{{name: y, datatype: FP32, shape: [-1, {way.values}]}}]\n"
        f"{way.keys.format(n=processors)}\n"
    )


@dataclass(frozen=True)
class Division:
    """Which processors the server and its clients run on."""

    server: frozenset[int]
    clients: frozenset[int]

    @classmethod
    def of(cls, processors: int) -> "Division":
        """Give the server the first processors, and the clients the rest, or all if none is left."""
        mine = sorted(os.sched_getaffinity(0))
        rest = mine[processors:]
        return cls(frozenset(mine[:processors]), frozenset(rest or mine))


class Ksrv(RunningServer):
    """ksrv on some processors."""

    def __init__(self, models: Path, workers: int, processors: frozenset[int]) -> None:
        self.certificate = None
        self.http, self.grpc = free_port(), free_port()
        self._mark = f"SCALE_BENCH={os.getpid()}-{self.http}"
        self.output = models.parent / "output"
        name, _, value = self._mark.partition("=")
        command: list[str | Path] = [sys.executable, "-m", "ksrv", "serve", models, "--workers", str(workers),
                   "--http", f"127.0.0.1:{self.http}", "--grpc", f"127.0.0.1:{self.grpc}", "--drain-delay", "0"]  # fmt: skip
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=models.parent, env=os.environ | {name: value}, stdout=output, stderr=output,
                preexec_fn=partial(os.sched_setaffinity, 0, processors),
            )  # fmt: skip

    def wait(self) -> None:
        """Return once it is ready.

        Raises:
            RuntimeError: It is not, after two minutes.
        """
        until = time.monotonic() + 120
        while time.monotonic() < until and self._process.poll() is None:
            with suppress(OSError, HTTPError):
                urlopen(f"http://127.0.0.1:{self.http}/v2/health/ready", timeout=5).close()
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
    program: Path,
    server: Ksrv,
    call: Call,
    processors: frozenset[int],
    streams: int,
    seconds: float,
) -> dict[str, float]:
    """Load a server from a process for each of the clients' processors, and add up what they saw.

    Args:
        program: The compiled client.
        server: The server.
        call: The request.
        processors: The clients'.
        streams: Requests under way of all clients together, at least one for each.
        seconds: How long.
    """
    file = program.with_name("request")
    file.write_bytes(call.file())
    port, protocol = (server.grpc, "grpc") if call.is_grpc else (server.http, "http")
    # The streams of one connection go to one worker, so each stream has a connection.
    each = max(1, streams // len(processors))
    command = [program, port, protocol, "plain", file, each, 1, "closed", seconds]
    before = server.cpu_seconds()
    running = [
        subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, text=True,
            preexec_fn=partial(os.sched_setaffinity, 0, processors),
        )
        for _ in processors
    ]  # fmt: skip
    found = [json.loads(client.communicate(timeout=90)[0].splitlines()[0]) for client in running]
    answered = sum(row["answered"] for row in found)
    return {
        "requests_s": sum(row["answered"] / row["seconds"] for row in found),
        "cpu_us": 1e6 * (server.cpu_seconds() - before) / max(answered, 1),
        "p50_ms": float(np.median([row["p50_ms"] for row in found])),
        "p99_ms": max(row["p99_ms"] for row in found),
        "errors": sum(row["errors"] for row in found),
    }


def check(call: Call, way: Way, server: Ksrv) -> None:
    """Ask once and look at the size of the answer's tensor.

    Raises:
        ValueError: It has another size.
    """
    body = ask(call, server.grpc if call.is_grpc else server.http, None)
    nbytes = 4 * (way.answered or way.values)
    if not nbytes <= len(body) <= nbytes + 1000:
        raise ValueError(f"{way.work} is answered with {len(body)} bytes: {body[:200]!r}")


@contextmanager
def serving(way: Way, processors: int) -> Iterator[Ksrv]:
    """Serve a way's model on so many processors."""
    with tempfile.TemporaryDirectory(prefix="ksrv-scale-") as made:
        write_model(Path(made, "models"), way, processors)
        server = Ksrv(
            Path(made, "models"), processors if way.every else 1, Division.of(processors).server
        )
        try:
            server.wait()
            yield server
        finally:
            server.end()


def bare_gpu() -> dict[int, float]:
    """Return rows a second of a loop over the network of `gpu`, for each size of a batch."""
    names: dict[str, Any] = {}
    exec(NETWORK, names)
    model, found = names["network"](), {}
    for rows in BATCHES:
        x = np.random.default_rng(0).random((rows, 3, 224, 224), np.float32)
        run: Callable[[], Any] = partial(names["ten_values"], model, x)
        for _ in range(10):
            run()
        began, times = time.perf_counter(), 0
        while time.perf_counter() < began + 1:
            run()
            times += 1
        found[rows] = rows * times / (time.perf_counter() - began)
    return found


def has_gpu() -> bool:
    """Return whether torch is installed and finds a CUDA device."""
    with suppress(ModuleNotFoundError):
        import torch

        return bool(torch.cuda.is_available())
    return False


def measure(
    program: Path, name: str, processors: int, streams: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """Yield a row for each protocol of a way on so many processors."""
    way, clients = WAYS[name], Division.of(processors).clients
    x = tensor(way.work)
    with serving(way, processors) as server:
        for protocol, call in (
            ("REST", v2_binary(x, "/v2/models/m/infer")),
            ("gRPC", grpc_call(x, "m")),
        ):
            check(call, way, server)
            load(program, server, call, clients, streams, 0.5)  # warm
            yield {"way": name, "protocol": protocol, "processors": processors} | load(
                program, server, call, clients, streams, seconds
            )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot the speed-up of each way, one panel a protocol."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "ksrv"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(11, 5), sharey=True, layout="constrained")
    for panel, protocol in zip(panels, ("REST", "gRPC"), strict=True):
        mine = [row for row in rows if row["protocol"] == protocol]
        counts = sorted({row["processors"] for row in mine})
        panel.plot(counts, [count / counts[0] for count in counts], "k:", label="linear")
        for name in dict.fromkeys(row["way"] for row in mine):
            points = [(row["processors"], row["speed_up"]) for row in mine if row["way"] == name]
            panel.plot(*zip(*points, strict=True), marker="o", label=name)
        panel.set(title=protocol, xlabel="processors of the server", xscale="log", yscale="log")
        panel.set_xticks(counts, map(str, counts))
        panel.set_yticks(counts, map(str, counts))
        panel.minorticks_off()
    panels[0].set_ylabel(f"requests a second, divided by those on {counts[0]}")
    panels[1].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    most = len(os.sched_getaffinity(0))
    counts = [count for count in (1, 2, 4, 8, 16) if count <= most]
    parser.add_argument("--processors", nargs="+", type=int, default=counts)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--streams", type=int, default=64, help="requests under way")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    if max(given.processors) > most:
        parser.error(f"this machine has {most} processors, not {max(given.processors)}")
    rows: list[dict[str, Any]] = []
    first: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory(prefix="ksrv-scale-") as made:
        program = Path(made, "client")
        subprocess.run(
            ["g++", "-O2", "-std=c++17", "-DWITHOUT_TLS", HERE / "client.cpp", "-o", program],
            check=True,
        )
        for name in given.ways:
            if name == "gpu" and not has_gpu():
                print("gpu: skipped, because torch finds no CUDA device")
                continue
            for processors in given.processors:
                for row in measure(program, name, processors, given.streams, given.seconds):
                    start = first.setdefault((name, row["protocol"]), row["requests_s"])
                    row["speed_up"] = row["requests_s"] / start if start else 0.0
                    rows.append(row)
                    print(f"{name:9}{row['protocol']} {processors:3} processors {row['requests_s']:12,.1f} req/s  x{row['speed_up']:5.2f}  "
                          f"{row['cpu_us']:10,.1f} us CPU  p50 {row['p50_ms']:8.2f}  p99 {row['p99_ms']:8.2f} ms  {row['errors']} errors",
                          flush=True)  # fmt: skip
    bare = bare_gpu() if "gpu" in given.ways and has_gpu() else {}
    for size, rate in bare.items():
        print(f"gpu: a loop without a server, batches of {size}: {rate:,.1f} rows/s")
    if given.json:
        given.json.write_text(json.dumps({"rows": rows, "bare_gpu": bare}, indent=1) + "\n")
    if given.plot:
        draw(rows, given.plot)


if __name__ == "__main__":
    main()
