"""Draws the latencies of loads: which share of the requests took longer than each latency."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ksrv.client.tensors import Array

FORMATS = (".pdf", ".png", ".svg")
_TICKS = (1.0, 0.1, 0.01, 0.001, 0.0001)


def draw(loads: Mapping[str, Array], path: Path, title: str) -> None:
    """Draw a line for each load, with both axes logarithmic, so that the slowest requests can be read.

    Args:
        loads: Milliseconds of each request, by the name of the load.
        path: The picture; its suffix is one of FORMATS.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure((8, 5), layout="constrained")
    axes = figure.add_subplot()
    for name, latencies in loads.items():
        slower = 1 - np.arange(len(latencies)) / len(latencies)
        axes.step(np.sort(latencies), slower, where="post", label=name)
    axes.set(title=title, xlabel="latency in milliseconds", xscale="log", yscale="log")
    axes.set_yticks(_TICKS, ["all", "10 %", "1 % (p99)", "0.1 %", "0.01 %"])
    axes.set_ylabel("requests that took longer")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
