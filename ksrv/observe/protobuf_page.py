"""The metrics page in Prometheus' binary form, which alone carries native histograms.

Prometheus asks for it where native histograms are switched on. The page of text is translated, so that both
forms say the same, and the times get their exponential buckets beside the fixed ones.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from ksrv._native.queue.stats import EXPONENTIAL_SCHEMA, FIRST_EXPONENTIAL
from ksrv.protocol.protobuf import message_class
from ksrv.statistics import StageTimes

CONTENT_TYPE = (
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)

Labels = frozenset[tuple[str, str]]
NativeTimes = Mapping[tuple[str, Labels], StageTimes]
"""The times with exponential buckets, by the names of their histograms and by labels."""

_ZERO_THRESHOLD = 2.0 ** (FIRST_EXPONENTIAL >> EXPONENTIAL_SCHEMA)

# A span that ends costs as much as two empty buckets: small gaps are filled with zeros.
_WIDEST_GAP = 2

_COUNTER = re.compile(r"^# TYPE (\S+) counter$", re.MULTILINE)
_KINDS = {
    "counter": "COUNTER",
    "gauge": "GAUGE",
    "summary": "SUMMARY",
    "histogram": "HISTOGRAM",
}


def is_preferred(accept: str | None) -> bool:
    """Return whether an `Accept` header asks for the binary form rather than for text."""
    binary = text = 0.0
    for item in (accept or "").split(","):
        kind, *rest = (part.strip() for part in item.split(";"))
        pairs = (part.partition("=") for part in rest)
        options = {name.strip().lower(): value.strip(' "') for name, _, value in pairs}
        try:
            weight = float(options.get("q", "1"))
        except ValueError:
            continue
        if kind.lower() in ("text/plain", "text/*", "*/*"):
            text = max(text, weight)
        elif (
            kind.lower() == "application/vnd.google.protobuf"
            and options.get("proto") == "io.prometheus.client.MetricFamily"
            and options.get("encoding") == "delimited"
        ):
            binary = max(binary, weight)
    return binary > 0 and binary >= text


def translated(page: bytes, times: NativeTimes) -> bytes:
    """Return a metrics page in the binary form.

    Args:
        times: The histograms that have exponential buckets too.
    """
    text = page.decode()
    # The parser gives the names of counters an end that not all of them have.
    counters = set(_COUNTER.findall(text))
    return b"".join(
        _delimited(_family(family, counters, times))
        for family in text_string_to_metric_families(text)
    )


def _delimited(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    left, head = len(data), bytearray()
    while left > 0x7F:
        head.append(left & 0x7F | 0x80)
        left >>= 7
    head.append(left)
    return bytes(head) + data


def _family(family: Metric, counters: set[str], times: NativeTimes) -> Any:
    made = message_class("io.prometheus.client.MetricFamily")()
    made.name = family.name
    if family.type == "counter" and family.name not in counters:
        made.name = f"{family.name}_total"
    made.help = family.documentation
    kind = _KINDS.get(family.type, "UNTYPED")
    made.type = made.DESCRIPTOR.file.enum_types_by_name["MetricType"].values_by_name[kind].number
    if kind in ("HISTOGRAM", "SUMMARY"):
        for labels, samples in _series(family):
            metric = _labelled(made, labels)
            if kind == "HISTOGRAM":
                _histogram(metric.histogram, family.name, samples)
                if (known := times.get((family.name, frozenset(labels)))) is not None:
                    _native(metric.histogram, known)
            else:
                _totals(metric.summary, family.name, samples)
    else:
        for sample in family.samples:
            metric = _labelled(made, sample.labels.items())
            getattr(metric, kind.lower()).value = sample.value
    return made


def _series(family: Metric) -> Iterator[tuple[list[tuple[str, str]], list[Sample]]]:
    """The samples of a family by their labels, without those that name a bucket or a quantile."""
    found: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        labels = (pair for pair in sample.labels.items() if pair[0] not in ("le", "quantile"))
        found.setdefault(tuple(labels), []).append(sample)
    return ((list(labels), samples) for labels, samples in found.items())


def _labelled(family: Any, labels: Iterable[tuple[str, str]]) -> Any:
    metric = family.metric.add()
    for name, value in labels:
        metric.label.add(name=name, value=value)
    return metric


def _totals(message: Any, name: str, samples: Sequence[Sample]) -> None:
    for sample in samples:
        if sample.name == f"{name}_sum":
            message.sample_sum = sample.value
        elif sample.name == f"{name}_count":
            message.sample_count = int(sample.value)


def _histogram(histogram: Any, name: str, samples: Sequence[Sample]) -> None:
    _totals(histogram, name, samples)
    for sample in samples:
        if sample.name == f"{name}_bucket":
            histogram.bucket.add(
                cumulative_count=int(sample.value), upper_bound=float(sample.labels["le"])
            )


def _native(histogram: Any, times: StageTimes) -> None:
    """Add the exponential buckets, in spans, each count as its difference to the one before."""
    histogram.schema = EXPONENTIAL_SCHEMA
    histogram.zero_threshold = _ZERO_THRESHOLD
    counts = dict(sorted(times.exponential.items()))
    histogram.zero_count = counts.pop(0, 0)
    end, before, span = 0, 0, None
    for index, count in counts.items():
        number = (
            FIRST_EXPONENTIAL + index
        )  # as Prometheus numbers its buckets: number 0 ends at 1 s
        gap = number - end
        if span is None or gap > _WIDEST_GAP:
            span = histogram.positive_span.add(offset=gap)
        else:
            for _ in range(gap):
                histogram.positive_delta.append(-before)
                before = 0
            span.length += gap
        span.length += 1
        histogram.positive_delta.append(count - before)
        end, before = number + 1, count
    if span is None:  # a histogram without any span would be one of fixed buckets alone
        histogram.positive_span.add(offset=0, length=0)
