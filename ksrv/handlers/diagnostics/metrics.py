"""Values that handlers report: `context.metrics`.

A value is passed as a `MetricRecord` to the function `emit` of the runner, and from there to the
metrics page: directly from an inline handler, over the socket from a handler process.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

from ksrv.statistics import MetricRecord

Emit: TypeAlias = Callable[[MetricRecord], None]


def discard(record: MetricRecord) -> None:
    """Drop a record; for handlers without a metrics page."""


def own_labels(model: str, version: str) -> tuple[tuple[str, str], ...]:
    """Return the labels with which every metric of a model begins."""
    return (("model", model), ("version", version))


class Metrics:
    """The metrics that a handler reports; each has the labels `model` and `version`.

    Args:
        model: The name of the model.
        version: The version of the model, or "".
        emit: Takes each record.
    """

    def __init__(self, model: str, version: str, emit: Emit = discard) -> None:
        self._labels = own_labels(model, version)
        self._emit = emit

    def counter(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Add to a counter.

        Raises:
            ValueError: The value is negative or not finite.
        """
        _check_finite("counter", name, value)
        if value < 0:
            raise ValueError(f"the counter {name!r} cannot fall by {-value:g}")
        self._report(name, "counter", value, labels)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge. Any value is allowed, because the next value replaces it."""
        self._report(name, "gauge", value, labels)

    def histogram(self, name: str, value: float, **labels: str) -> None:
        """Observe a value of a distribution.

        Raises:
            ValueError: The value is not finite.
        """
        _check_finite("histogram", name, value)
        self._report(name, "histogram", value, labels)

    def _report(self, name: str, kind: str, value: float, labels: dict[str, str]) -> None:
        extra = tuple((key, str(text)) for key, text in labels.items())
        self._emit(
            MetricRecord(name, kind, unit="", value=float(value), labels=self._labels + extra)
        )


def _check_finite(kind: str, name: str, value: float) -> None:
    """Refuse NaN and infinity, because a sum would keep them until the server ends."""
    if not math.isfinite(value):
        raise ValueError(
            f"the {kind} {name!r} cannot take {value}, which would stay in the sum for ever"
        )
