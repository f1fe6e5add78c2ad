"""A page of plots of a soak's samples."""

from collections.abc import Iterable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from tests.soak.trend import Series


def plot(series: Iterable[Series], seconds: float, warm_up: float, path: Path) -> None:
    """Draw a panel for each thing that was measured, as SVG.

    Args:
        series: The series.
        seconds: How long they are.
        warm_up: The share at their begin that was not judged; it is grey.
        path: The file of the picture.
    """
    listed = list(series)
    panels = list(dict.fromkeys(one.panel for one in listed))
    figure, all_axes = plt.subplots(len(panels), 1, figsize=(10, 3.2 * len(panels)), squeeze=False)
    for axes, panel in zip(all_axes[:, 0], panels, strict=True):
        for one in (one for one in listed if one.panel == panel):
            step = seconds / 60 / max(1, len(one.values))
            points = [
                (at * step, value) for at, value in enumerate(one.values) if value is not None
            ]
            axes.plot(
                *zip(*points, strict=True) if points else ([], []), label=one.name, linewidth=1
            )
        axes.axvspan(0, warm_up * seconds / 60, color="0.93")
        axes.set(ylabel=panel, ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))
    all_axes[-1, 0].set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
