"""`ts.metrics`, as scripts and tests of handlers use it without a server."""

import uuid

import pytest

from ksrv.dialects.torchserve.api.metrics import (
    Dimension,
    Metrics,
    MetricsCacheYamlImpl,
    MetricsStore,
    MetricTypes,
)

FILE = """
model_metrics:
  histogram:
    - {name: Sizes, unit: kB, dimensions: [ModelName, Level]}
"""


def reported(records):
    return [
        (one.name, one.kind, one.unit, one.value, [pair for pair in one.labels if pair[0] != "Hostname"])
        for one in records
    ]  # fmt: skip


def test_a_metrics_store_takes_torchserves_arguments():
    store = MetricsStore(uuid.uuid4(), "mnist")
    assert store.model_name == "mnist"
    store.add_counter("Calls", 1, None)
    store.add_time("Taken", 2.5, None, "ms", None)


def test_a_metrics_file_fills_the_cache(tmp_path):
    path = tmp_path / "metrics.yaml"
    path.write_text(FILE)
    cache = MetricsCacheYamlImpl(str(path))
    assert cache.cache == {}
    cache.initialize_cache()
    metric = cache.get_metric("Sizes", MetricTypes.HISTOGRAM)
    assert (metric.unit, metric.dimension_names) == ("Kilobytes", ["ModelName", "Level"])
    with pytest.raises(ValueError, match=r"absent\.yaml cannot be read"):
        MetricsCacheYamlImpl(str(tmp_path / "absent.yaml")).initialize_cache()


def test_update_takes_dimensions_of_its_own():
    records = []
    metric = Metrics("m", records.append).add_metric_to_cache("Calls", "count", ["ModelName"])
    metric.update(2, "request", [Dimension("Stage", "last")])
    assert reported(records) == [("Calls", "counter", "Count", 2.0, [("Stage", "last")])]


def test_names_of_dimensions_that_come_later_replace_the_numbered_ones():
    records = []
    metrics = Metrics("m", records.append)
    metrics.get_metric("Calls")
    metrics.add_counter("Calls", 1, dimensions=[Dimension("Stage", "last")])
    [record] = reported(records)
    assert record[-1] == [("Stage", "last"), ("ModelName", "m"), ("Level", "Model")]
