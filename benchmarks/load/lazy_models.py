"""Models that requests load, beside the same models always loaded: what a warm request waits, and what a load costs.

    python benchmarks/load/lazy_models.py [--models 500] [--fit 50] [--requests 3000] [--rate 50]

Both servers get one sequence of requests at one rate, whose models follow a power law (the rank to the power of -1). A request is warm if its model is
among the last `fit` / 2 models that were asked before it, which no server that holds `fit` of them puts away. Only the ratio of the two
columns means anything.
"""

import argparse
import random
import tempfile
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ksrv.client import Client
from ksrv.testing import Server

MODEL_MIB = 4
CONNECTIONS = 64
HANDLER = """
import numpy

from ksrv import BaseHandler, Float32


class Adds(BaseHandler):
    def initialize(self, context):
        self.held = numpy.ones(({mib}, 1 << 20), numpy.uint8)

    def inference(self, x: Float32[1]) -> Float32[1]:
        return x + {number}
"""


def write_models(root: Path, count: int) -> None:
    """Write models of 4 MiB each."""
    for number in range(count):
        folder = root / f"m{number}"
        folder.mkdir()
        (folder / "handler.py").write_text(HANDLER.format(mib=MODEL_MIB, number=number))
        (folder / "model.yaml").write_text("handler: handler.py\nwarmup: false\n")


def warm(numbers: Sequence[int], fit: int) -> list[bool]:
    """Return of each request whether its model is among the last `fit` / 2 that were asked."""
    recent: OrderedDict[int, None] = OrderedDict()
    found = []
    for number in numbers:
        found.append(number in recent)
        recent.pop(number, None)
        recent[number] = None
        if len(recent) > fit // 2:
            recent.popitem(last=False)
    return found


def drive(server: Server, numbers: Sequence[int], rate: float) -> list[float]:
    """Send the requests when they are due; return the milliseconds of each from then."""
    with Client(server.url, timeout=120) as client, ThreadPoolExecutor(CONNECTIONS) as pool:
        begun = time.perf_counter() + 0.5

        def ask(place: int) -> float:
            number = numbers[place]
            began = begun + place / rate
            time.sleep(max(0.0, began - time.perf_counter()))
            answer = client.infer(f"m{number}", {"x": np.ones((1, 1), np.float32)})
            took = time.perf_counter() - began
            assert answer["output"][0, 0] == number + 1
            return took * 1e3

        return list(pool.map(ask, range(len(numbers))))


def loads(server: Server) -> int:
    """Return how many models requests have loaded."""
    import urllib.request

    with urllib.request.urlopen(server.url + "/metrics", timeout=60) as page:
        for line in page.read().decode().splitlines():
            if line.startswith("ksrv_lazy_loads_total "):
                return int(float(line.rpartition(" ")[2]))
    return 0


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--fit", type=int, default=50)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=50)
    given = parser.parse_args()
    draw = random.Random(7)
    weights = [1 / (rank + 1) for rank in range(given.models)]
    numbers = draw.choices(range(given.models), weights, k=given.requests)
    is_warm = np.array(warm(numbers, given.fit))
    columns = {}
    with tempfile.TemporaryDirectory() as root:
        write_models(Path(root), given.models)
        memory = f"{given.fit * MODEL_MIB}M"
        with Server(root, start_timeout=1800) as server:
            columns["always loaded"] = np.array(drive(server, numbers, given.rate))
        with Server(root, model_control="lazy", models_memory=memory) as server:
            columns["lazy"] = np.array(drive(server, numbers, given.rate))
            loaded = loads(server)
    print(f"{given.models} models, memory for {given.fit}, {given.requests} requests at {given.rate:g} a second, "
          f"{int(is_warm.sum())} of them warm; {loaded} loads")  # fmt: skip
    print(f"{'':16}{'warm p50':>12}{'warm p99':>12}{'cold p50':>12}  milliseconds")
    for name, times in columns.items():
        p50, p99 = np.percentile(times[is_warm], [50, 99])
        print(f"{name:16}{p50:12.2f}{p99:12.2f}{np.percentile(times[~is_warm], 50):12.2f}")
    both = [np.percentile(times[is_warm], 99) for times in columns.values()]
    print(f"p99 of warm requests: {both[1] / both[0]:.2f} of always loaded")


if __name__ == "__main__":
    main()
