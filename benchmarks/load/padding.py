"""Requests of different lengths: joined and padded, one by one, and beside a padded loop that is written by hand.

    python benchmarks/load/padding.py [--seconds 4] [--rounds 3] [--clients 16 64]

An encoder in the shape of BERT (two layers of 128, random weights, one CPU thread) answers clients that each send the
token ids of one sentence at a time, to the engine without a network. The lengths are those of the sentences of this
repository's documents. The hand-written loop takes what waits, in two ways: all of it padded to the longest, or sorted
by length and cut where padding goes above its bound; the better one counts. Each is a program of its own, and all of them
run in turns. Targets: 2.5 times the requests a second of one by one, and 0.9 of the loop.
"""

import argparse
import queue
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ksrv._native.memory import buffer_pool
from ksrv.engine.engine import Engine, EngineSettings
from ksrv.repository.layout import Repository
from ksrv.request import InferRequest, Tensor

DOCS = Path(__file__).parents[2] / "docs"
SIZE = 32
WASTE = 0.5
MULTIPLE = 4

ENCODER = """
import torch
from ksrv import BaseHandler


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(
            128, 2, 512, activation="gelu", batch_first=True
        )
        self.words = torch.nn.Embedding(30522, 128)
        self.places = torch.nn.Embedding(512, 128)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids, mask):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        x = self.layers(x, src_key_padding_mask=~mask)
        kept = mask.unsqueeze(2)
        return (x * kept).sum(1) / kept.sum(1)


class Handler(BaseHandler):
    def initialize(self, context):
        self.model = Encoder().eval()
"""
MODEL = """
handler: handler.py
threads: 1
inputs:
  - {{name: ids, datatype: INT64, shape: [-1, -1]{pad}}}
  - {{name: mask, datatype: BOOL, shape: [-1, -1]}}
outputs:
  - {{name: embedding, datatype: FP32, shape: [-1, 128]}}
{batching}
"""
PADDED = MODEL.format(
    pad=f", pad: {{multiple: {MULTIPLE}, mask: mask, waste: {WASTE}}}",
    batching=f"batching: {{max_batch_size: {SIZE}}}",
)
ONE_BY_ONE = MODEL.format(pad="", batching="")

Call = Callable[[np.ndarray], Any]


def sentences() -> list[np.ndarray]:
    """Return ids of random tokens, as many for each sentence of the documents as it has words and marks."""
    found = []
    random = np.random.default_rng(0)
    for page in sorted(DOCS.glob("*.md")):
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n|\|", text):
            length = len(re.findall(r"\w+|[^\w\s]", sentence))
            if length > 1:
                found.append(random.integers(0, 30522, (1, min(length, 512))))
    random.shuffle(found)
    return found


# ---- what answers -----------------------------------------------------------------------------


def engine_call(folder: Path, yaml: str, *, sends_mask: bool) -> Call:
    model = folder / "encoder"
    model.mkdir()
    (model / "model.yaml").write_text(yaml)
    (model / "handler.py").write_text(ENCODER)
    engine = Engine(Repository([model]), EngineSettings())
    engine.start()
    if not engine.ready():
        raise SystemExit(f"the model does not load: {engine.index()}")

    def call(ids: np.ndarray) -> Any:
        tensors = [Tensor("ids", "INT64", ids.shape, ids)]
        if sends_mask:
            tensors.append(Tensor("mask", "BOOL", ids.shape, np.ones(ids.shape, np.bool_)))
        return engine.infer(InferRequest("encoder", inputs=tensors, nbytes=ids.nbytes))

    return call


def loop_call(how: str) -> Call:
    """Return what hands a sentence to a thread that owns the model, and waits for its embedding."""
    import torch

    torch.set_num_threads(1)
    source: dict[str, Any] = {}
    exec(ENCODER, source)  # the loop's network is the handler's
    model = source["Encoder"]().eval()
    waiting: queue.SimpleQueue[tuple[np.ndarray, list[Any], threading.Event]] = queue.SimpleQueue()

    def run(batch: list[tuple[np.ndarray, list[Any], threading.Event]]) -> None:
        longest = -(-max(ids.shape[1] for ids, _, _ in batch) // MULTIPLE) * MULTIPLE
        ids = np.zeros((len(batch), longest), np.int64)
        mask = np.zeros((len(batch), longest), np.bool_)
        for row, (own, _, _) in enumerate(batch):
            ids[row, : own.shape[1]] = own
            mask[row, : own.shape[1]] = True
        with torch.inference_mode():
            found = model(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
        for row, (_, answer, done) in enumerate(batch):
            answer.append(found[row])
            done.set()

    def serve() -> None:
        while True:
            batch = [waiting.get()]
            while len(batch) < SIZE and not waiting.empty():
                batch.append(waiting.get())
            if how == "sorted":
                batch.sort(key=lambda one: one[0].shape[1])
                while batch:
                    shortest = batch[0][0].shape[1]
                    fits = [one for one in batch if shortest >= one[0].shape[1] * (1 - WASTE)]
                    run(fits)
                    batch = batch[len(fits) :]
            else:
                run(batch)

    threading.Thread(target=serve, daemon=True).start()

    def call(ids: np.ndarray) -> Any:
        answer: list[Any] = []
        done = threading.Event()
        waiting.put((ids, answer, done))
        done.wait()
        return answer[0]

    return call


# ---- the clients ------------------------------------------------------------------------------


def rate(call: Call, many: list[np.ndarray], clients: int, seconds: float) -> float:
    """Return the requests a second that so many clients get, one sentence each at a time."""
    done = [0] * clients
    stop = threading.Event()
    ready = threading.Barrier(clients + 1)

    def client(number: int) -> None:
        place = number * 97
        ready.wait()
        while not stop.is_set():
            call(many[place % len(many)])
            place += 1
            done[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    ready.wait()
    time.sleep(seconds / 10)
    before, began = sum(done), time.perf_counter()
    time.sleep(seconds)
    found = (sum(done) - before) / (time.perf_counter() - began)
    stop.set()
    for thread in threads:
        thread.join()
    return found


class Contestant:
    """A program of its own, which answers for as long as it is told and tells its rate."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rates: dict[int, list[float]] = {}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--contestant", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, clients: int, seconds: float) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(clients, seconds, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def contestant(name: str) -> None:
    buffer_pool.tune_malloc()  # as `ksrv serve` does
    many = sentences()
    with tempfile.TemporaryDirectory() as folder:
        if name == "padded":
            call = engine_call(Path(folder), PADDED, sends_mask=False)
        elif name == "one by one":
            call = engine_call(Path(folder), ONE_BY_ONE, sends_mask=True)
        else:
            call = loop_call(name.removeprefix("loop, "))
        for line in sys.stdin:
            clients, seconds = line.split()
            print(rate(call, many, int(clients), float(seconds)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--contestant")
    options = parser.parse_args()
    if options.contestant:
        contestant(options.contestant)
        return
    lengths = np.array([one.shape[1] for one in sentences()])
    quantiles = ", ".join(f"{np.quantile(lengths, q):.0f}" for q in (0.1, 0.5, 0.9, 0.99))
    print(f"{len(lengths)} sentences; lengths at 10, 50, 90 and 99 %: {quantiles}")
    names = ("padded", "one by one", "loop, longest", "loop, sorted")
    all_of_them = [Contestant(name) for name in names]
    for one in all_of_them:
        one.run(4, options.seconds / 4)  # the first calls tune the kernels
    for clients in options.clients:
        for _ in range(options.rounds):
            for one in all_of_them:
                one.rates.setdefault(clients, []).append(one.run(clients, options.seconds))
        found = {one.name: statistics.median(one.rates[clients]) for one in all_of_them}
        shown = ", ".join(f"{name} {value:.0f}" for name, value in found.items())
        print(f"{clients} clients, requests/s: {shown}")
        loop = max(found["loop, longest"], found["loop, sorted"])
        print(
            f"  beside one by one: {found['padded'] / found['one by one']:.2f} (target 2.5); "
            f"beside the better loop: {found['padded'] / loop:.2f} (target 0.9)"
        )
    for one in all_of_them:
        one.close()


if __name__ == "__main__":
    main()
