"""Latency of a small request beside a model whose handler computes in Python, and so keeps the GIL.

    python benchmarks/load/busy_handlers.py [--seconds 4]

A client asks W1 every 20 ms. Meanwhile four clients keep another model busy, one request after the other. The table
has the client's median and 99th percentile alone, and beside one and two instances of handlers that take 0.3, 1.5 and
15 ms on a quiet machine, and how often the busy handler ran in a second.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "grpc"))
from hostile_peers import Ask, rest_client
from servers import write_models

from ksrv.client import Client
from ksrv.testing import Server

HANDLER = """
from ksrv import BaseHandler


class Busy(BaseHandler):
    def inference(self, x):
        total = 0
        for number in range({steps}):
            total += number & 7
        return {{"y": x + (total & 1)}}
"""
MODEL = """
handler: handler.py
timeout_ms: 60000
inputs: [{{name: x, datatype: FP32, shape: [-1, 16]}}]
outputs: [{{name: y, datatype: FP32, shape: [-1, 16]}}]
instances: {instances}
batching: {{max_batch_size: 1, max_delay_ms: 0}}
"""
STEPS = {"0.3 ms": 10_000, "1.5 ms": 50_000, "15 ms": 500_000}
CLIENTS = 4
PERIOD_S = 0.02


def keep_busy(address: str, model: str) -> None:
    """Ask a model again and again."""
    import numpy as np

    with Client(address) as client:
        while True:
            client.infer(model, {"x": np.zeros((1, 16), np.float32)})


def latencies(ask: Ask, seconds: float) -> tuple[float, float]:
    """Return the median and the 99th percentile, in milliseconds."""
    found = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        ask()
        found.append(1e3 * (time.perf_counter() - began))
        time.sleep(max(0.0, began + PERIOD_S - time.perf_counter()))
    found.sort()
    return found[len(found) // 2], found[len(found) * 99 // 100]


def runs(client: Client, model: str) -> int:
    """Return how often a model has run."""
    [found] = client.statistics(model)
    return int(found["execution_count"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=4)
    given = parser.parse_args()
    start = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="ksrv-busy-") as name:
        folder = Path(name)
        write_models(folder)
        for index, steps in enumerate(STEPS.values()):
            for instances in (1, 2):
                busy = folder / f"busy-{index}-{instances}"
                busy.mkdir()
                (busy / "handler.py").write_text(HANDLER.format(steps=steps))
                (busy / "model.yaml").write_text(MODEL.format(instances=instances))
        with Server(folder) as server:
            ask = rest_client(server.http, None)
            watcher = Client(server.http)
            print(f"{'beside':20} {'median, ms':>11} {'p99, ms':>9} {'busy runs/s':>12}")
            print("{:20} {:11.2f} {:9.2f}".format("nothing", *latencies(ask, given.seconds)))
            for index, title in enumerate(STEPS):
                for instances in (1, 2):
                    model = f"busy-{index}-{instances}"
                    arguments = (server.http, model)
                    clients = [start.Process(target=keep_busy, args=arguments, daemon=True) for _ in range(CLIENTS)]  # fmt: skip
                    for client in clients:
                        client.start()
                    time.sleep(1.5)  # until all have imported what they need
                    before, began = runs(watcher, model), time.perf_counter()
                    row = latencies(ask, given.seconds)
                    rate = (runs(watcher, model) - before) / (time.perf_counter() - began)
                    if not all(client.is_alive() for client in clients):
                        raise RuntimeError(f"a client of {model} ended, so the model was less busy")
                    for client in clients:
                        client.terminate()
                        client.join()
                    print(
                        "{:20} {:11.2f} {:9.2f} {:12.0f}".format(
                            f"{title}, {instances} inst.", *row, rate
                        ),
                        flush=True,
                    )


if __name__ == "__main__":
    main()
