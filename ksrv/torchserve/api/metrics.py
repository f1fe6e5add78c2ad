"""Custom metrics of TorchServe handlers: `ts.metrics.*`.

Where TorchServe prints a line that its front end parses, a value goes here as a `MetricRecord` to
the function that the handler's process was given, and from there to the Prometheus page.
"""

import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from ksrv.handlers.diagnostics.metrics import Emit, discard
from ksrv.statistics import MetricRecord

logger = logging.getLogger("ksrv.torchserve.api.metrics")


class MetricTypes(Enum):
    """`ts.metrics.metric_type_enum.MetricTypes`."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Units:
    """`ts.metrics.unit.Units`: short names to the words that TorchServe reports."""

    def __init__(self) -> None:
        self.units = dict(UNITS)


UNITS = {
    "ms": "Milliseconds",
    "s": "Seconds",
    "percent": "Percent",
    "count": "Count",
    "MB": "Megabytes",
    "GB": "Gigabytes",
    "kB": "Kilobytes",
    "B": "Bytes",
    None: "unit",
    "": "unit",
}
TIME_UNITS = ("ms", "s")
SIZE_UNITS = ("MB", "kB", "GB", "B")


@dataclass
class Dimension:
    """A named label of one value."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"


class Metric:
    """One metric; its dimension names are fixed by its first use.

    Args:
        metric_name: Its name.
        unit: Its unit, short or in words.
        dimension_names: Names that the values of `add_or_update` are matched with by position.
        metric_type: Counter, gauge or histogram.
    """

    def __init__(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
        *,
        emit: Emit,
    ) -> None:
        self.metric_name = metric_name
        self.unit = UNITS.get(unit, unit)
        self.dimension_names = list(dimension_names)
        self.metric_type = metric_type
        self._emit = emit

    def add_or_update(
        self, value: float, dimension_values: Sequence[str] = (), request_id: str = ""
    ) -> None:
        """Report a value; a value that does not fit the metric is logged and dropped."""
        if len(dimension_values) != len(self.dimension_names):
            logger.error(
                "metric %s has the dimensions %s and was given %d values: dropped",
                self.metric_name,
                self.dimension_names,
                len(dimension_values),
            )
            return
        if self.metric_type is MetricTypes.COUNTER and value < 0:
            logger.error("counter %s was given the negative %s: dropped", self.metric_name, value)
            return
        labels = (
            *zip(self.dimension_names, map(str, dimension_values), strict=True),
            ("Hostname", _hostname()),
        )
        self._emit(
            MetricRecord(self.metric_name, self.metric_type.value, self.unit, float(value), labels)
        )

    update = add_or_update


class Metrics:
    """`context.metrics`: the calls of TorchServe's metrics cache.

    Args:
        model_name: The value of the `ModelName` label.
        emit: Takes each value home.
        request_ids: Ids of the running batch by index; set for each batch.
    """

    def __init__(
        self, model_name: str, emit: Emit, request_ids: dict[int, str] | None = None
    ) -> None:
        self.model_name = model_name
        self.request_ids = request_ids
        self._emit = emit
        self.cache: dict[tuple[str, MetricTypes], Metric] = {}

    def add_counter(
        self, name: str, value: float, idx: int | None = None, dimensions: Sequence[Dimension] = ()
    ) -> None:
        self._add(name, value, "count", idx, dimensions, MetricTypes.COUNTER)

    def add_time(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        _require(unit, TIME_UNITS, "time")
        self._add(name, value, unit, idx, dimensions, metric_type)

    def add_size(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        _require(unit, SIZE_UNITS, "size")
        self._add(name, value, unit, idx, dimensions, metric_type)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        self._add(name, value, "percent", idx, dimensions, metric_type)

    def add_error(
        self,
        name: str,
        value: float,
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        self._report(name, value, "", [*dimensions, Dimension("Level", "Error")], metric_type)

    def add_metric(
        self,
        name: str,
        value: float,
        unit: str = "",
        idx: int | None = None,
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        self._add(name, value, unit, idx, dimensions, metric_type)

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> Metric:
        metric = Metric(metric_name, unit, dimension_names, metric_type, emit=self._emit)
        self.cache[metric_name, metric_type] = metric
        return metric

    def get_metric(
        self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER
    ) -> Metric:
        """Return a metric that was added before.

        Raises:
            KeyError: There is none of that name and type.
        """
        return self.cache[metric_name, metric_type]

    def _add(
        self,
        name: str,
        value: float,
        unit: str,
        idx: int | None,
        dimensions: Sequence[Dimension],
        metric_type: MetricTypes,
    ) -> None:
        own = [Dimension("ModelName", self.model_name), Dimension("Level", "Model")]
        self._report(name, value, unit, [*dimensions, *own], metric_type)

    def _report(
        self,
        name: str,
        value: float,
        unit: str,
        dimensions: Sequence[Dimension],
        metric_type: MetricTypes,
    ) -> None:
        metric = self.cache.get((name, metric_type))
        if metric is None:
            names = [dimension.name for dimension in dimensions]
            metric = self.add_metric_to_cache(name, unit, names, metric_type)
        metric.add_or_update(value, [dimension.value for dimension in dimensions])


MetricsStore = Metrics
"""The older `ts.metrics.metrics_store.MetricsStore` has the same calls."""


class MetricsCacheYamlImpl(Metrics):
    """`ts.metrics.metric_cache_yaml_impl.MetricsCacheYamlImpl`, for scripts that make one.

    Args:
        config_file_path: Ignored: metrics need no declaration here.
    """

    def __init__(self, config_file_path: str = "") -> None:
        super().__init__("", discard)


@cache
def _hostname() -> str:
    return socket.gethostname()


def _require(unit: str, allowed: tuple[str, ...], what: str) -> None:
    if unit not in allowed:
        raise ValueError(f"the unit of a {what} is one of {', '.join(allowed)}, not {unit!r}")
