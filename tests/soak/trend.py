"""Whether a series of measurements grows."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

BLOCKS = 9
"""Parts of a series whose medians are compared: noise within a part says nothing about growth."""
RISING = 28
"""Of the 36 pairs of parts, how many more must rise than fall: by chance one series in eight hundred does."""


@dataclass
class Series:
    """Measurements of one thing.

    Attributes:
        panel: The measured quantity; series of one panel are drawn together.
        name: Of what it is measured.
        allowed: By how much it may grow during the run.
        share: The same as a share of its median; the larger of the two counts.
        values: The measurements, None for nothing to measure.
    """

    panel: str
    name: str
    allowed: float
    share: float = 0.0
    values: list[float | None] = field(default_factory=list)


def growth(values: Sequence[float]) -> float:
    """Return by how much a series grows from its begin to its end; 0 if it does not rise steadily.

    Args:
        values: At least as many as there are blocks.
    """
    size = len(values) / BLOCKS
    medians = [
        statistics.median(values[round(at * size) : round((at + 1) * size)]) for at in range(BLOCKS)
    ]
    pairs = list(itertools.combinations(range(BLOCKS), 2))
    rising = sum((medians[b] > medians[a]) - (medians[b] < medians[a]) for a, b in pairs)
    if rising < RISING:
        return 0.0
    slope = statistics.median((medians[b] - medians[a]) / (b - a) for a, b in pairs)
    return slope * (BLOCKS - 1)


def growing(series: Sequence[Series], warm_up: float) -> list[str]:
    """Return a sentence for each series that grows by more than it may.

    Args:
        series: The series.
        warm_up: The share of each that is not looked at, because pools and caches fill then.
    """
    found = []
    for one in series:
        judged = [
            value for value in one.values[int(len(one.values) * warm_up) :] if value is not None
        ]
        if len(judged) < BLOCKS:
            continue
        grown = growth(judged)
        allowed = max(one.allowed, one.share * statistics.median(judged))
        if grown > allowed:
            found.append(
                f"{one.panel} of {one.name} grows: {grown:+.1f} while {judged[0]:.1f} was measured first "
                f"and {judged[-1]:.1f} last; {allowed:.1f} are allowed"
            )
    return found
