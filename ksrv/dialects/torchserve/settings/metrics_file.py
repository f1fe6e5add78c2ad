"""Reads a metrics.yaml: the metrics that handlers find by `get_metric` without declaring them."""

from pathlib import Path
from typing import Any

import msgspec
import yaml

DEFAULT_METRICS: tuple[dict[str, Any], ...] = tuple(
    {"name": name, "unit": "ms", "dimensions": ["ModelName", "Level"], "kind": "gauge"}
    for name in ("HandlerTime", "PredictionTime")
)
"""The metrics of handlers that TorchServe's default metrics.yaml declares."""


class _DeclaredMetric(msgspec.Struct):
    name: str
    unit: str
    dimensions: list[str]


class _ModelMetrics(msgspec.Struct, forbid_unknown_fields=True):
    counter: list[_DeclaredMetric] = []
    gauge: list[_DeclaredMetric] = []
    histogram: list[_DeclaredMetric] = []


class _MetricsFile(msgspec.Struct):
    model_metrics: _ModelMetrics


def read_metrics_file(path: Path) -> list[dict[str, Any]]:
    """Return the metrics that `model_metrics` of a metrics.yaml declares.

    Returns:
        The `name`, `unit`, `dimensions` and `kind` (counter, gauge, histogram) of each.

    Raises:
        ValueError: The file cannot be read, or is not in TorchServe's form.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be read: {' '.join(str(error).split())}; expected YAML"
        ) from error
    try:
        declared = msgspec.convert(document, _MetricsFile).model_metrics
    except msgspec.ValidationError as error:
        raise ValueError(
            f"{path}: {error}; expected model_metrics with lists of counter, gauge and histogram,"
            f" each metric with a name, a unit and its dimensions"
        ) from None
    return [
        msgspec.to_builtins(metric) | {"kind": kind}
        for kind in ("counter", "gauge", "histogram")
        for metric in getattr(declared, kind)
    ]
