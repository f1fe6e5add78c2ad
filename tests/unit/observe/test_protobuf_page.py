"""The metrics page in Prometheus' binary form: the same as the page of text, and native histograms."""

import random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ksrv._native.queue.stats import EXPONENTIAL_SCHEMA, FIRST_EXPONENTIAL
from ksrv.observe.handler_metrics import HandlerMetrics
from ksrv.observe.metrics import MetricsPage
from ksrv.observe.protobuf_page import is_preferred, translated
from ksrv.protocol.protobuf import message_class
from ksrv.request import BatchOutputs
from ksrv.server.shared.statistics import ServerStatistics
from ksrv.statistics import MetricRecord, StageTimes
from tests.support.engine.engine_models import engine, request, source, tensor

BINARY = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)


def families_of(page):
    """The messages of a page, by name."""
    family = message_class("io.prometheus.client.MetricFamily")
    found, at = {}, 0
    while at < len(page):
        length = shift = 0
        while True:
            byte = page[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        one = family.FromString(page[at : at + length])
        assert one.name not in found
        found[one.name] = one
        at += length
    assert at == len(page)
    return found


def buckets_of(histogram):
    """The counts of a native histogram by the numbers of its buckets, as a reader takes them."""
    deltas = iter(histogram.positive_delta)
    number = count = 0
    found = {}
    for span in histogram.positive_span:
        number += span.offset
        for _ in range(span.length):
            count += next(deltas)
            assert count >= 0
            if count:
                found[number] = count
            number += 1
    assert next(deltas, None) is None
    return found


def number_of(ns):
    """The bucket of a time by its definition; None for the zero bucket."""
    seconds = ns / 1e9
    number = FIRST_EXPONENTIAL
    while seconds > 2 ** (number / 2**EXPONENTIAL_SCHEMA):
        number += 1
    return None if number == FIRST_EXPONENTIAL else min(number, 96)


def served(times):
    """An engine whose requests took so long in their inference stage, one batch each."""
    left = iter(times)

    def run(batch):
        outputs = [tensor("y", batch.tensors["x"].data)]
        return BatchOutputs(outputs, timings={"inference": next(left)})

    made = engine(source(), run=run)
    for _ in times:
        made.infer(request())
    return made


def test_every_time_is_in_the_exponential_bucket_of_its_definition():
    chosen = random.Random(3)
    times = [0, 1, 953, 954, 1_000_000_000, 1_000_000_001, 10**13]
    times += [round(2 ** (n / 8) * 1e9) + more for n in range(-161, 99) for more in (-1, 0, 1)]
    times += [round(10 ** chosen.uniform(0, 12)) for _ in range(200)]
    made = served(times)
    found = made.statistics()[0].stages["inference"]
    made.close()
    expected = {}
    for ns in times:
        number = number_of(ns)
        index = 0 if number is None else number - FIRST_EXPONENTIAL
        expected[index] = expected.get(index, 0) + 1
    assert found.exponential == expected
    assert sum(found.exponential.values()) == found.count == len(times)


def test_both_forms_of_the_page_say_the_same():
    made = served([5, 2_000_000, 3_000_000, 2_950_000, 80_000_000, 9_000_000_000])
    page = MetricsPage(ServerStatistics(made).page_values(), ["triton", "kserve"])
    made.close()
    found = families_of(page.binary())
    text = page.text.decode()
    assert f"# TYPE {'nv_inference_count'} counter" in text and "nv_inference_count" in found
    assert "ksrv_rows_total" in found
    expected = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            expected[sample.name, *sorted(sample.labels.items())] = sample.value
    seen = {}
    for name, family in found.items():
        for metric in family.metric:
            labels = sorted((label.name, label.value) for label in metric.label)
            if not metric.HasField("histogram"):
                (field,) = [one for one in ("gauge", "counter", "untyped") if metric.HasField(one)]
                named = name if name.endswith("_total") or field != "counter" else f"{name}_total"
                seen[named, *labels] = getattr(metric, field).value
                continue
            histogram = metric.histogram
            seen[f"{name}_sum", *labels] = histogram.sample_sum
            seen[f"{name}_count", *labels] = histogram.sample_count
            for bucket in histogram.bucket:
                bound = "+Inf" if bucket.upper_bound == float("inf") else str(bucket.upper_bound)
                key = (f"{name}_bucket", *sorted([*labels, ("le", bound)]))
                seen[key] = bucket.cumulative_count
    assert seen == {
        (name, *((key, value if key != "le" or value == "+Inf" else str(float(value))) for key, value in labels)): count
        for (name, *labels), count in expected.items()
    }  # fmt: skip
    (times,) = [
        metric.histogram
        for metric in found["ksrv_stage_duration_seconds"].metric
        if ("stage", "inference") in [(label.name, label.value) for label in metric.label]
    ]
    assert (times.schema, times.zero_threshold, times.zero_count) == (3, 2**-20, 1)
    assert buckets_of(times) == {number_of(ns): 1 for ns in (80_000_000, 9_000_000_000)} | {
        number_of(2_000_000): 1,
        number_of(3_000_000): 2,
    }
    assert times.zero_count + sum(buckets_of(times).values()) == times.sample_count == 6


@pytest.mark.parametrize(
    "exponential",
    [{}, {0: 4}, {1: 1}, {256: 2}, {5: 1, 6: 3, 8: 1, 11: 2, 15: 1, 200: 7}, {0: 1, 1: 2, 2: 1}],
)
def test_native_buckets_of_any_gaps(exponential):
    count = sum(exponential.values())
    page = f'# TYPE t histogram\nt_bucket{{le="+Inf"}} {count}\nt_count {count}\nt_sum 1.5\n'
    times = StageTimes((), count, 0, exponential)
    (family,) = families_of(translated(page.encode(), {("t", frozenset()): times})).values()
    histogram = family.metric[0].histogram
    assert histogram.zero_count == exponential.get(0, 0)
    assert len(histogram.positive_span) >= 1
    assert buckets_of(histogram) == {
        FIRST_EXPONENTIAL + index: count for index, count in exponential.items() if index
    }


def test_values_of_handlers_keep_their_names():
    handlers = HandlerMetrics()
    handlers.record(MetricRecord("seen", "counter", "", 2.0, (("k", 'a"b\\c\nd'),)))
    handlers.record(MetricRecord("seen_too_total", "counter", "", 3.0, ()))
    handlers.record(MetricRecord("level", "gauge", "ms", 4.5, ()))
    found = families_of(translated(handlers.exposition(), {}))
    assert found.keys() == {"seen", "seen_too_total", "level"}
    assert found["seen"].metric[0].counter.value == 2.0
    assert found["seen"].metric[0].label[0].value == 'a"b\\c\nd'
    assert found["level"].metric[0].gauge.value == 4.5


@pytest.mark.parametrize(
    ("accept", "preferred"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        (BINARY, True),
        (f"{BINARY};q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3", True),
        (f"text/plain;version=0.0.4;q=0.6,{BINARY};q=0.3,*/*;q=0.1", False),
        (f"{BINARY};q=0", False),
        (f"{BINARY};q=much", False),
        (BINARY.replace("delimited", "text"), False),
        ("application/vnd.google.protobuf", False),
        (f" {BINARY.replace(';', ' ; ').upper()}", False),  # a name of a message keeps its case
        ('application/vnd.google.protobuf; proto="io.prometheus.client.MetricFamily"; encoding=delimited', True),
        (";;;=,=;q=", False),
    ],
)  # fmt: skip
def test_the_binary_form_is_for_those_who_prefer_it(accept, preferred):
    assert is_preferred(accept) == preferred
