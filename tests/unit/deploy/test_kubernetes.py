"""The Kubernetes manifests match Kubernetes' schemas, and ksrv's settings."""

import pytest
import yaml

from ksrv.server.settings_sources import resolve
from tests.unit.deploy.kustomization import render
from tests.unit.deploy.packages import DEPLOY, need

KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
VERSIONS = ("1.32.0", "1.37.0")


def objects(overlay):
    return {
        (one["kind"], one["metadata"]["name"]): one
        for one in render(KUBERNETES / "overlays" / overlay)
    }


def validate(document, version=VERSIONS[-1]):
    need("kubernetes_validate")
    import kubernetes_validate

    kubernetes_validate.validate(document, version, strict=True)


def pod(overlay):
    return objects(overlay)["Deployment", "ksrv"]["spec"]["template"]


def settings(overlay):
    variables = objects(overlay)["ConfigMap", "ksrv-settings"]["data"]
    return resolve(environment=variables)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_valid(overlay, version):
    for document in objects(overlay).values():
        if document["kind"] != "PodMonitor":  # not a kind of Kubernetes itself
            validate(document, version)


def test_every_file_is_part_of_an_overlay():
    named = set()
    for path in KUBERNETES.rglob("kustomization.yaml"):
        told = yaml.safe_load(path.read_text())
        named.add(path)
        for key in ("resources", "components"):
            for name in told.get(key, ()):
                assert (path.parent / name).exists(), (path, name)
                named.add((path.parent / name).resolve())
        for generator in told.get("configMapGenerator", ()):
            named |= {path.parent / name for name in generator.get("files", ())}
    assert {path for path in KUBERNETES.rglob("*") if path.is_file()} <= named


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_settings_are_valid(overlay):
    resolved = settings(overlay)
    assert not resolved.warnings
    spec = pod(overlay)["spec"]
    slack = resolved.settings.drain_delay + resolved.settings.stop_timeout
    assert spec["terminationGracePeriodSeconds"] >= slack + 5
    probe = spec["containers"][0]["readinessProbe"]
    assert probe["periodSeconds"] < resolved.settings.drain_delay
    ports = {port["name"]: port["containerPort"] for port in spec["containers"][0]["ports"]}
    assert resolved.settings.http == f"0.0.0.0:{ports['http']}"
    assert resolved.settings.grpc == f"0.0.0.0:{ports['grpc']}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_access_control_is_configured_once(overlay):
    chosen = settings(overlay).settings
    assert chosen.insecure != bool(chosen.token_file)
    assert ("NetworkPolicy", "ksrv") in objects(overlay)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_containers_are_confined(overlay):
    spec = pod(overlay)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["image"].startswith("registry.example.com/ksrv:")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_mounted_and_selected_objects_exist(overlay):
    every = objects(overlay)
    template = pod(overlay)
    labels = template["metadata"]["labels"].items()
    for kind, name in every:
        spec = every[kind, name].get("spec", {})
        if kind in ("Service", "Deployment", "PodDisruptionBudget"):
            selector = spec["selector"]
            assert selector.get("matchLabels", selector).items() <= labels, name
    assert every["NetworkPolicy", "ksrv"]["spec"]["podSelector"]["matchLabels"].items() <= labels
    volumes = {volume["name"] for volume in template["spec"]["volumes"]}
    for container in template["spec"]["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in template["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert all(("PersistentVolumeClaim", claim) in every for claim in claims)


def test_files_that_settings_name_are_mounted():
    mounts = [
        mount["mountPath"] for mount in pod("secured")["spec"]["containers"][0]["volumeMounts"]
    ]
    chosen = settings("secured").settings
    for name in (chosen.token_file, chosen.control_token_file, chosen.tls_cert, chosen.tls_key):
        assert name.rsplit("/", 1)[0] in mounts
    watched = pod("secured")["spec"]["containers"][1]["args"]
    assert {chosen.token_file.rsplit("/", 1)[0], chosen.tls_cert.rsplit("/", 1)[0]} == set(watched)
    probes = [
        probe["httpGet"]["scheme"]
        for name, probe in pod("secured")["spec"]["containers"][0].items()
        if name.endswith("Probe")
    ]
    assert probes == ["HTTPS"] * 3


def test_missing_model_does_not_restart_the_pod():
    container = pod("internal")["spec"]["containers"][0]
    assert container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    for name in ("livenessProbe", "startupProbe"):
        assert container[name]["httpGet"]["path"] == "/v2/health/live"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_call_without_a_control_token_changes_models(overlay):
    chosen = settings(overlay).settings
    assert chosen.control_token_file or chosen.model_control in ("none", "poll")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_autoscaler_gets_its_metric(overlay):
    """By an annotation or, if a token is needed, by a monitor that sends it."""
    chosen, template = settings(overlay).settings, pod(overlay)
    ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    if template["metadata"]["annotations"]["prometheus.io/scrape"] == "true":
        assert chosen.token_file is None and chosen.tls_cert is None
        return
    spec = objects(overlay)["PodMonitor", "ksrv"]["spec"]
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    [endpoint] = spec["podMetricsEndpoints"]
    assert endpoint["port"] in ports and endpoint["path"] == "/metrics"
    assert endpoint["authorization"]["credentials"] == {
        "name": "ksrv-metrics-token",
        "key": "token",
    }
    assert endpoint["scheme"] == "https" and "serverName" in endpoint["tlsConfig"]


def test_the_autoscaler_owns_the_number_of_pods_and_its_metric_has_a_rule():
    autoscaler = objects("internal")["HorizontalPodAutoscaler", "ksrv"]["spec"]
    assert "replicas" not in objects("internal")["Deployment", "ksrv"]["spec"]
    wanted = [one["pods"]["metric"]["name"] for one in autoscaler["metrics"] if "pods" in one]
    adapter = yaml.safe_load((DEPLOY / "observability/prometheus-adapter.yaml").read_text())
    assert wanted == [rule["name"]["as"] for rule in adapter["rules"]["custom"]]
