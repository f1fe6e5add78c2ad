"""The metrics that the alert rules and panels below deploy/ name, on the page of a live server that has had each trouble."""

import os
import re
import signal

import pytest
import requests

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import BROKEN, DOUBLE, VECTOR, write_model
from tests.support.wait_until import wait_until
from tests.unit.deploy.promql import expressions, metric_names, rules

pytestmark = pytest.mark.long

FAILING = 'def inference(x): raise RuntimeError("no such weights")\n'

DYING = """
import os


def inference(x):
    os._exit(3)
"""

HELD = """
import time


def inference(x):
    time.sleep(0.2)
    return {"y": x}
"""

TARGET = {"job", "instance", "__name__"}
"""Labels that Prometheus adds."""
PROMETHEUS = {"up"}
"""Metrics of Prometheus itself."""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The metrics of a server with TLS and tokens that has answered, failed, refused, restarted and reloaded."""
    folder = tmp_path_factory.mktemp("alerts")
    models = folder / "models"
    plain = f"{VECTOR}warmup: false\n"
    write_model(models, "double", DOUBLE, f"{plain}executor: process\n")
    write_model(models, "failing", FAILING, plain)
    write_model(models, "dying", DYING, f"{plain}executor: process\n")
    write_model(models, "held", HELD, f"{plain}queue_size: 1\ntimeout_ms: 20\n")
    key, certificate = self_signed(folder)
    (folder / "tokens").write_text("secret\n")
    settings = {"tls_cert": certificate, "tls_key": key, "token_file": folder / "tokens"}
    with Server(models, **{name: str(path) for name, path in settings.items()}) as server:

        def call(path, token="secret", **options):
            options |= {"headers": {"Authorization": f"Bearer {token}"}, "verify": str(certificate)}
            method = "POST" if "json" in options else "GET"
            return requests.request(method, server.url + path, timeout=60, **options)

        def infer(model):
            entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
            return call(f"/v2/models/{model}/infer", json={"inputs": [entry]}).status_code

        def shows(sample):
            return re.search(sample, call("/metrics").text, re.MULTILINE)

        assert [infer(one) for one in ("double", "failing", "unknown", "held")] == [
            200,
            500,
            404,
            504,
        ]
        assert infer("dying") >= 500
        assert call("/v2/models/double", token="wrong").status_code == 401
        wait_until(lambda: shows(r'^ksrv_instance_restarts_total\{model="dying",.*\} [1-9]'), 120)
        write_model(models, "broken", BROKEN, VECTOR)
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: shows("^ksrv_last_reload_successful 0"), 60)
        assert infer("double") == 200
        yield call("/metrics").text


def samples(page, name):
    found = re.findall(rf"^{name}(?:\{{(.*)\}})? \S+", page, re.MULTILINE)
    return [dict(re.findall(r'(\w+)="([^"]*)"', labels)) for labels in found]


def selectors(text):
    """Return each metric of an expression with the labels and patterns of its selector."""
    for name, braces in re.findall(r"\b((?:ksrv_\w+)|up)\b(?:\{([^}]*)\})?", text):
        yield name, re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', braces)


def test_every_metric_that_is_named_is_exported(page):
    assert {name: place for name, place in metric_names().items() if not samples(page, name)} == {}


@pytest.mark.parametrize(("place", "text"), expressions())
def test_selected_series_have_the_labels_of_the_expression(page, place, text):
    by = re.search(r"\bby \(([^)]*)\)", text)
    grouped = set(by[1].replace(" ", "").split(",")) - TARGET - {"le"} if by else set()
    for name, matchers in selectors(text):
        if name in PROMETHEUS:
            continue
        found = samples(page, name)
        for label, _, _ in matchers:
            assert label in TARGET or any(label in one for one in found), (place, name, label)
        for label, operator, value in matchers:
            if operator == "=" and label not in TARGET:
                assert any(one.get(label) == value for one in found), (place, name, label, value)
        assert any(grouped <= one.keys() for one in found), (place, name, grouped)


def test_summaries_use_labels_of_their_metrics(page):
    recorded = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}
    for rule in (one for one in rules() if "alert" in one):
        text = rule["expr"]
        for name, expression in recorded.items():
            text = text.replace(name, expression)
        shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) - TARGET
        names = [name for name, _ in selectors(text) if name not in PROMETHEUS]
        found = [labels for name in names for labels in samples(page, name)]
        assert not shown or any(shown <= labels.keys() for labels in found), rule["alert"]
