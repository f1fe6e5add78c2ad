"""Requests of different lengths: joined and padded, one by one, and beside a padded loop that is written by hand.

    python benchmarks/load/padding.py [--seconds 4] [--rounds 3] [--clients 16 64]

An encoder in the shape of BERT (two layers of 128, random weights, one CPU thread) answers clients that each send the
token ids of one sentence at a time, over REST and over gRPC, to a server with padding and to one that runs them one by
one. The lengths are taken from the sentences of this repository's documents. The hand-written loop has no network: threads
put sentences into its queue. It takes what waits, in two ways: all of it padded to the longest, or sorted by length and cut
if padding goes above its bound; the better one counts. All of them run in turns. Targets: 2.5 times the requests a
second of one by one, and 0.9 of the loop.
"""

import argparse
import json
import queue
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "peers"))
from calls import ask, grpc_call, v2_binary
from compare import build_client

from ksrv.testing import Server

DOCS = Path(__file__).parents[2] / "docs"
SENTENCES = 512
CHECKED = 16  # whose answers are compared before anything is timed
REST_SECONDS = 0.3  # in which a server forgets the requests of clients that have left
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

    def forward(self, x, mask=None):
        if mask is None:
            mask = torch.ones_like(x, dtype=torch.bool)
        found = self.words(x) + self.places(torch.arange(x.shape[1]))
        found = self.layers(found, src_key_padding_mask=~mask)
        kept = mask.unsqueeze(2)
        return (found * kept).sum(1) / kept.sum(1)


class Handler(BaseHandler):
    def initialize(self, context):
        self.model = Encoder().eval()
"""
MODEL = """
handler: handler.py
threads: 1
outputs: [{name: y, datatype: FP32, shape: [-1, 128]}]
"""
INPUT = "name: x, datatype: INT64, shape: [-1, -1]"
PADDING = f"pad: {{multiple: {MULTIPLE}, mask: mask, waste: {WASTE}}}"
MASK = "{name: mask, datatype: BOOL, shape: [-1, -1]}"
SETTINGS = {
    "padded": f"inputs: [{{{INPUT}, {PADDING}}}, {MASK}]\nbatching: {{max_batch_size: {SIZE}}}\n",
    "one by one": f"inputs: [{{{INPUT}}}]\n",
}

Call = Callable[[np.ndarray], Any]
Rate = Callable[[int, float], float]


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


class Served:
    """A server with the encoder, and the load of `client.cpp` for it.

    Args:
        folder: For the model and the requests.
        settings: Keys of model.yaml, beside the keys that both servers have.
        client: The compiled load generator.
    """

    def __init__(
        self, folder: Path, settings: str, client: Path, many: Sequence[np.ndarray]
    ) -> None:
        model = folder / "models/encoder"
        model.mkdir(parents=True)
        (model / "model.yaml").write_text(MODEL + settings)
        (model / "handler.py").write_text(ENCODER)
        self._client = client
        self._files: dict[str, list[str]] = {"REST": [], "gRPC": []}
        self._checked: list[Any] = []  # calls of both protocols
        for number, x in enumerate(many[:SENTENCES]):
            calls = {
                "REST": v2_binary(x, "/v2/models/encoder/infer"),
                "gRPC": grpc_call(x, "encoder"),
            }
            for protocol, call in calls.items():
                file = folder / f"{protocol}-{number}"
                file.write_bytes(call.file())
                self._files[protocol].append(str(file))
            if number < CHECKED:
                self._checked += calls.values()
        self.server = Server(str(folder / "models"), workers=1)

    def _port(self, is_grpc: bool) -> str:
        return (self.server.grpc if is_grpc else self.server.http).rpartition(":")[2]

    def embeddings(self) -> np.ndarray:
        """Return what the first sentences are answered, all at once and over both protocols."""
        with ThreadPoolExecutor(len(self._checked)) as pool:
            bodies = pool.map(
                lambda call: ask(call, int(self._port(call.is_grpc)), None), self._checked
            )
        pairs = zip(self._checked, bodies, strict=True)
        return np.stack([call.values(body).ravel() for call, body in pairs])

    def rate(self, protocol: str, clients: int, seconds: float) -> float:
        """Return the requests a second that so many clients get, one sentence each at a time."""
        is_grpc = protocol == "gRPC"
        # The calls of one client of gRPC share a connection, as they do in its libraries.
        connections, streams = (1, clients) if is_grpc else (clients, 1)
        done = subprocess.run(
            [self._client, self._port(is_grpc), "grpc" if is_grpc else "http", "plain",
             ",".join(self._files[protocol]), str(connections), str(streams), "closed", str(seconds)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        found = json.loads(done.stdout)
        if found["errors"]:
            raise SystemExit(f"{found['errors']} requests were not answered")
        return float(found["answered"] / found["seconds"])


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
                batch.sort(key=lambda call: call[0].shape[1])
                while batch:
                    shortest = batch[0][0].shape[1]
                    fits = [call for call in batch if shortest >= call[0].shape[1] * (1 - WASTE)]
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


def loop_rate(call: Call, many: list[np.ndarray], clients: int, seconds: float) -> float:
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


class Loop:
    """A loop in a separate program, which runs for a given time and prints its rate."""

    def __init__(self, how: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--loop", how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def rate(self, clients: int, seconds: float) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(clients, seconds, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def run_loop(how: str) -> None:
    many = sentences()
    call = loop_call(how)
    for line in sys.stdin:
        clients, seconds = line.split()
        print(loop_rate(call, many, int(clients), float(seconds)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--loop")
    options = parser.parse_args()
    if options.loop:
        run_loop(options.loop)
        return
    many = sentences()
    lengths = np.array([array.shape[1] for array in many])
    quantiles = ", ".join(f"{np.quantile(lengths, q):.0f}" for q in (0.1, 0.5, 0.9, 0.99))
    print(f"{len(many)} sentences; lengths at 10, 50, 90 and 99 %: {quantiles}")
    rates: dict[str, Rate] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        client = build_client(folder)
        embeddings = []
        for name, settings in SETTINGS.items():
            served = Served(folder / name.replace(" ", "-"), settings, client, many)
            stack.enter_context(served.server)
            embeddings.append(served.embeddings())
            for protocol in ("REST", "gRPC"):
                rates[f"{name}, {protocol}"] = partial(served.rate, protocol)
        padded, one_by_one = embeddings
        np.testing.assert_allclose(padded, one_by_one, atol=1e-4)
        for how in ("longest", "sorted"):
            loop = Loop(how)
            stack.callback(loop.close)
            rates[f"loop, {how}"] = loop.rate
        for rate in rates.values():
            rate(4, options.seconds / 4)  # the first calls tune the kernels
        for clients in options.clients:
            rounds: dict[str, list[float]] = {name: [] for name in rates}
            for _ in range(options.rounds):
                for name, rate in rates.items():
                    rounds[name].append(rate(clients, options.seconds))
                    time.sleep(REST_SECONDS)
            show(clients, {name: statistics.median(found) for name, found in rounds.items()})


def show(clients: int, found: dict[str, float]) -> None:
    """Print the rates of so many clients and the ratios that have targets."""
    shown = ", ".join(f"{name} {value:.0f}" for name, value in found.items())
    print(f"{clients} clients, requests/s: {shown}")
    loop = max(found["loop, longest"], found["loop, sorted"])
    for protocol in ("REST", "gRPC"):
        padded = found[f"padded, {protocol}"]
        print(
            f"  {protocol}: beside one by one: {padded / found[f'one by one, {protocol}']:.2f} (target 2.5); "
            f"beside the better loop: {padded / loop:.2f} (target 0.9)"
        )


if __name__ == "__main__":
    main()
