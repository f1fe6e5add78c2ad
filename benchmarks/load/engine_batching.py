"""Two promises of the engine that need a model at work: batching costs nothing, overload neither.

    python benchmarks/load/engine_batching.py [--seconds 10] [--rounds 3] [batching] [overload]

`batching`: a ResNet-18 of seeded weights, written in plain torch, answers 16 clients that each send
one 224x224 FP32 image at a time. Images per second are set beside a bare loop over the same model
at its best batch size, in interleaved rounds; and images per CPU second, which mean more if other
work shares the machine. Each is a separate program. Target: at least 0.97 of the loop.

`overload`: a handler that sleeps 20 ms is offered ten times what it can do. Goodput is compared with
the capacity that a closed loop reaches, and the time of refusals is printed. Targets: at least
0.90 of the capacity, and 10 ms at the 99th percentile.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from ksrv._native.memory import buffer_pool
from ksrv.engine.engine import Engine, EngineSettings
from ksrv.errors import Overloaded
from ksrv.repository.layout import Repository
from ksrv.request import InferRequest, Tensor

CLIENTS = 16
SIZES = (1, 2, 4, 8, 16)

RESNET = """
import torch
from torch import nn
from ksrv import BaseHandler


class Block(nn.Module):
    def __init__(self, width_in, width, stride):
        super().__init__()
        self.first = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.short = nn.Identity()
        if stride != 1 or width_in != width:
            self.short = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x):
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.short(x))


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    before = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(before, width, stride), Block(width, width, 1)]
        before = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*layers).eval()


class Handler(BaseHandler):
    def initialize(self, context):
        self.model = network()

    def handle(self, batch, context):
        with torch.inference_mode():
            return self.model(batch.tensor("x"))
"""

SLEEPER = """
import time
from ksrv import BaseHandler


class Handler(BaseHandler):
    def handle(self, batch, context):
        time.sleep(0.02)
        return batch["x"]
"""

MODEL = """
handler: handler.py
inputs:
  - {{name: x, datatype: FP32, shape: {shape}}}
{more}
"""


def started(folder: Path, name: str, handler: str, shape: str, more: str) -> Engine:
    model = folder / name
    model.mkdir()
    (model / "model.yaml").write_text(MODEL.format(shape=shape, more=more))
    (model / "handler.py").write_text(handler)
    engine = Engine(Repository([model]), EngineSettings())
    engine.start()
    if not engine.ready():
        raise SystemExit(f"the model does not load: {engine.index()}")
    return engine


def request(name: str, data: np.ndarray) -> InferRequest:
    tensors = [Tensor("x", "FP32", data.shape, data)]
    return InferRequest(name, inputs=tensors, nbytes=data.nbytes)


# ---- batching ---------------------------------------------------------------------------------


class Contestant:
    """A program that runs the model for a given time and prints its rates.

    Each contestant is a separate program, because threads that call torch in one process slow each other down: each
    has a pool of threads, and OpenMP lets the threads of many pools wait less actively.

    Args:
        name: Its name in the table.
        arguments: The arguments after `--contestant`.
    """

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self.rates: list[tuple[float, float]] = []
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--contestant", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, seconds: float) -> tuple[float, float]:
        """Return images per second and per CPU second."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(seconds, file=self._process.stdin, flush=True)
        rate, per_cpu = map(float, self._process.stdout.readline().split())
        return rate, per_cpu

    def note(self, seconds: float) -> None:
        """Run, and keep the rates."""
        self.rates.append(self.run(seconds))

    def close(self) -> None:
        """Return once the program has ended."""
        self._process.communicate()


def contestant(what: str, size: int, how: str) -> None:
    """Be one: read seconds from standard input, write rates to standard output."""
    image = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
    if what == "loop":
        if how == "kept":
            buffer_pool.tune_malloc(kept_bytes=1 << 30, no_mmap=True)
        model = network()
        if how == "two-pools":
            called = threading.Event()

            def call_once() -> None:
                loop_rate(model, image, size, 0)
                called.set()
                threading.Event().wait()  # the pool lives as long as its thread

            threading.Thread(target=call_once, daemon=True).start()
            called.wait()
        for line in sys.stdin:
            print(*loop_rate(model, image, size, float(line)), flush=True)
        return
    buffer_pool.tune_malloc()  # as `ksrv serve` does
    more = f"batching: {{max_batch_size: {size}}}\nexecutor: {how}"
    with tempfile.TemporaryDirectory() as folder:
        engine = started(Path(folder), "resnet", RESNET, "[-1, 3, 224, 224]", more)
        for line in sys.stdin:
            print(*engine_rate(engine, image, float(line)), flush=True)
        engine.close()


def network() -> Any:
    source: dict[str, object] = {}
    exec(RESNET, source)  # the loop's network is the handler's
    return source["network"]()  # type: ignore[operator]


def loop_rate(model: Any, image: np.ndarray, size: int, seconds: float) -> tuple[float, float]:
    """Images per second and per CPU second of the model alone, called with one ready batch."""
    import torch

    batch = torch.from_numpy(np.repeat(image, size, 0))
    done, began, spent = 0, time.perf_counter(), time.process_time()
    with torch.inference_mode():
        while not done or time.perf_counter() - began < seconds:
            model(batch)
            done += size
    return done / (time.perf_counter() - began), done / (time.process_time() - spent)


def engine_rate(engine: Engine, image: np.ndarray, seconds: float) -> tuple[float, float]:
    """Images per second and per CPU second that 16 clients get, one image each at a time."""
    done = [0] * CLIENTS
    stop = threading.Event()
    ready = threading.Barrier(CLIENTS + 1)

    def client(number: int) -> None:
        mine = image.copy()
        ready.wait()
        while not stop.is_set():
            engine.submit(request("resnet", mine)).wait()
            done[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    ready.wait()
    time.sleep(seconds / 10)  # the first batches are small
    before, began, spent = sum(done), time.perf_counter(), cpu_seconds()
    time.sleep(seconds)
    images = sum(done) - before
    rates = images / (time.perf_counter() - began), images / (cpu_seconds() - spent)
    stop.set()
    for thread in threads:
        thread.join()
    return rates


def cpu_seconds() -> float:
    """CPU time of this process and of the running processes that it has started."""
    ticks = 0
    own = os.getpid()
    children = Path(f"/proc/{own}/task").glob("*/children")
    for pid in [own, *(int(pid) for child in children for pid in child.read_text().split())]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def batching(seconds: float, rounds: int) -> None:
    loops = {size: Contestant("bare loop", "loop", str(size)) for size in SIZES}
    for measured in loops.values():
        measured.run(seconds / 8)  # the first calls tune the kernels
    alone = {size: measured.run(seconds / 2)[0] for size, measured in loops.items()}
    best = max(alone, key=lambda size: alone[size])
    print("bare loop, images/s by batch size:", {size: round(r, 1) for size, r in alone.items()})
    for size in SIZES:
        if size != best:
            loops[size].close()
    loop = loops[best]
    others = [
        Contestant("engine, inline", "engine", str(best), "inline"),
        Contestant("engine, process", "engine", str(best), "process"),
        # The loop with the engine's settings of malloc, which spare page faults.
        Contestant("bare loop, memory kept", "loop", str(best), "kept"),
        # The cost of another thread that has called the model once and now sleeps.
        Contestant("bare loop, two pools", "loop", str(best), "two-pools"),
    ]
    for measured in others:
        measured.run(seconds / 4)
    for _ in range(rounds):
        for measured in (loop, *others):
            measured.note(seconds)
    print(f"{'16 clients, batches of ' + str(best):<26}{'images/s':>9}{'ratio':>7}{'spread':>13}"
          f"{'per CPU s':>11}{'ratio':>7}")  # fmt: skip
    base = [statistics.median(column) for column in zip(*loop.rates, strict=True)]
    for measured in (loop, *others):
        rate, per_cpu = (statistics.median(column) for column in zip(*measured.rates, strict=True))
        each = [rates[0] / base[0] for rates in measured.rates]
        print(f"{measured.name:<26}{rate:>9.1f}{rate / base[0]:>7.2f}{min(each):>8.2f}-{max(each):.2f}"
              f"{per_cpu:>11.1f}{per_cpu / base[1]:>7.2f}")  # fmt: skip
        measured.close()
    print("target: 0.97 of the bare loop")


# ---- overload ---------------------------------------------------------------------------------


def overload(folder: Path, seconds: float) -> None:
    more = "batching: {max_batch_size: 8}\nqueue_size: 32\ntimeout_ms: 2000"
    engine = started(folder, "sleeper", SLEEPER, "[-1, 4]", more)
    data = np.ones((1, 4), np.float32)
    ask = request("sleeper", data)

    stop = threading.Event()
    done = [0] * 24

    def closed(number: int) -> None:
        while not stop.is_set():
            engine.submit(request("sleeper", data)).wait()
            done[number] += 1

    threads = [threading.Thread(target=closed, args=(number,)) for number in range(len(done))]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    before, began = sum(done), time.perf_counter()
    time.sleep(seconds)
    capacity = (sum(done) - before) / (time.perf_counter() - began)
    stop.set()
    for thread in threads:
        thread.join()

    offered, accepted = 10 * capacity, []
    refusals: list[float] = []
    began = time.perf_counter()
    due = began
    while due - began < seconds:
        now = time.perf_counter()
        if now < due:
            time.sleep(min(due - now, 0.001))
            continue
        due += 1 / offered
        try:
            accepted.append(engine.submit(ask))
        except Overloaded:
            refusals.append(time.perf_counter() - now)
    offering = time.perf_counter() - began  # one thread may offer less than it was to
    for handle in accepted:
        handle.wait()
    goodput = len(accepted) / (time.perf_counter() - began)
    offered = (len(accepted) + len(refusals)) / offering
    refusals.sort()
    worst = refusals[int(len(refusals) * 0.99)] * 1e3 if refusals else 0.0
    print(f"capacity {capacity:.0f}/s, offered {offered:.0f}/s, goodput {goodput:.0f}/s")
    print(f"goodput / capacity: {goodput / capacity:.3f}   (target 0.90)")
    print(f"refusals: {len(refusals)}, p99 {worst:.3f} ms   (target 10 ms)")
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("parts", nargs="*", metavar="batching|overload")
    parser.add_argument("--contestant", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        what, size, how = [*options.contestant, ""][:3]
        contestant(what, int(size), how)
        return
    with tempfile.TemporaryDirectory() as folder:
        if not options.parts or "overload" in options.parts:
            overload(Path(folder), options.seconds)
        if not options.parts or "batching" in options.parts:
            batching(options.seconds, options.rounds)


if __name__ == "__main__":
    main()
