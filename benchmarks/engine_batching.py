"""Two promises of the engine that need a model at work: batching costs nothing, overload neither.

    python benchmarks/engine_batching.py [--seconds 10] [--rounds 3] [batching] [overload]

`batching`: a ResNet-18 of seeded weights, written in plain torch, answers 16 clients that each send
one 224x224 FP32 image at a time. Images per second are set beside a bare loop over the same model
at its best batch size, in interleaved rounds; and images per CPU second, which tell more where other
work shares the machine. Target: at least 0.97 of the loop.

`overload`: a handler that sleeps 20 ms is offered ten times what it can do. Goodput is set beside
the capacity that a closed loop reaches, and the time that refusals take is told. Targets: at least
0.90 of the capacity, and 10 ms at the 99th percentile.
"""

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

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


def loop_rate(model, image: np.ndarray, size: int, seconds: float) -> tuple[float, float]:
    """Images per second and per CPU second of the model alone, called with one ready batch."""
    import torch

    batch = torch.from_numpy(np.repeat(image, size, 0))
    done, began, spent = 0, time.perf_counter(), time.process_time()
    with torch.inference_mode():
        while time.perf_counter() - began < seconds:
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
            engine.infer(request("resnet", mine))
            done[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    ready.wait()
    time.sleep(seconds / 10)  # the first batches are small ones
    before, began, spent = sum(done), time.perf_counter(), time.process_time()
    time.sleep(seconds)
    images = sum(done) - before
    rates = images / (time.perf_counter() - began), images / (time.process_time() - spent)
    stop.set()
    for thread in threads:
        thread.join()
    return rates


def batching(folder: Path, seconds: float, rounds: int) -> None:
    source: dict[str, object] = {}
    exec(RESNET, source)  # the loop's network is the handler's
    model = source["network"]()  # type: ignore[operator]
    image = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
    loop_rate(model, image, SIZES[-1], seconds / 4)  # the first calls tune the kernels
    rates = {size: loop_rate(model, image, size, seconds / 2)[1] for size in SIZES}
    best = max(rates, key=lambda size: rates[size])
    print("bare loop, images per CPU second:", {size: round(r, 1) for size, r in rates.items()})
    more = f"batching: {{max_batch_size: {best}}}"
    engine = started(folder, "resnet", RESNET, "[-1, 3, 224, 224]", more)
    walls, cpus = [], []
    for _ in range(rounds):
        loop, loop_cpu = loop_rate(model, image, best, seconds)
        served, served_cpu = engine_rate(engine, image, seconds)
        walls.append(served / loop)
        cpus.append(served_cpu / loop_cpu)
        print(
            f"  loop {loop:6.1f}/s, {loop_cpu:5.1f} per CPU second   "
            f"engine {served:6.1f}/s, {served_cpu:5.1f}   "
            f"ratios {walls[-1]:.3f}, {cpus[-1]:.3f}"
        )
    sizes = {one.batch_size: one.compute_infer.count for one in engine.statistics()[0].batches}
    print(f"batch sizes formed: {sizes}")
    wall, cpu = statistics.median(walls), statistics.median(cpus)
    print(f"medians of {rounds} rounds: wall {wall:.3f} (target 0.97), CPU {cpu:.3f}")
    engine.close()


# ---- overload ---------------------------------------------------------------------------------


def overload(folder: Path, seconds: float) -> None:
    more = "batching: {max_batch_size: 8}\nqueue_size: 32\ntimeout_ms: 2000"
    engine = started(folder, "sleeper", SLEEPER, "[-1, 4]", more)
    data = np.ones((1, 4), np.float32)
    one = request("sleeper", data)

    stop = threading.Event()
    done = [0] * 24

    def closed(number: int) -> None:
        while not stop.is_set():
            engine.infer(request("sleeper", data))
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
            accepted.append(engine.submit(one))
        except Overloaded:
            refusals.append(time.perf_counter() - now)
    for ticket in accepted:
        ticket.wait()
    goodput = len(accepted) / (time.perf_counter() - began)
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not options.parts or "overload" in options.parts:
            overload(Path(folder), options.seconds)
        if not options.parts or "batching" in options.parts:
            batching(Path(folder), options.seconds, options.rounds)


if __name__ == "__main__":
    main()
