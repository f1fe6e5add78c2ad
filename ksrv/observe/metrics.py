"""The metrics of a server for Prometheus, put together from its statistics when it is scraped.

Names begin with `ksrv_` and use base units; labels are `model` and `version`, and their values come
only from loaded models. Nothing here is on a request's path.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

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
from ksrv.observe import metric_aliases
from ksrv.observe.process import ProcessValues
from ksrv.observe.traffic import Traffic
from ksrv.statistics import Counts, LazyCounts, ModelStatistics, StageTimes, rows

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MODEL_LABELS = ["model", "version"]
STAGES = ("queue", "assemble", "preprocess", "inference", "postprocess")
"""The stages of a request, under the names of `Server-Timing` and the statistics."""

DURATIONS = "ksrv_request_duration_seconds"
STAGE_DURATIONS = "ksrv_stage_duration_seconds"

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

_BOUNDS = [repr(bound / 1e9) for bound in BOUNDS_NS]


class ServerValues(NamedTuple):
    """Restarts, reloads and certificates of the whole server; times are seconds since 1970.

    Attributes:
        restarts: How many workers ended without a signal of the master.
        last_reload: When the last reload was asked for; 0 for never.
        last_reload_successful: Whether every worker of the last reload got ready; true before the
            first.
        certificate_expiry: When the served certificate ends; 0 without TLS.
        started: When the server was started; 0 where that is not known.
    """

    restarts: int
    last_reload: int
    last_reload_successful: bool
    certificate_expiry: int
    started: int = 0


class PageValues(NamedTuple):
    """The values of a server that the page shows.

    Attributes:
        models: The statistics of every version that serves.
        unserved: The names and versions that should serve and have not been loaded.
        unknown_requests: How many requests named an unknown model or version.
        process: The bytes that the workers use.
        traffic: The connections, refusals and error answers of all workers.
        handlers: The values that handlers report, as text.
        server: The values of the whole server; None without a master process.
        refused_replacements: How often a version could not be loaded again after a process had ended, because one of
            its files had changed; by name and version.
        lazy: Counts of models that requests load; None if all are loaded at the start.
    """

    models: Sequence[ModelStatistics]
    unserved: Sequence[tuple[str, str]]
    unknown_requests: int
    process: ProcessValues
    traffic: Traffic
    handlers: bytes
    server: ServerValues | None
    refused_replacements: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    lazy: LazyCounts | None = None


class ValuesCollector(Collector):
    """Gives a server's values to a Prometheus registry."""

    def __init__(self, values: PageValues) -> None:
        self._values = values

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        values = self._values
        yield from _requests(values.models, values.unknown_requests)
        yield from _times(values.models)
        yield from _states(values.models, values.unserved)
        yield _refused(values)
        if values.lazy is not None:
            yield from _shown(values.lazy)
        yield from _shown(values.process)
        yield from _shown(values.traffic)
        yield _build()
        if values.server is not None:
            yield from _server(values.server)


def _requests(models: Sequence[ModelStatistics], unknown_requests: int) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "ksrv_requests", "Requests by how they ended.", labels=[*MODEL_LABELS, "outcome"]
    )
    rejected = CounterMetricFamily(
        "ksrv_rejected_requests",
        "Requests that a bound refused.",
        labels=[*MODEL_LABELS, "reason"],
    )
    rows = CounterMetricFamily("ksrv_rows", "Rows that were run.", labels=MODEL_LABELS)
    for one in models:
        labels = [one.name, one.version]
        outcomes = {
            "success": one.success.count,
            "failed": one.failed,
            "invalid": one.invalid,
            "rejected": sum(one.rejected.values()),
            "expired": one.expired,
            "cancelled": one.cancelled,
        }
        for outcome, count in outcomes.items():
            requests.add_metric([*labels, outcome], count)
        for reason, count in one.rejected.items():
            rejected.add_metric([*labels, reason], count)
        rows.add_metric(labels, one.inference_count)
    unknown = CounterMetricFamily(
        "ksrv_unknown_model_requests",
        "Requests for an unknown model or version.",
        unknown_requests,
    )
    return iter((requests, rejected, rows, unknown))


def _times(models: Sequence[ModelStatistics]) -> Iterator[Metric]:
    durations = HistogramMetricFamily(
        DURATIONS,
        "From a request's arrival in the queue to its answer.",
        labels=MODEL_LABELS,
    )
    stages = HistogramMetricFamily(
        STAGE_DURATIONS,
        "Time of a request by stage; assemble joins a batch and decodes its images.",
        labels=[*MODEL_LABELS, "stage"],
    )
    sizes = HistogramMetricFamily(
        "ksrv_batch_size", "Rows of the batches that were run.", labels=MODEL_LABELS
    )
    for one in models:
        labels = [one.name, one.version]
        if "request" in one.stages:
            durations.add_metric(labels, *_histogram(one.stages["request"]))
        for stage in STAGES:
            if stage in one.stages:
                stages.add_metric([*labels, stage], *_histogram(one.stages[stage]))
        sizes.add_metric(labels, *_sizes(one))
    return iter((durations, stages, sizes))


def _histogram(times: StageTimes) -> tuple[list[tuple[str, float]], float]:
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip([*_BOUNDS, "+Inf"], times.buckets, strict=True):
        below += count
        buckets.append((bound, below))
    return buckets, times.ns / 1e9


def _sizes(one: ModelStatistics) -> tuple[list[tuple[str, float]], float]:
    counts = [(batch.batch_size, batch.compute_infer.count) for batch in one.batches]
    buckets: list[tuple[str, float]] = [
        (repr(float(bound)), sum(count for size, count in counts if size <= bound))
        for bound in BATCH_SIZES
    ]
    buckets.append(("+Inf", sum(count for _, count in counts)))
    return buckets, sum(size * count for size, count in counts)


def _states(
    models: Sequence[ModelStatistics], unserved: Sequence[tuple[str, str]]
) -> Iterator[Metric]:
    ready = GaugeMetricFamily("ksrv_model_ready", "Whether a model serves.", labels=MODEL_LABELS)
    pending = GaugeMetricFamily(
        "ksrv_pending_requests", "Requests that wait for a handler.", labels=MODEL_LABELS
    )
    restarts = CounterMetricFamily(
        "ksrv_instance_restarts", "Instances whose handler was started anew.", labels=MODEL_LABELS
    )
    cached = CounterMetricFamily(
        "ksrv_response_cache_requests",
        "Requests that the response cache answered (hit) or not (miss).",
        labels=[*MODEL_LABELS, "result"],
    )
    open_sequences = GaugeMetricFamily(
        "ksrv_open_sequences",
        "Sequences whose state an instance keeps for further requests.",
        labels=MODEL_LABELS,
    )
    ended_sequences = CounterMetricFamily(
        "ksrv_ended_sequences",
        "Sequences that ended: end, start (begun anew), idle_timeout, not_run, process, reload.",
        labels=[*MODEL_LABELS, "reason"],
    )
    records = CounterMetricFamily(
        "ksrv_records",
        "Records of sampled requests: written, or dropped (queue_full, too_large, disk).",
        labels=[*MODEL_LABELS, "result"],
    )
    for one in models:
        labels = [one.name, one.version]
        for outcome, count in one.records.items():
            records.add_metric([*labels, outcome], count)
        if one.open_sequences is not None:
            open_sequences.add_metric(labels, one.open_sequences)
        for reason, count in one.ended_sequences.items():
            ended_sequences.add_metric([*labels, reason], count)
        for result, lookups in one.cached.items():
            cached.add_metric([*labels, result], lookups.count)
        ready.add_metric(labels, int(one.ready))
        pending.add_metric(labels, one.pending)
        restarts.add_metric(labels, one.restarts)
    for name, version in unserved:
        ready.add_metric([name, version], 0)
    return iter((ready, pending, restarts, cached, open_sequences, ended_sequences, records))


def _refused(values: PageValues) -> Metric:
    family = CounterMetricFamily(
        "ksrv_replacements_refused",
        "Handler processes and workers that ended and whose model was not loaded again, because a file of it had changed.",
        labels=MODEL_LABELS,
    )
    counts = {(one.name, one.version): 0 for one in values.models}
    for name, versions in values.refused_replacements.items():
        counts |= {(name, version): count for version, count in versions.items()}
    for labels, count in counts.items():
        family.add_metric(list(labels), count)
    return family


def _shown(counts: Counts) -> Iterator[Metric]:
    """Yield the metrics that the fields of counts name."""
    for field, shown in rows(type(counts)).items():
        value = getattr(counts, field)
        for row in shown:
            kind = GaugeMetricFamily if row.present else CounterMetricFamily
            if not row.labels:
                yield kind(row.name, row.help, value / row.unit)
                continue
            family = kind(row.name, row.help, labels=row.labels)
            for key, count in value.items():
                family.add_metric(key.split(" ", 1), count)
            yield family


def _build() -> Metric:
    labels = {"version": __version__, "python": platform.python_version()}
    family = GaugeMetricFamily("ksrv_build_info", "The version of the server.", labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _server(values: ServerValues) -> Iterator[Metric]:
    if values.started:
        yield GaugeMetricFamily(
            "ksrv_server_start_timestamp_seconds", "When the server was started.", values.started
        )
        yield GaugeMetricFamily(
            "process_start_time_seconds", "When the server was started.", values.started
        )
    yield CounterMetricFamily(
        "ksrv_server_worker_restarts",
        "Worker processes that ended without being stopped.",
        values.restarts,
    )
    yield GaugeMetricFamily(
        "ksrv_last_reload_successful",
        "Whether every worker of the last reload got ready.",
        int(values.last_reload_successful),
    )
    yield GaugeMetricFamily(
        "ksrv_last_reload_timestamp_seconds",
        "When the last reload of the server was asked for; 0 for never.",
        values.last_reload,
    )
    if values.certificate_expiry:
        yield GaugeMetricFamily(
            "ksrv_certificate_expiry_timestamp_seconds",
            "When the server's certificate ends.",
            values.certificate_expiry,
        )


def metrics_page(values: PageValues, names: Sequence[metric_aliases.MetricAliases] = ()) -> bytes:
    """Return the metrics page of a server.

    Args:
        names: The servers under whose names the models' metrics are there as well.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ValuesCollector(values))
    aliases = metric_aliases.exposition(values.models, names) if names else b""
    return generate_latest(registry) + aliases + values.handlers
