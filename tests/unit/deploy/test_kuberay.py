"""The RayService for KubeRay matches Kubernetes' schemas and ksrv's settings."""

from pathlib import Path

import pytest
import yaml

from ksrv.server.settings_sources import resolve
from tests.unit.deploy.packages import DEPLOY, need

VERSIONS = ("1.32.0", "1.37.0")
SERVICE, ADDRESSES = yaml.safe_load_all((DEPLOY / "kuberay" / "rayservice.yaml").read_text())
CLUSTER = SERVICE["spec"]["rayClusterConfig"]
[APPLICATION] = yaml.safe_load(SERVICE["spec"]["serveConfigV2"])["applications"]
[WORKERS] = CLUSTER["workerGroupSpecs"]


def ports(container):
    return {port["name"]: port["containerPort"] for port in container["ports"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_pods_and_service_are_valid(version):
    need("kubernetes_validate")
    import kubernetes_validate

    for group in (CLUSTER["headGroupSpec"], WORKERS):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
        kubernetes_validate.validate(pod | group["template"], version, strict=True)
    kubernetes_validate.validate(ADDRESSES, version, strict=True)


def test_ports_volumes_and_replica_counts_agree():
    arguments = APPLICATION["args"]
    given = resolve(dict(arguments["settings"]), environment={}).settings
    [worker] = WORKERS["template"]["spec"]["containers"]
    assert given.http == f"0.0.0.0:{ports(worker)['http']}"
    assert given.grpc == f"0.0.0.0:{ports(worker)['grpc']}"
    assert {port["name"]: port["port"] for port in ADDRESSES["spec"]["ports"]} == ports(worker)
    assert ADDRESSES["spec"]["selector"] == {
        "ray.io/originated-from-cr-name": SERVICE["metadata"]["name"],
        "ray.io/group": WORKERS["groupName"],
    }
    mounted = [volume["mountPath"] for volume in worker["volumeMounts"]]
    assert arguments["models"] in mounted
    assert str(Path(arguments["settings"]["token_file"]).parent) in mounted
    # One replica per pod, and enough pods.
    assert arguments["max_replicas_per_node"] == 1
    assert arguments["autoscaling"]["max_replicas"] == WORKERS["maxReplicas"]
    assert arguments["autoscaling"]["min_replicas"] == WORKERS["minReplicas"]
    assert arguments["actor"]["num_cpus"] == int(worker["resources"]["limits"]["cpu"])
    # A replica may take as long to stop as its pod.
    grace = WORKERS["template"]["spec"]["terminationGracePeriodSeconds"]
    assert given.drain_delay + given.stop_timeout < grace
