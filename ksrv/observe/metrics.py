"""Renders the metrics page for Prometheus from the statistics of the server, each time the page is read.

Names begin with `ksrv_` and use base units. The labels `model` and `version` only have the names of loaded models
as values, so that clients cannot create series.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from ksrv import __version__
from ksrv._native.queue.stats import BOUNDS_NS
from ksrv.observe.handler_metrics import exposition
from ksrv.observe.process import ServerValues
from ksrv.observe.worker_statistics import WorkerStatistics
from ksrv.statistics import Counts, Duration, ModelStatistics, Row, SampledCounts, StageTimes, rows

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MODEL_LABELS = ["model", "version"]
STAGES = ("queue", "assemble", "preprocess", "inference", "postprocess")
"""The stages of a request, under the names of `Server-Timing` and the statistics."""

DURATIONS = "ksrv_request_duration_seconds"
STAGE_DURATIONS = "ksrv_stage_duration_seconds"

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

_BOUNDS = [repr(bound / 1e9) for bound in BOUNDS_NS]


OUTCOMES = Row("ksrv_requests", "Requests by how they ended.", labels=("outcome",))
READY = Row("ksrv_model_ready", "Whether a model serves.", present=True)
UNKNOWN = Row("ksrv_unknown_model_requests", "Requests for an unknown model or version.")
REFUSED = Row(
    "ksrv_replacements_refused",
    "Handler processes and workers that ended and whose model was not loaded again, because a file of it had changed.",
    labels=("model", "version"),
)
BUILD = Row("ksrv_build_info", "The version of the server.", present=True)

Samples: TypeAlias = Iterable[tuple[list[str], Any]]
"""The values of the labels, and a value."""

OtherNames: TypeAlias = Callable[[Sequence[ModelStatistics]], Iterable[str]]
"""Returns the lines of the models' metrics under the names of other servers."""


class ValuesCollector(Collector):
    """Gives a server's values to a Prometheus registry; see `metrics_page`."""

    def __init__(
        self,
        statistics: WorkerStatistics,
        unserved: Sequence[tuple[str, str]],
        server: ServerValues | None,
    ) -> None:
        self._statistics = statistics
        self._unserved = unserved
        self._server = server

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        values = self._statistics
        versions = [([model.name, model.version], model) for model in values.models]
        outcomes = [(labels, model.outcomes()) for labels, model in versions]
        yield _family(OUTCOMES, outcomes, MODEL_LABELS)
        yield from _shown(ModelStatistics, versions, MODEL_LABELS)
        sampled = [(labels, model.sampled) for labels, model in versions]
        yield from _shown(SampledCounts, sampled, MODEL_LABELS)
        ready = [(labels, int(model.ready)) for labels, model in versions]
        unserved = [(list(named), 0) for named in self._unserved]
        yield _family(READY, [*ready, *unserved], MODEL_LABELS)
        yield from _times(values.models)
        yield _family(UNKNOWN, [([], values.unknown)])
        none = {f"{model.name} {model.version}": 0 for model in values.models}
        yield _family(REFUSED, [([], none | values.refused)])
        for counts in (values.lazy, values.process, values.traffic, self._server):
            if counts is not None:
                yield from _shown(type(counts), [([], counts)])
        build = {"version": __version__, "python": platform.python_version()}
        yield _family(BUILD, [(list(build.values()), 1)], list(build))


def _times(models: Sequence[ModelStatistics]) -> Iterator[Metric]:
    durations = HistogramMetricFamily(
        DURATIONS, "From a request's arrival in the queue to its answer.", labels=MODEL_LABELS
    )
    stages = HistogramMetricFamily(
        STAGE_DURATIONS,
        "Time of a request by stage; assemble joins a batch and decodes its images.",
        labels=[*MODEL_LABELS, "stage"],
    )
    sizes = HistogramMetricFamily(
        "ksrv_batch_size", "Rows of the batches that were run.", labels=MODEL_LABELS
    )
    for model in models:
        labels = [model.name, model.version]
        if "request" in model.stages:
            durations.add_metric(labels, *_histogram(model.stages["request"]))
        for stage in STAGES:
            if stage in model.stages:
                stages.add_metric([*labels, stage], *_histogram(model.stages[stage]))
        sizes.add_metric(labels, *_sizes(model))
    return iter((durations, stages, sizes))


def _histogram(times: StageTimes) -> tuple[list[tuple[str, float]], float]:
    return list(zip([*_BOUNDS, "+Inf"], accumulate(times.buckets), strict=True)), times.ns / 1e9


def _sizes(model: ModelStatistics) -> tuple[list[tuple[str, float]], float]:
    counts = [(rows, batch.compute_infer.count) for rows, batch in model.batches.items()]
    buckets: list[tuple[str, float]] = [
        (repr(float(bound)), sum(count for size, count in counts if size <= bound))
        for bound in BATCH_SIZES
    ]
    buckets.append(("+Inf", sum(count for _, count in counts)))
    return buckets, sum(size * count for size, count in counts)


def _family(row: Row, samples: Samples, labels: Sequence[str] = ()) -> Metric:
    """Return a metric with its samples.

    Args:
        row: The name, help text and kind of the metric.
        samples: The values of `labels`, and the value of the metric. If the row has labels, the value is a dictionary,
            whose keys are the values of these labels, joined by a space.
    """
    kind = GaugeMetricFamily if row.present else CounterMetricFamily
    family = kind(row.name, row.help, labels=[*labels, *row.labels])
    for named, value in samples:
        if isinstance(value, dict):
            for key, counted in value.items():
                count = counted.count if isinstance(counted, Duration) else counted
                family.add_metric([*named, *key.split(" ", len(row.labels) - 1)], count)
        elif value is not None:
            family.add_metric(named, value / row.unit)
    return family


def _shown(kind: type[Counts], named: Samples, labels: Sequence[str] = ()) -> Iterator[Metric]:
    """Yield the metrics that the fields of a `Counts` struct declare.

    Args:
        named: The values of the labels, and the counts.
    """
    for field, shown in rows(kind).items():
        samples = [(values, getattr(counts, field)) for values, counts in named]
        if labels or samples[0][1] is not None:
            yield from (_family(row, samples, labels) for row in shown)


def metrics_page(
    statistics: WorkerStatistics,
    unserved: Sequence[tuple[str, str]],
    server: ServerValues | None,
    other_names: OtherNames = lambda models: (),
) -> bytes:
    """Return the page of metrics of a server.

    Args:
        statistics: The sums over all workers.
        unserved: The names and versions that should serve and have not been loaded.
        server: The values of the whole server; None without a master process.
        other_names: Returns the lines of the models' metrics under the names of other servers.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ValuesCollector(statistics, unserved, server))
    aliases = "".join(f"{line}\n" for line in other_names(statistics.models))
    return generate_latest(registry) + aliases.encode() + exposition(statistics.handlers)
