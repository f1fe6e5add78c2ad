"""MetricFamily and Metric: counters, gauges and histograms of a model, which ksrv's metrics page shows.

Each change is sent to the worker as a `MetricRecord`. The values are also kept in this process, for `Metric.value`.
"""

import math
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from ksrv.dialects.triton.python_backend.api.errors import TritonModelException
from ksrv.dialects.triton.python_backend.api.model import running_model
from ksrv.statistics import MetricRecord

Labels = tuple[tuple[str, str], ...]


class MetricKind(Enum):
    """The kinds of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass
class _Family:
    """The state that all families of one name share.

    Attributes:
        values: The values of this process by labels.
    """

    kind: MetricKind
    description: str
    values: dict[Labels, float] = field(default_factory=dict)


_families: dict[str, _Family] = {}
_lock = threading.Lock()


class MetricFamily:
    """The metrics of one name.

    Args:
        name: The name on the page.
        description: The help text. If several families have one name, the first description counts.
        kind: COUNTER, GAUGE or HISTOGRAM.

    Raises:
        TritonModelException: The name is used for another kind.
    """

    COUNTER: ClassVar[MetricKind] = MetricKind.COUNTER
    GAUGE: ClassVar[MetricKind] = MetricKind.GAUGE
    HISTOGRAM: ClassVar[MetricKind] = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        kind = MetricKind(kind)
        with _lock:
            known = _families.setdefault(name, _Family(kind, description))
        if known.kind is not kind:
            raise TritonModelException(
                f"Error when creating MetricFamily: {name!r} is a {known.kind.value}, and cannot be a {kind.value} too"
            )
        self.name = name
        self.kind = kind

    def Metric(  # noqa: N802  the backend's name
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> "Metric":
        """Return the metric with these labels; the same labels give the same values.

        Args:
            labels: Names and values.
            buckets: The upper bounds of a histogram in ascending order. They are checked as in Triton, but ksrv uses
                fixed bounds.

        Raises:
            TritonModelException: The buckets are missing, not in order, or not wanted.
        """
        if self.kind is MetricKind.HISTOGRAM:
            if buckets is None or any(
                low >= high for low, high in zip(buckets, list(buckets)[1:], strict=False)
            ):
                raise TritonModelException(
                    f"Error when creating Metric: the histogram {self.name!r} needs buckets in ascending order, each once"
                )
        elif buckets is not None:
            raise TritonModelException(
                f"Error when creating Metric: the {self.kind.value} {self.name!r} has no buckets"
            )
        return Metric(self, labels or {})


class Metric:
    """One metric of a family; `MetricFamily.Metric` makes them.

    Args:
        family: The family. As in Triton, the metric fails after the model has dropped the family.
        labels: Names and values.
    """

    def __init__(self, family: MetricFamily, labels: Mapping[str, str]) -> None:
        self._family = weakref.ref(family)
        self._labels: Labels = tuple((str(name), str(value)) for name, value in labels.items())
        with _lock:
            values = _families[family.name].values
            is_new = self._labels not in values
            values.setdefault(self._labels, 0.0)
        if is_new and family.kind is not MetricKind.HISTOGRAM:
            self._report(family, 0.0)

    def _require(self, action: str, *kinds: MetricKind) -> MetricFamily:
        """Return the family, if it still lives and is of one of these kinds.

        Args:
            action: The action that fails otherwise, for the error text.
        """
        family = self._family()
        if family is None:
            raise TritonModelException(
                f"Failed to {action}: Invalid metric operation as the corresponding 'MetricFamily' has been deleted."
            )
        if family.kind not in kinds:
            raise TritonModelException(
                f"Failed to {action}: the {family.kind.value} {family.name!r} does not support it"
            )
        return family

    def increment(self, value: float) -> None:
        """Add to a counter or gauge.

        Args:
            value: The amount, which must not be negative for a counter.

        Raises:
            TritonModelException: The metric is a histogram, or the amount is not allowed.
        """
        action = "increment metric value"
        family = self._require(action, MetricKind.COUNTER, MetricKind.GAUGE)
        if family.kind is MetricKind.COUNTER and not (value >= 0 and math.isfinite(value)):
            raise TritonModelException(
                f"Failed to {action}: the counter {family.name!r} cannot grow by {value}"
            )
        with _lock:
            values = _families[family.name].values
            values[self._labels] += value
            # A record has the increment of a counter, or the value of a gauge.
            reported = value if family.kind is MetricKind.COUNTER else values[self._labels]
        self._report(family, reported)

    def set(self, value: float) -> None:
        """Set a gauge.

        Args:
            value: The new value.

        Raises:
            TritonModelException: The metric is not a gauge.
        """
        family = self._require("set metric value", MetricKind.GAUGE)
        with _lock:
            _families[family.name].values[self._labels] = float(value)
        self._report(family, value)

    def observe(self, value: float) -> None:
        """Count a value of a histogram.

        Args:
            value: The value.

        Raises:
            TritonModelException: The metric is not a histogram.
        """
        family = self._require("observe metric value", MetricKind.HISTOGRAM)
        if not math.isfinite(value):
            raise TritonModelException(
                f"Failed to observe metric value: the histogram {family.name!r} takes no {value}"
            )
        self._report(family, value)

    def value(self) -> float:
        """Return the value of a counter or gauge in this handler process.

        Raises:
            TritonModelException: The metric is a histogram.
        """
        family = self._require("get metric value", MetricKind.COUNTER, MetricKind.GAUGE)
        return _families[family.name].values[self._labels]

    def _report(self, family: MetricFamily, value: float) -> None:
        model = running_model()
        if model is not None:
            description = _families[family.name].description
            model.emit(
                MetricRecord(
                    family.name, family.kind.value, description, float(value), self._labels
                )
            )
