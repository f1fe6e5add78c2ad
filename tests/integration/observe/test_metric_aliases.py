"""The metrics under Triton's and KServe's names, in addition to ksrv's names."""

import json

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from ksrv.testing import Server
from tests.support.models import write_double


@pytest.fixture
def models(tmp_path):
    write_double(tmp_path)
    return tmp_path


def ask(server, name="x"):
    entry = {"name": name, "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    url = f"{server.url}/v2/models/double/infer"
    return requests.post(url, data=json.dumps({"inputs": [entry]}), timeout=30).status_code


def samples(server):
    """The page's samples by name and labels; the page is one that Prometheus' parser takes."""
    text = requests.get(server.url + "/metrics", timeout=30).text
    return {
        (one.name, *sorted(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_without_the_setting_no_aliases_are_served(models):
    with Server(models) as server:
        names = {name for name, *_ in samples(server)}
        assert not any(name.startswith(("nv_", "request_")) for name in names)
        ((_, *labels),) = [key for key in samples(server) if key[0] == "ksrv_build_info"]
        assert dict(labels)["version"]
        assert samples(server)[("ksrv_server_start_timestamp_seconds",)] > 1e9


def test_both_aliases_are_served_together(models):
    with Server(models, metrics_compat=["triton", "kserve"]) as server:
        before = samples(server)
        assert [ask(server) for _ in range(5)] == [200] * 5
        assert [ask(server, "z") for _ in range(2)] == [400] * 2
        after = samples(server)

        def gained(name, **labels):
            key = (name, *sorted(labels.items()))
            if key not in after:  # the parser gives every counter the ending that OpenMetrics has
                key = (f"{name}_total", *key[1:])
            return after[key] - before[key]

        model = {"model": "double", "version": "1"}
        assert gained("nv_inference_request_success", **model) == 5
        assert gained("nv_inference_request_failure", **model, reason="OTHER") == 2
        assert gained("nv_inference_request_failure", **model, reason="BACKEND") == 0
        assert gained("nv_inference_count", **model) == 5
        assert gained("nv_inference_exec_count", **model) == 5
        assert gained("nv_inference_request_duration_us", **model) > 0
        assert after[("nv_inference_pending_request_count", *sorted(model.items()))] == 0
        for stage in ("preprocess", "predict", "postprocess"):
            name = f"request_{stage}_seconds"
            assert gained(f"{name}_count", model_name="double") == 5
            assert gained(f"{name}_bucket", model_name="double", le="+Inf") == 5
            spent = gained(f"{name}_sum", model_name="double")
            assert spent > 0 or stage != "predict"
            assert 0 <= spent < gained("nv_inference_request_duration_us", **model) / 1e6
        assert gained("ksrv_requests_total", model="double", version="", outcome="success") == 5
