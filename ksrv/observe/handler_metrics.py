"""The metrics that handlers report, for the metrics page: `HandlerMetrics` collects them, `exposition` writes the text.

The text is not written by prometheus_client, because the library renames counters, and dashboards that were made for
TorchServe use the original names. A value is dropped with a log line if its name was reported with another kind or
other labels before, or if it would begin a series beyond `MOST_SERIES`.
"""

import logging
import math
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping

import msgspec

from ksrv.observe.process import ProcessValues, ServerValues
from ksrv.statistics import MetricRecord, rows

log = logging.getLogger(__name__)

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of a histogram's buckets."""
MOST_NAMES = 1000
"""The names of metrics that all handlers of an engine may report."""
MOST_SERIES = 1000
"""The combinations of label values that a metric may have."""
OWN_PREFIX = "ksrv_"
OWN_NAMES = frozenset(
    name
    for kind in (ProcessValues, ServerValues)
    for shown in rows(kind).values()
    for row in shown
    for name in (row.name, row.name if row.present else f"{row.name}_total")
)
"""The names of the server's metrics, among them names without the prefix. prometheus_client appends `_total` to
counters."""
HISTOGRAM_SUFFIXES = ("_bucket", "_count", "_sum")
"""The endings of the names of a histogram's samples."""

_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ODD = re.compile(r"[^A-Za-z0-9_]")


class Series(msgspec.Struct):
    """The value of one combination of labels.

    Attributes:
        labels: The labels' values.
        value: The last value of a gauge, the sum of all others.
        counts: How many values are in each bucket of a histogram.
        at_ns: When a gauge was last set, on the clock of `time.monotonic_ns`.
    """

    labels: tuple[str, ...]
    value: float = 0.0
    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    at_ns: int = 0

    def absorb(self, other: "Series", kind: str) -> None:
        """Add another worker's value of the same combination of labels; for a gauge take the newer value."""
        if kind == "gauge":
            if other.at_ns > self.at_ns:
                self.value, self.at_ns = other.value, other.at_ns
            return
        self.value += other.value
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]


class Family(msgspec.Struct):
    """All values that are reported under a metric name.

    Attributes:
        kind: "counter", "gauge" or "histogram".
        labels: The names of the labels.
        series: The values, in the order in which they were first reported.
    """

    kind: str
    unit: str
    labels: tuple[str, ...]
    series: list[Series] = []


class HandlerMetrics:
    """Collects the values of all handlers of an engine. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._families: dict[str, Family] = {}
        self._series: dict[tuple[str, tuple[str, ...]], Series] = {}
        self._complained: set[str] = set()

    def record(self, record: MetricRecord) -> None:
        """Add a value. A value that does not fit is dropped; the first for its name is logged."""
        name = _cleaned(record.name)
        labels = tuple(_cleaned(label) for label, _ in record.labels)
        with self._lock:
            if record.kind != "gauge" and not math.isfinite(record.value):
                self._complain(name, f"the value {record.value} would stay in its sum for ever")
                return
            family = self._families.get(name)
            if family is None:
                why = self._refusal(name, record, labels)
                if why:
                    self._complain(name, why)
                    return
                family = self._families[name] = Family(record.kind, record.unit, labels)
            elif (family.kind, family.labels) != (record.kind, labels):
                self._complain(
                    name,
                    f"it was a {family.kind} with the labels {', '.join(family.labels)} and is now a"
                    f" {record.kind} with {', '.join(labels)}",
                )
                return
            key = tuple(value for _, value in record.labels)
            series = self._series.get((name, key))
            if series is None:
                if len(family.series) >= MOST_SERIES:
                    self._complain(name, f"it has {MOST_SERIES} combinations of labels already")
                    return
                series = self._series[name, key] = Series(key)
                family.series.append(series)
            _add(series, family.kind, record.value)

    def _refusal(self, name: str, record: MetricRecord, labels: tuple[str, ...]) -> str:
        """Return why a new name is refused, or ""."""
        if len(self._families) >= MOST_NAMES:
            return f"there are {MOST_NAMES} names already"
        if name.startswith(OWN_PREFIX):
            return f"names that begin with {OWN_PREFIX} are reserved for the server"
        if name in OWN_NAMES:
            return "the server itself has a metric of this name"
        if not _NAME.fullmatch(name) or not all(map(_LABEL.fullmatch, labels)):
            return "the name or a label's name has a character that metrics do not allow"
        if len(set(labels)) != len(labels):
            return "a label stands twice"
        if record.kind == "histogram" and "le" in labels:
            return "the label le is that of a histogram's buckets"
        if record.kind not in ("counter", "gauge", "histogram"):
            return f"unknown kind {record.kind!r}"
        histogram = _histogram_with(name, self._families)
        if histogram:
            return f"the histogram {histogram} has samples of this name"
        if record.kind == "histogram":
            for suffix in HISTOGRAM_SUFFIXES:
                if name + suffix in self._families:
                    return f"its samples would have the name of the metric {name}{suffix}"
        return ""

    def _complain(self, name: str, why: str) -> None:
        if name not in self._complained and len(self._complained) < MOST_NAMES:
            self._complained.add(name)
            log.error("the metric %.64s of a handler is dropped: %s", name, why)

    def families(self) -> dict[str, Family]:
        """Return a copy of the values so far."""
        with self._lock:
            copied = msgspec.msgpack.encode(self._families)
        return msgspec.msgpack.decode(copied, type=dict[str, Family])


def add_families(mine: dict[str, Family], others: Mapping[str, Family]) -> None:
    """Add another worker's values; values of another kind, or with other labels, are left out."""
    for name, other in others.items():
        family = mine.setdefault(name, Family(other.kind, other.unit, other.labels))
        if (family.kind, family.labels) == (other.kind, other.labels):
            _absorb(family, other)


def exposition(families: Mapping[str, Family]) -> bytes:
    """Return values as text for the metrics page. Names that are also samples of a histogram are left out."""
    lines: list[str] = []
    for name, family in sorted(families.items()):
        if _histogram_with(name, families):
            continue
        if family.unit:
            lines.append(f"# HELP {name} {_escaped(family.unit)}")
        lines.append(f"# TYPE {name} {family.kind}")
        for series in family.series:
            pairs = list(zip(family.labels, series.labels, strict=True))
            if family.kind == "histogram":
                lines += _histogram(name, pairs, series)
            else:
                lines.append(f"{name}{_labels(pairs)} {series.value!r}")
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _histogram_with(name: str, families: Mapping[str, Family]) -> str:
    """Return the histogram that has samples of this name, or ""."""
    for suffix in HISTOGRAM_SUFFIXES:
        base = name.removesuffix(suffix)
        if base != name and base in families and families[base].kind == "histogram":
            return base
    return ""


def _absorb(mine: Family, other: Family) -> None:
    by_labels = {series.labels: series for series in mine.series}
    for series in other.series:
        known = by_labels.get(series.labels)
        if known is None:
            known = Series(series.labels)
            mine.series.append(known)
        known.absorb(series, mine.kind)


def _add(series: Series, kind: str, value: float) -> None:
    if kind == "gauge":
        series.value, series.at_ns = value, time.monotonic_ns()
        return
    series.value += value
    if kind == "histogram":
        series.counts[bisect_left(BUCKETS, value)] += 1


def _histogram(name: str, pairs: list[tuple[str, str]], series: Series) -> list[str]:
    lines = []
    below = 0
    for bound, count in zip([*map(repr, BUCKETS), "+Inf"], series.counts, strict=True):
        below += count
        lines.append(f"{name}_bucket{_labels([*pairs, ('le', bound)])} {below}")
    lines.append(f"{name}_count{_labels(pairs)} {below}")
    lines.append(f"{name}_sum{_labels(pairs)} {series.value!r}")
    return lines


def _labels(pairs: list[tuple[str, str]]) -> str:
    if not pairs:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _cleaned(name: str) -> str:
    return name if _NAME.fullmatch(name) else _ODD.sub("_", name)
