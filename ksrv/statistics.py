"""Counts and times of a model version, for the statistics extension of the protocol and for the metrics.

`total` makes them on request from two sources: the native `Stats` of the version's instances, and the counts of its
queues. `Counts.add` sums them over the workers of a server. A field's annotation, a `Row`, names the metric that shows
it.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self, get_type_hints

import msgspec
from msgspec.structs import astuple

from ksrv._native.queue.stats import Stats
from ksrv.descriptions import attribute_descriptions

BOUNDS_COUNTED = ("full", "bytes_in_flight")
"""The reasons for which a queue refuses a valid request."""


class Duration(msgspec.Struct, frozen=True):
    """How often something happened and how long it took in all."""

    count: int = 0
    ns: int = 0


class StageTimes(msgspec.Struct, frozen=True):
    """The times of one stage.

    Attributes:
        buckets: The counts of a histogram with the bounds `ksrv._native.queue.stats.BOUNDS_NS`, and above the last.
    """

    buckets: tuple[int, ...]
    count: int
    ns: int


class Row(NamedTuple):
    """A metric that shows a field of `Counts` or `ModelStatistics`.

    Attributes:
        name: The metric's name, without the `_total` of a counter.
        help: The metric's description; "" for the description of the field in the docstring of its class.
        present: Whether the metric is a gauge. It describes the present, so that ended workers do not count.
        labels: The names of the labels of a field that is a dictionary. Its keys are their values, joined by spaces.
        unit: The field's value for 1 of the metric.
    """

    name: str
    help: str = ""
    present: bool = False
    labels: tuple[str, ...] = ()
    unit: float = 1


def gauge(name: str, help: str = "") -> Row:
    """Return a metric that is a gauge."""
    return Row(name, help, present=True)


class Counts(msgspec.Struct):
    """Counts of one worker, or the sums of several. The annotations of the fields are the metrics that show them."""

    def add(self, other: Self, *, lives: bool) -> None:
        """Add the counts of another worker.

        Args:
            lives: Whether that worker still runs, so that its gauges count.
        """
        for name, shown in rows(type(self)).items():
            if name not in NOT_SUMMED and (lives or not any(row.present for row in shown)):
                setattr(self, name, summed(getattr(self, name), getattr(other, name)))


@functools.cache
def rows(kind: type) -> Mapping[str, tuple[Row, ...]]:
    """Return the metrics of each field."""
    descriptions = attribute_descriptions(kind)
    return {
        name: tuple(
            note._replace(help=descriptions.get(name, ""))
            for note in getattr(hint, "__metadata__", ())
            if isinstance(note, Row)
        )
        for name, hint in get_type_hints(kind, include_extras=True).items()
    }


class LazyCounts(Counts):
    """The counts of models that their first requests load.

    Attributes:
        loads: Models that a request has loaded.
        put_away: Models unloaded to free memory.
        loaded: Models that are loaded.
        held: Memory that the loaded models take.
    """

    loads: Annotated[int, Row("ksrv_lazy_loads")] = 0
    put_away: Annotated[int, Row("ksrv_models_put_away")] = 0
    loaded: Annotated[int, gauge("ksrv_models_loaded")] = 0
    held: Annotated[int, gauge("ksrv_models_memory_bytes")] = 0


class SampledCounts(Counts):
    """Counts of the sampled requests of a version.

    Attributes:
        records: Records of sampled requests: written, or dropped (queue_full, too_large, disk).
        shadow: Sampled requests that the version of `shadow` was to run, too, by the outcome.
        outputs: Outputs of these requests that agreed or differed.
        evidence: The counts by which a version is promoted; see `ksrv/shadow/`.
    """

    records: Annotated[dict[str, int], Row("ksrv_records", labels=("result",))] = {}
    shadow: Annotated[dict[str, int], Row("ksrv_shadow_requests", labels=("result",))] = {}
    outputs: Annotated[dict[str, int], Row("ksrv_shadow_outputs", labels=("result", "output"))] = {}
    evidence: dict[str, int] = {}


class SizeStatistics(msgspec.Struct, frozen=True):
    """The batches of one size: their number, and their times by stage."""

    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


NOT_SUMMED = ("name", "version", "last_inference_ms", "open_sequences", "ready")
"""The fields of `ModelStatistics` that are not summed over workers."""


class ModelStatistics(Counts):
    """One model version's statistics, in the terms of the protocol's statistics extension.

    Fields that a model does not have, such as a cache without `cache:`, are empty or None. As in `Counts`, the
    annotations are the metrics that show a field.

    Attributes:
        last_inference_ms: Milliseconds since the epoch of the last answer; 0 for none.
        inference_count: Rows that were run.
        execution_count: Batches that were run.
        success: Requests answered, from their arrival to their answer, including answers from the response cache.
        fail: Requests that failed, including refused and expired requests.
        queue: How long requests waited.
        compute_input: Assembling and preprocessing, for each request.
        compute_infer: The inference stage, for each request.
        compute_output: Postprocessing, for each request.
        batches: The batches that were run, by their number of rows.
        failed: Requests whose handler or images failed.
        invalid: Requests that did not fit the model.
        rejected: Requests that a bound refused.
        expired: Requests whose deadline passed.
        cancelled: Requests that were cancelled.
        pending: Requests that wait for a handler.
        restarts: Restarts of handlers.
        cached: Requests that the response cache answered (hit) or not (miss).
        open_sequences: Sequences whose state an instance keeps for further requests.
        ended_sequences: Sequences that ended: end, start (begun anew), idle_timeout, not_run, process, reload.
        sampled: Counts of sampled requests.
        ready: Whether the version serves.
        stages: The times of each stage, and of whole requests as "request".
    """

    name: str
    version: str
    last_inference_ms: int = 0
    inference_count: Annotated[int, Row("ksrv_rows")] = 0
    execution_count: int = 0
    success: Duration = Duration()
    fail: Duration = Duration()
    queue: Duration = Duration()
    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()
    batches: dict[int, SizeStatistics] = {}
    failed: int = 0
    invalid: int = 0
    rejected: Annotated[dict[str, int], Row("ksrv_rejected_requests", labels=("reason",))] = {}
    expired: int = 0
    cancelled: int = 0
    pending: Annotated[int, gauge("ksrv_pending_requests")] = 0
    restarts: Annotated[int, Row("ksrv_instance_restarts")] = 0
    cached: Annotated[
        dict[str, Duration], Row("ksrv_response_cache_requests", labels=("result",))
    ] = {}
    open_sequences: Annotated[int | None, gauge("ksrv_open_sequences")] = None
    ended_sequences: Annotated[dict[str, int], Row("ksrv_ended_sequences", labels=("reason",))] = {}
    sampled: SampledCounts = msgspec.field(default_factory=SampledCounts)
    ready: bool = False
    stages: dict[str, StageTimes] = {}

    def add(self, other: Self, *, lives: bool) -> None:
        """See `Counts.add`: `other` are another worker's statistics of the same version."""
        super().add(other, lives=lives)
        self.last_inference_ms = max(self.last_inference_ms, other.last_inference_ms)
        self.ready = self.ready and (other.ready or not lives)

    def outcomes(self) -> dict[str, int]:
        """Return how many requests ended in which way."""
        return {
            "success": self.success.count,
            "failed": self.failed,
            "invalid": self.invalid,
            "rejected": sum(self.rejected.values()),
            "expired": self.expired,
            "cancelled": self.cancelled,
        }


@dataclass(frozen=True, slots=True)
class MetricRecord:
    """One value that a handler has reported for the metrics page.

    Attributes:
        kind: "counter", "gauge" or "histogram".
        unit: The unit in words, or "".
        labels: Label names and values in order.
    """

    name: str
    kind: str
    unit: str
    value: float
    labels: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        # A text that UTF-8 or msgspec cannot encode would fail the whole page, or the message of a handler process.
        object.__setattr__(self, "name", _sendable(self.name))
        object.__setattr__(self, "unit", _sendable(self.unit))
        labels = tuple((_sendable(name), _sendable(value)) for name, value in self.labels)
        object.__setattr__(self, "labels", labels)


def _sendable(value: object) -> str:
    """Return a handler's text as a plain `str`; half a surrogate pair becomes `?`."""
    text = value if isinstance(value, str) else str(value)
    return text.encode("utf-8", "replace").decode("utf-8")


def total(
    name: str, version: str, stats: Iterable[Stats], counts: Iterable[Mapping[str, int]]
) -> ModelStatistics:
    """Return the statistics of a model version.

    Args:
        counts: The counts of its queues (`ksrv._native.queue.request_queue.Queue.counts`).
    """
    summed = Stats()
    for instance_stats in stats:
        summed.absorb(instance_stats)
    sums = summed.snapshot()
    stages = {
        stage: StageTimes(tuple(buckets), count, ns)
        for stage, (buckets, count, ns) in sums["stages"].items()
    }
    counted = Counter[str]()
    for mapping in counts:
        counted.update(mapping)
    rejected = {reason: counted[reason] for reason in BOUNDS_COUNTED}
    expired = counted["expired_queued"] + counted["expired_running"]
    cancelled, invalid = counted["cancelled"], counted["invalid"]
    failed = stages["failed"]
    refused = sum(rejected.values()) + expired + cancelled + invalid
    return ModelStatistics(
        name,
        version,
        sums["last_ms"],
        sums["rows"],
        sums["batches"],
        success=_duration(stages["request"]),
        fail=Duration(failed.count + refused, failed.ns),
        queue=_duration(stages["queue"]),
        compute_input=Duration(
            stages["assemble"].count, stages["assemble"].ns + stages["preprocess"].ns
        ),
        compute_infer=_duration(stages["inference"]),
        compute_output=_duration(stages["postprocess"]),
        batches={
            rows: SizeStatistics(*(Duration(batches, ns) for ns in times))
            for rows, (batches, *times) in sums["sizes"].items()
        },
        failed=failed.count,
        invalid=invalid,
        rejected=rejected,
        expired=expired,
        cancelled=cancelled,
        cached={result: _duration(stages[f"cache_{result}"]) for result in ("hit", "miss")},
        stages=stages,
    )


def summed(a: Any, b: Any) -> Any:
    """Return the sum of two counts or times; the sum of dictionaries is by key, of others by field."""
    if isinstance(a, dict):
        return a | {key: summed(a[key], more) if key in a else more for key, more in b.items()}
    if isinstance(a, tuple):
        return tuple(map(summed, a, b))
    if isinstance(a, msgspec.Struct):
        return type(a)(*map(summed, astuple(a), astuple(b)))
    return a + b


def _duration(times: StageTimes) -> Duration:
    return Duration(times.count, times.ns)
