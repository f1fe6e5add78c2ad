"""Batches on a GPU: out of pageable and pinned memory, eager and recorded, beside a bare loop over torch.

    python benchmarks/core/bench_cuda.py

It skips without a GPU. The ratios are of one run: the ways take turns, and each time is the median.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS = 300

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        width, layers = {width}, []
        for _ in range({depth}):
            layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*layers)
    def forward(self, x):
        return self.layers(x)
"""


def main() -> int:
    """Print a table; return the exit status."""
    try:
        import torch
    except ModuleNotFoundError:
        print("skipped: torch is not installed")
        return 0
    if not torch.cuda.is_available():
        print("skipped: no CUDA device")
        return 0
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, {ROUNDS} rounds, medians")
    print(
        "copies: there and back, a wait at the end; microseconds, and the ratio to pageable memory"
    )
    for nbytes in (64 << 10, 602_112, 8 * 602_112, 32 * 602_112):
        print_row(f"{nbytes:>12,} B", copies(nbytes))
    print("a batch: ksrv's runner beside a bare loop; microseconds, and the ratio to that loop")
    for rows, width, depth in ((1, 256, 8), (8, 256, 32), (8, 4096, 4), (32, 16384, 2)):
        print_row(f"{rows} x {width}, {depth} layers", batches(rows, width, depth))
    return 0


def print_row(label: str, times: dict[str, float]) -> None:
    """Print the times of some ways, and their ratios to the first."""
    first = next(iter(times.values()))
    shown = (f"{name} {taken:8.1f} ({taken / first:4.2f}x)" for name, taken in times.items())
    print(f"  {label:>22}: {'   '.join(shown)}", flush=True)


def medians(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the median time of each way in microseconds; they take turns."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        for _ in range(20):
            way()
    for _ in range(ROUNDS):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) * 1e6 for name, times in taken.items()}


def copies(nbytes: int) -> dict[str, float]:
    """Time an array's way to the device and back."""
    import torch

    from ksrv._native.memory import buffer_pool
    from ksrv.handlers.devices.cuda import CudaDevice

    device = CudaDevice("cuda:0")
    pageable = np.random.default_rng(0).integers(0, 255, nbytes, dtype=np.uint8)
    leased = buffer_pool.array(buffer_pool.lease(nbytes, pages=True), "<u1", (nbytes,))
    leased[:] = pageable
    target = torch.device("cuda:0")

    def plain() -> None:
        torch.from_numpy(pageable).to(target).cpu()

    def of(array: np.ndarray[Any, Any]) -> Callable[[], None]:
        def run() -> None:
            with device.running():
                device.fetch(device.put(array))

        return run

    return medians({"pageable": plain, "ksrv, pageable": of(pageable), "ksrv, pinned": of(leased)})


def batches(rows: int, width: int, depth: int) -> dict[str, float]:
    """Time batches of a network of linear layers."""
    import torch

    from ksrv._native.memory import buffer_pool
    from ksrv.handlers.runner import Runner
    from ksrv.model.config import ModelSource
    from ksrv.repository.model_yaml import load_model_config
    from ksrv.request import ExecutorInputs, RequestPart, Tensor

    def runner_of(folder: Path, graphs: bool) -> Runner:
        folder.mkdir()
        (folder / "net.py").write_text(NET.format(width=width, depth=depth))
        text = f"class: net.py:Net\ndevice: cuda:0\ncuda_graphs: {str(graphs).lower()}\n"
        (folder / "model.yaml").write_text(text)
        config = load_model_config(folder)
        source = ModelSource(
            name=folder.name, version="", folder=folder, root=folder, config=config
        )
        runner = Runner(source)
        runner.load()
        return runner

    def batch_of(array: np.ndarray[Any, Any]) -> ExecutorInputs:
        tensor = Tensor("x", "FP32", array.shape, array)
        return ExecutorInputs({"x": tensor}, rows, [RequestPart(slice(0, rows), "")])

    with tempfile.TemporaryDirectory() as temporary:
        eager = runner_of(Path(temporary) / "eager", graphs=False)
        graphed = runner_of(Path(temporary) / "graphed", graphs=True)
        model = eager.handler.model
        pageable = np.random.default_rng(0).random((rows, width), dtype=np.float32)
        for runner in (eager, graphed):
            runner.run(batch_of(pageable))
        leased = buffer_pool.array(eager.lease(pageable.nbytes), "<f4", pageable.shape)
        leased[:] = pageable

        def bare() -> None:
            with torch.inference_mode():
                model(torch.from_numpy(pageable).to("cuda:0")).cpu().numpy()

        times = medians(
            {
                "bare": bare,
                "ksrv, alone": lambda: eager.run(batch_of(pageable)),
                "ksrv, joined": lambda: eager.run(batch_of(leased)),
                "ksrv, graphs": lambda: graphed.run(batch_of(leased)),
            }
        )
        for runner in (eager, graphed):
            runner.close()
    return times


if __name__ == "__main__":
    sys.exit(main())
