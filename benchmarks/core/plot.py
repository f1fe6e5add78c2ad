"""Draws the native core's promises as bars: how much of each target's time is used.

    python benchmarks/core/plot.py benchmarks/results/core.json benchmarks/results/core.png

A bar that ends left of the line at 1 meets its target. `ratios.py` computes the numbers.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from ratios import Verdict, read, shown, verdicts


def label(verdict: Verdict) -> str:
    """Return what one bar measures."""
    against = f"{verdict.way} / {verdict.other}" if verdict.other else verdict.way
    return f"{verdict.group}: {against}"


def draw(found: list[Verdict], path: Path) -> None:
    """Write the picture.

    Args:
        found: The measured rows, top to bottom.
        path: The PNG.
    """
    used = [verdict.ratio / verdict.most for verdict in found]
    figure, axes = pyplot.subplots(figsize=(12, 0.24 * len(found) + 1), layout="constrained")
    colours = ["#2a7f62" if verdict.met else "#b5452c" for verdict in found]
    bars = axes.barh([label(verdict) for verdict in found], used, color=colours)
    texts = [
        f"{verdict.ratio:.2f} of {verdict.most:.2f}"
        if verdict.other
        else f"{shown(verdict.seconds)} of {shown(verdict.most)}"
        for verdict in found
    ]
    axes.bar_label(bars, texts, padding=3, fontsize=8)
    axes.axvline(1, color="black", linewidth=1, zorder=0)
    axes.set_xlim(0, max(1.2, *used) * 1.12)
    axes.set_xlabel("share of the target's time (less is better; 1 is the target)")
    axes.tick_params(axis="y", labelsize=8)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90)


def main() -> None:
    """Draw the picture of one result."""
    parser = argparse.ArgumentParser(description="Draw the native core's ratios.")
    parser.add_argument("result", type=Path, help="the JSON that pytest-benchmark wrote")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    given = parser.parse_args()
    found = [verdict for verdict in verdicts(read(given.result)) if isinstance(verdict, Verdict)]
    if not found:
        parser.error(f"{given.result} holds none of the benchmarks that have targets")
    draw(found, given.picture)
    print(f"wrote {given.picture}")


if __name__ == "__main__":
    main()
