"""KEDA's ScaledObject and the endpoint picker's configuration fit the manifests, and name metrics that ksrv exports.

KEDA_CRD names KEDA's custom resource definition of ScaledObject, if it is at hand.
"""

import os
import re
from pathlib import Path

import pytest
import yaml

from ksrv.dialects.triton.extensions.metric_names import metric_lines
from ksrv.server.settings_sources import resolve
from ksrv.statistics import ModelStatistics
from tests.unit.deploy.kustomization import render
from tests.unit.deploy.packages import DEPLOY, need

KUBERNETES = DEPLOY / "kubernetes"
VALUES = yaml.safe_load((DEPLOY / "gateway/values.yaml").read_text())
PICKER = VALUES["inferenceExtension"]


@pytest.fixture
def scaled(tmp_path):
    """The objects of the overlay `internal` with KEDA in place of the HorizontalPodAutoscaler."""
    overlay = KUBERNETES / "overlays/internal"
    told = yaml.safe_load((overlay / "kustomization.yaml").read_text())
    told["resources"] = [str((overlay / name).resolve()) for name in told["resources"]]
    assert told["components"] == ["../../components/autoscaling"]
    told["components"] = [str(KUBERNETES / "components/keda")]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(told))
    return {(one["kind"], one["metadata"]["name"]): one for one in render(tmp_path)}


def triggers(scaled_object):
    return {one["type"]: one for one in scaled_object["spec"]["triggers"]}


def test_keda_scales_the_deployment_as_the_autoscaler_does(scaled):
    spec = scaled["ScaledObject", "ksrv"]["spec"]
    autoscaler = render(KUBERNETES / "overlays/internal")
    [other] = [one["spec"] for one in autoscaler if one["kind"] == "HorizontalPodAutoscaler"]
    assert ("HorizontalPodAutoscaler", "ksrv") not in scaled
    assert spec["scaleTargetRef"]["name"] == other["scaleTargetRef"]["name"]
    assert "replicas" not in scaled["Deployment", "ksrv"]["spec"]
    bounds = (spec["minReplicaCount"], spec["maxReplicaCount"])
    assert bounds == (other["minReplicas"], other["maxReplicas"])
    assert spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == other["behavior"]
    pods, cpu = other["metrics"]
    found = triggers(scaled["ScaledObject", "ksrv"])
    assert found["prometheus"]["metadata"]["threshold"] == pods["pods"]["target"]["averageValue"]
    assert pods["pods"]["metric"]["name"] in found["prometheus"]["metadata"]["query"]
    utilization = cpu["containerResource"]["target"]["averageUtilization"]
    assert found["cpu"]["metadata"] == {"value": str(utilization), "containerName": "ksrv"}
    [container] = scaled["Deployment", "ksrv"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"]  # a share of nothing is not a number


def test_kedas_query_is_promql_about_the_namespace_of_the_pods(scaled):
    query = triggers(scaled["ScaledObject", "ksrv"])["prometheus"]["metadata"]["query"]
    [namespace] = re.findall(r'namespace="(\w+)"', query)
    assert namespace == scaled["Deployment", "ksrv"]["metadata"]["namespace"]
    need("promql_parser")
    import promql_parser

    promql_parser.parse(query)


@pytest.mark.skipif("KEDA_CRD" not in os.environ, reason="KEDA_CRD names no file")
def test_scaled_object_is_valid_for_keda(scaled):
    need("jsonschema")
    import jsonschema

    definition = yaml.safe_load(Path(os.environ["KEDA_CRD"]).read_text())
    [version] = definition["spec"]["versions"]
    schema = _closed(version["schema"]["openAPIV3Schema"])
    jsonschema.validate(scaled["ScaledObject", "ksrv"], schema)


def _closed(schema):
    """Return a schema of Kubernetes that refuses keys it does not know, as the API server's strict validation does."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed


def configuration():
    return yaml.safe_load(PICKER["pluginsCustomConfig"][PICKER["pluginsConfigFile"]])


def plugins():
    return {one.get("name", one["type"]): one for one in configuration()["plugins"]}


def test_picker_refers_to_its_plugins_and_knows_its_keys():
    told = configuration()
    assert (told["apiVersion"], told["kind"]) == (
        "inference.networking.x-k8s.io/v1alpha1", "EndpointPickerConfig",
    )  # fmt: skip
    assert set(told) <= {
        "apiVersion", "kind", "featureGates", "plugins", "schedulingProfiles", "saturationDetector",
        "dataLayer", "flowControl", "parser",
    }  # fmt: skip
    assert all(set(one) <= {"name", "type", "parameters"} for one in told["plugins"])
    [profile] = told["schedulingProfiles"]
    [source] = told["dataLayer"]["sources"]
    named = [told["parser"], *profile["plugins"], source, *source["extractors"]]
    assert {one["pluginRef"] for one in named} == plugins().keys()


def test_picker_reads_a_gauge_that_ksrv_exports():
    parameters = plugins()["core-metrics-extractor"]["parameters"]
    [engine] = parameters["engineConfigs"]
    assert parameters["defaultEngine"] == engine["name"]
    lines = list(metric_lines([ModelStatistics(name="resnet", version="1")]))
    assert f"# TYPE {engine['queuedRequestsSpec']} gauge" in lines
    text = (DEPLOY / "gateway/values.yaml").read_text()
    [setting] = re.findall(r"KSRV_METRICS_COMPAT=(\w+)", text)
    assert not resolve(environment={"KSRV_METRICS_COMPAT": setting}).warnings
    [of_one_model] = re.findall(r"# (nv_\w+\{model=\w+\})", text)
    name, model = re.fullmatch(r"(\w+)\{model=(\w+)\}", of_one_model).groups()
    assert any(line.startswith(f'{name}{{model="{model}"') for line in lines)


def test_picker_reaches_the_pods():
    deployment = next(
        one for one in render(KUBERNETES / "overlays/internal") if one["kind"] == "Deployment"
    )["spec"]["template"]
    pool = VALUES["inferencePool"]
    assert pool["modelServers"]["matchLabels"].items() <= deployment["metadata"]["labels"].items()
    [container] = deployment["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert [one["number"] for one in pool["targetPorts"]] == [ports["http"]]
    source = plugins()["metrics-data-source"]["parameters"]
    assert source == {"scheme": "http", "path": "/metrics"}
    need("kubernetes_validate")
    import kubernetes_validate

    policy = yaml.safe_load((DEPLOY / "gateway/networkpolicy.yaml").read_text())
    kubernetes_validate.validate(policy, "1.37.0", strict=True)
    assert policy["spec"]["podSelector"]["matchLabels"] == pool["modelServers"]["matchLabels"]
