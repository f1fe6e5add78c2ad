"""Metrics of handlers whose names or values would break the metrics page."""

from collections import Counter

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import VECTOR, write_model
from tests.support.wait_until import wait_until

REPORTS = """
from ksrv import BaseHandler


class Reports(BaseHandler):
    def inference(self, x):
        metrics = self.context.metrics
        metrics.histogram("size", 1.0)
        metrics.counter("size_count")
        metrics.gauge("size_sum", 1.0)
        metrics.counter("size_bucket", le="+Inf")
        metrics.counter("late_count")
        metrics.histogram("late", 1.0)
        metrics.gauge("process_open_fds", 1.0)
        metrics.counter("process_cpu_seconds_total")
        metrics.gauge("level", float("nan"))
        metrics.counter(type("Text", (str,), {})("named"), kind="half \\ud800 pair")
        if x[0, 0] == 1:
            metrics.counter("reported", float("nan"))
        if x[0, 0] == 2:
            metrics.histogram("size", float("inf"))
        metrics.counter("reported")
        return {"y": x}
"""
LINES = {
    1: 'metrics.counter("reported", float("nan"))',
    2: 'metrics.histogram("size", float("inf"))',
}


@pytest.fixture(params=["inline", "process"])
def server(request, tmp_path):
    write_model(tmp_path, "reports", REPORTS, f"{VECTOR}warmup: false\nexecutor: {request.param}\n")
    with Server(tmp_path) as running:
        yield running


def ask(server, number):
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [number, 0, 0, 0]}
    return requests.post(
        f"{server.url}/v2/models/reports/infer", json={"inputs": [entry]}, timeout=60
    )


def page(server):
    return requests.get(f"{server.url}/metrics", timeout=60).text


def value(server, name):
    labels = '{model="reports",version=""}'
    for line in page(server).splitlines():
        if line.startswith(f"{name}{labels} "):
            return float(line.rpartition(" ")[2])
    return None


def test_no_name_stands_twice(server):
    assert ask(server, 0).status_code == 200
    wait_until(lambda: value(server, "reported") == 1)
    lines = page(server).splitlines()
    families = Counter(line.split()[2] for line in lines if line.startswith("# TYPE "))
    samples = Counter(line.rpartition(" ")[0] for line in lines if not line.startswith("#"))
    for names in (families, samples):
        assert [name for name, count in names.items() if count > 1] == []
    assert {"size", "late_count", "level"} <= families.keys()
    assert not {"size_count", "size_sum", "size_bucket", "late"} & families.keys()
    wait_until(lambda: "late of a handler is dropped: its samples would have" in server.log)
    for name in ("size_count", "size_sum", "size_bucket"):
        assert f"{name} of a handler is dropped: the histogram size has samples" in server.log


def test_half_a_surrogate_pair_in_a_label_is_a_question_mark(server):
    assert ask(server, 0).status_code == 200
    wait_until(lambda: value(server, "reported") == 1)
    assert 'named{model="reports",version="",kind="half ? pair"} 1.0' in page(server)


@pytest.mark.parametrize("number", LINES)
def test_a_sum_stays_a_number(server, number):
    assert ask(server, 0).status_code == 200
    assert ask(server, number).status_code == 500
    assert ask(server, 0).status_code == 200
    wait_until(lambda: LINES[number] in server.log)
    wait_until(lambda: value(server, "reported") == 2)
    assert value(server, "size_sum") == 3
