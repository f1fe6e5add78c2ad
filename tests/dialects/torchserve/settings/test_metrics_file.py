"""A metrics.yaml of TorchServe: handlers find what it declares, and count what it does not."""

import re
from textwrap import dedent

import pytest
import requests

from ksrv.testing import Server
from ksrv.testing.server import ServerFailed
from tests.support.torchserve.archives import archive

HANDLER = """from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes


class Metered:
    def initialize(self, context):
        context.metrics.add_counter("Starts", 1, dimensions=[Dimension("ModelName", "mine")])

    def handle(self, data, context):
        metrics = context.metrics
        metrics.get_metric("BatchRows", MetricTypes.GAUGE).add_or_update(len(data), ["seven"])
        metrics.get_metric("Requests").add_or_update(1, [])
        metrics.get_metric("Unheard").add_or_update(2, ["a", "b"])
        return ["counted"] * len(data)
"""
METRICS = """
dimensions:
  - &model_name "ModelName"
ts_metrics:
  counter:
    - {name: Requests2XX, unit: Count, dimensions: [Level]}
model_metrics:
  counter:
    - {name: Requests, unit: count, dimensions: []}
  gauge:
    - {name: BatchRows, unit: count, dimensions: [*model_name]}
"""


def write_config(tmp_path, metrics=METRICS):
    (tmp_path / "metrics.yaml").write_text(dedent(metrics))
    path = tmp_path / "config.properties"
    path.write_text(f"metrics_config={tmp_path}/metrics.yaml\nmodel_metrics_auto_detect=true\n")
    return str(path)


@pytest.fixture
def store(tmp_path):
    made = tmp_path / "store"
    made.mkdir()
    handler = tmp_path / "metrics_handler.py"
    handler.write_text(HANDLER)
    archive(made, "metered", str(handler), settings={"deviceType": "cpu"})
    return made


def series(server, name):
    """The lines of a metric, without the label of the machine."""
    text = requests.get(f"{server.url}/metrics", timeout=30).text
    lines = [line for line in text.splitlines() if re.match(rf"{name}[{{ ]", line)]
    return [re.sub(r',?Hostname="[^"]*"', "", line) for line in lines]


def call(server, times=1):
    for _ in range(times):
        answer = requests.post(f"{server.url}/predictions/metered", data=b"x", timeout=30)
        assert (answer.status_code, answer.text) == (200, "counted")


def test_handlers_find_the_declared_metrics(tmp_path, store):
    with Server(store, torchserve_config=write_config(tmp_path)) as server:
        call(server, 3)
        assert "metrics_config: 2 metrics that handlers find" in server.log
        assert "model_metrics_auto_detect: ignored, every metric of a handler" in server.log
        assert series(server, "BatchRows") == ['BatchRows{ModelName="seven"} 1.0']
        assert series(server, "Requests") == ["Requests{} 3.0"]
        assert "Requests is declared nowhere" not in server.log


def test_a_metric_that_nobody_declared_counts_and_is_logged_once(store):
    with Server(store, torchserve_api=True) as server:
        call(server, 3)
        assert series(server, "Unheard") == ['Unheard{Dimension1="a",Dimension2="b"} 6.0']
        assert series(server, "BatchRows") == ['BatchRows{Dimension1="seven"} 1.0']
        assert server.log.count("the counter Unheard is declared nowhere") == 1
        assert server.log.count("the gauge BatchRows is declared nowhere") == 1


def test_a_dimension_of_the_handlers_own_replaces_the_servers(store):
    with Server(store, torchserve_api=True) as server:
        assert series(server, "Starts") == ['Starts{ModelName="mine",Level="Model"} 1.0']


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ("model_metrics: {gauge: [{name: a, unit: b}]}", "required field `dimensions`"),
        ("model_metrics: {gauges: []}", "unknown field `gauges`"),
        ("ts_metrics: {}", "required field `model_metrics`"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, store, metrics, text):
    with pytest.raises(ServerFailed) as raised:
        Server(store, torchserve_config=write_config(tmp_path, metrics)).start()
    assert "metrics_config=" in str(raised.value)
    assert f"{tmp_path}/metrics.yaml" in str(raised.value)
    assert text in str(raised.value)
