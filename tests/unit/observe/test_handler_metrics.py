"""Values that handlers report, as text for the metrics page."""

import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ksrv.observe import handler_metrics
from ksrv.observe.handler_metrics import HandlerMetrics, exposition
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


def test_invalid_names_and_values_are_escaped():
    metrics = HandlerMetrics()
    metrics.record(record("a b-c", labels=(("x y", 'q"\\\n'),)))
    assert samples(metrics) == {("a_b_c", (("x_y", 'q"\\\n'),)): 1.0}


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


def test_series_are_bounded(monkeypatch):
    monkeypatch.setattr(handler_metrics, "MOST_SERIES", 2)
    metrics = HandlerMetrics()
    for number in range(4):
        metrics.record(record(labels=(("k", str(number)),)))
    assert len(samples(metrics)) == 2
