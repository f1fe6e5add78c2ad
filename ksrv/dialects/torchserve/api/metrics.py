"""Custom metrics of TorchServe handlers: `ts.metrics.*`.

TorchServe prints each value as a line, which its front end parses. Here each value is a `MetricRecord`. It is passed to
the function `emit`, which sends it from the handler process to the worker, whose Prometheus page shows it.
"""

import logging
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from ksrv.dialects.torchserve.settings.metrics_file import DEFAULT_METRICS, read_metrics_file
from ksrv.handlers.diagnostics.metrics import Emit, discard
from ksrv.statistics import MetricRecord

logger = logging.getLogger("ksrv.dialects.torchserve.api.metrics")


class MetricTypes(Enum):
    """`ts.metrics.metric_type_enum.MetricTypes`."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Units:
    """`ts.metrics.unit.Units`: the word that TorchServe reports for each short name of a unit."""

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
MetricUnit = Units()
TIME_UNITS = ("ms", "s")
SIZE_UNITS = ("MB", "kB", "GB", "B")


@dataclass
class Dimension:
    """A label of a metric's value: its name and its value."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"


class Metric:
    """One metric.

    Args:
        unit: Its unit, short or in words.
        dimension_names: The names of the values that `add_or_update` gets, in their order. None if nothing declares
            them: the first call of `add_or_update` then names them `Dimension1` and so on.
        emit: Takes the records.
    """

    def __init__(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] | None = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
        *,
        emit: Emit,
    ) -> None:
        self.metric_name = metric_name
        self.unit = UNITS.get(unit, unit)
        self.dimension_names = None if dimension_names is None else list(dimension_names)
        self.metric_type = metric_type
        self._emit = emit

    def add_or_update(
        self, value: float, dimension_values: Sequence[str] = (), request_id: str = ""
    ) -> None:
        """Report a value; a value that does not fit the metric is logged and dropped."""
        if self.dimension_names is None:
            self.dimension_names = [f"Dimension{n + 1}" for n in range(len(dimension_values))]
        if len(dimension_values) != len(self.dimension_names):
            logger.error(
                "the metric %s has the dimensions %s and was given %d values for them; the update is dropped: give one "
                "value for each",
                self.metric_name,
                self.dimension_names,
                len(dimension_values),
            )
            return
        if self.metric_type is MetricTypes.COUNTER and value < 0:
            logger.error(
                "the counter %s was given the negative %s; the update is dropped: a counter only grows, a gauge "
                "may fall",
                self.metric_name,
                value,
            )
            return
        labels = (
            *zip(self.dimension_names, map(str, dimension_values), strict=True),
            ("Hostname", _hostname()),
        )
        self._emit(
            MetricRecord(self.metric_name, self.metric_type.value, self.unit, float(value), labels)
        )

    def update(
        self, value: float, request_id: str = "", dimensions: Sequence[Dimension] = ()
    ) -> None:
        """Report a value with other dimensions, as handlers for older versions do."""
        self.dimension_names = [dimension.name for dimension in dimensions]
        self.add_or_update(value, [dimension.value for dimension in dimensions], request_id)


class Metrics:
    """`context.metrics`: the calls of TorchServe's metrics cache.

    `idx` and `request_id` are parameters of TorchServe's calls: the request of a value. ksrv ignores them, because
    metrics have no label for the request.

    Args:
        model_name: The value of the `ModelName` label.
        emit: Takes the records.
        declared: The metrics that `get_metric` finds from the start; see `read_metrics_file`.
    """

    def __init__(
        self, model_name: str, emit: Emit, declared: Iterable[Mapping[str, Any]] = DEFAULT_METRICS
    ) -> None:
        self.model_name = model_name
        self.request_ids: Any = None  # ids of the running batch by index
        self._emit = emit
        self.cache: dict[tuple[str, MetricTypes], Metric] = {}
        self._declare(declared)

    def _declare(self, declared: Iterable[Mapping[str, Any]]) -> None:
        for metric in declared:
            kind = MetricTypes(metric["kind"])
            self.add_metric_to_cache(metric["name"], metric["unit"], metric["dimensions"], kind)

    def add_counter(
        self, name: str, value: float, idx: int | None = None, dimensions: Sequence[Dimension] = ()
    ) -> None:
        self._add(name, value, "count", dimensions, MetricTypes.COUNTER)

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
        self._add(name, value, unit, dimensions, metric_type)

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
        self._add(name, value, unit, dimensions, metric_type)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        self._add(name, value, "percent", dimensions, metric_type)

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
        self._add(name, value, unit, dimensions, metric_type)

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] | None = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> Metric:
        metric = Metric(metric_name, unit, dimension_names, metric_type, emit=self._emit)
        self.cache[metric_name, metric_type] = metric
        return metric

    def get_metric(
        self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER
    ) -> Metric:
        """Return a metric that was declared or added before.

        An unknown metric is added with a warning, because a missing declaration must not fail a request.
        """
        metric = self.cache.get((metric_name, metric_type))
        if metric is None:
            logger.warning(
                "the %s %s is declared nowhere: it counts without a unit, and its dimensions have no"
                " names; name it in model_metrics of metrics_config, or call add_metric_to_cache",
                metric_type.value,
                metric_name,
            )
            metric = self.add_metric_to_cache(metric_name, "", None, metric_type)
        return metric

    def _add(
        self, name: str, value: float, unit: str, dimensions: Sequence[Dimension], kind: MetricTypes
    ) -> None:
        given = {dimension.name for dimension in dimensions or ()}
        defaults = [Dimension("ModelName", self.model_name), Dimension("Level", "Model")]
        added = [dimension for dimension in defaults if dimension.name not in given]
        self._report(name, value, unit, [*(dimensions or ()), *added], kind)

    def _report(
        self, name: str, value: float, unit: str, dimensions: Sequence[Dimension], kind: MetricTypes
    ) -> None:
        metric = self.cache.get((name, kind))
        if metric is None or metric.dimension_names is None:
            names = [dimension.name for dimension in dimensions]
            metric = self.add_metric_to_cache(name, unit, names, kind)
        metric.add_or_update(value, [dimension.value for dimension in dimensions])


class MetricsStore(Metrics):
    """The older `ts.metrics.metrics_store.MetricsStore`, which has the same calls.

    Args:
        request_ids: Ids of the running batch by index.
        model_name: The value of the `ModelName` label.
    """

    def __init__(self, request_ids: Any, model_name: str) -> None:
        super().__init__(model_name, discard)
        self.request_ids = request_ids


class MetricsCacheYamlImpl(Metrics):
    """`ts.metrics.metric_cache_yaml_impl.MetricsCacheYamlImpl`, for scripts that make one.

    Args:
        config_file_path: The metrics.yaml that `initialize_cache` reads.
    """

    def __init__(self, config_file_path: str) -> None:
        super().__init__("", discard, declared=())
        self.config_file_path = config_file_path

    def initialize_cache(self) -> None:
        """Add the metrics that the file declares.

        Raises:
            ValueError: The file cannot be read, or is not in TorchServe's form.
        """
        self._declare(read_metrics_file(Path(self.config_file_path)))


@cache
def _hostname() -> str:
    return socket.gethostname()


def _require(unit: str, allowed: tuple[str, ...], quantity: str) -> None:
    if unit not in allowed:
        raise ValueError(f"the unit of a {quantity} is one of {', '.join(allowed)}, not {unit!r}")
