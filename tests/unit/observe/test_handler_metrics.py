"""Values that handlers report, as text for the metrics page."""

import logging

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ksrv.observe import handler_metrics
from ksrv.observe.handler_metrics import HandlerMetrics, add_families, exposition
from ksrv.statistics import MetricRecord


def record(name="n", value=1.0, kind="counter", labels=(("k", "v"),)):
    return MetricRecord(name, kind, "Count", value, tuple(labels))


def samples(metrics):
    families = text_string_to_metric_families(exposition(metrics.families()).decode())
    return {  # the parser puts _total behind counters; the page does not
        (sample.name.removesuffix("_total"), tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_counters_add_up_gauges_are_set_and_names_stay():
    metrics = HandlerMetrics()
    for value in (2, 3):
        metrics.record(record("MyCount", value))
        metrics.record(record("MyTime", value, "gauge"))
    found = samples(metrics)
    assert found["MyCount", (("k", "v"),)] == 5
    assert found["MyTime", (("k", "v"),)] == 3
    assert "# TYPE MyCount counter\n" in exposition(metrics.families()).decode()


def test_histogram_counts_below_each_bound():
    metrics = HandlerMetrics()
    for value in (0.005, 0.3, 99):
        metrics.record(record("h", value, "histogram", ()))
    found = samples(metrics)
    assert found["h_bucket", (("le", "0.005"),)] == 1
    assert found["h_bucket", (("le", "0.5"),)] == 2
    assert found["h_bucket", (("le", "10.0"),)] == 2
    assert found["h_bucket", (("le", "+Inf"),)] == found["h_count", ()] == 3
    assert found["h_sum", ()] == pytest.approx(99.305)


def test_invalid_names_and_values_are_escaped():
    metrics = HandlerMetrics()
    metrics.record(record("a b-c", labels=(("x y", 'q"\\\n'),)))
    assert samples(metrics) == {("a_b_c", (("x_y", 'q"\\\n'),)): 1.0}


class Text(str):
    """A str subclass of the handler."""


def test_texts_of_any_kind_can_be_shared_with_other_workers():
    metrics = HandlerMetrics()
    labels = ((Text("k"), Text("v")), ("half", "a\ud800"), ("\udc00", 5))
    metrics.record(MetricRecord(Text("n"), "counter", 3, 2.0, labels))
    [(name, family)] = msgspec.json.decode(msgspec.json.encode(metrics.families())).items()
    assert (name, family["unit"], family["labels"]) == ("n", "3", ["k", "half", "_"])
    assert family["series"][0]["labels"] == ["v", "a?", "5"]


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (record(kind="gauge"), "it was a counter"),
        (record(labels=(("other", "v"),)), "with the labels k"),
        (record("ksrv_requests"), "reserved for the server"),
        (record("1st"), "that metrics do not allow"),
        (record("m", kind="summary"), "unknown kind 'summary'"),
        (record("m", labels=(("k", "1"), ("k", "2"))), "stands twice"),
        (record("process_open_fds", kind="gauge"), "the server itself"),
        (record("m", kind="histogram", labels=(("le", "1"),)), "the label le"),
        (record("m", float("nan")), "the value nan"),
        (record("n", float("inf")), "the value inf"),
        (record("m", float("nan"), "histogram"), "the value nan"),
    ],
)
def test_invalid_records_are_logged_once_and_dropped(caplog, second, text):
    metrics = HandlerMetrics()
    metrics.record(record())
    with caplog.at_level(logging.ERROR):
        metrics.record(second)
        metrics.record(second)
    assert len(caplog.records) == 1
    assert text in caplog.text
    assert samples(metrics) == {("n", (("k", "v"),)): 1.0}


@pytest.mark.parametrize("suffix", ["_count", "_sum", "_bucket"])
@pytest.mark.parametrize("histogram_first", [True, False])
def test_no_metric_has_the_name_of_a_histograms_samples(caplog, suffix, histogram_first):
    both = [record("h", 1, "histogram", ()), record("h" + suffix, 7, "gauge", ())]
    first, second = both if histogram_first else both[::-1]
    metrics, other = HandlerMetrics(), HandlerMetrics()
    metrics.record(first)
    with caplog.at_level(logging.ERROR):
        metrics.record(second)
        metrics.record(second)
    assert len(caplog.records) == 1
    assert first.name in caplog.text
    assert list(metrics.families()) == [first.name]
    other.record(second)  # in another worker, which has not seen the first
    families = metrics.families()
    add_families(families, other.families())
    assert exposition(families).decode().count("# TYPE") == 1


def test_series_are_bounded(monkeypatch):
    monkeypatch.setattr(handler_metrics, "MOST_SERIES", 2)
    metrics = HandlerMetrics()
    for number in range(4):
        metrics.record(record(labels=(("k", str(number)),)))
    assert len(samples(metrics)) == 2
