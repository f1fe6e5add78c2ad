"""The component that pulls a model before ksrv starts fits the manifests and the command line."""

import pytest
import yaml
from click.testing import CliRunner

from ksrv.cli.main import main
from tests.unit.deploy.kustomization import render
from tests.unit.deploy.packages import DEPLOY
from tests.unit.deploy.test_kubernetes import VERSIONS, validate

KUBERNETES = DEPLOY / "kubernetes"


@pytest.fixture
def objects(tmp_path):
    """The objects of the overlay `internal` with this component."""
    overlay = KUBERNETES / "overlays/internal"
    written = yaml.safe_load((overlay / "kustomization.yaml").read_text())
    for key in ("resources", "components"):
        written[key] = [str((overlay / name).resolve()) for name in written[key]]
    written["components"].append(str(KUBERNETES / "components/pull"))
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(written))
    return {(one["kind"], one["metadata"]["name"]): one for one in render(tmp_path)}


@pytest.fixture
def spec(objects):
    return objects["Deployment", "ksrv"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid(objects, version):
    for document in objects.values():
        validate(document, version)


def test_folder_is_below_the_volume_that_ksrv_serves(spec):
    [init], [server] = spec["initContainers"], spec["containers"]
    [mount] = [one for one in init["volumeMounts"] if one["name"] == "models"]
    [served] = [one for one in server["volumeMounts"] if one["name"] == "models"]
    [volume] = [one for one in spec["volumes"] if one["name"] == "models"]
    *_, folder = init["args"]
    assert folder.startswith(mount["mountPath"] + "/") and not mount.get("readOnly")
    assert served["mountPath"] == mount["mountPath"] == server["args"][1] and served["readOnly"]
    assert volume.keys() == {"name", "emptyDir"}
    assert {one["name"] for one in init["volumeMounts"]} <= {one["name"] for one in spec["volumes"]}


def test_arguments_are_those_of_the_command(spec, monkeypatch):
    called = []
    monkeypatch.setattr("ksrv.pull.command.open_source", lambda uri: called.append(uri))
    monkeypatch.setattr("ksrv.pull.command.pull_into", lambda folder, *_: str(folder))
    done = CliRunner().invoke(main, spec["initContainers"][0]["args"])
    assert done.exit_code == 0, done.output
    assert called == ["s3://bucket/models/cats/1"] and done.output == "/models/cats/1\n"


def test_init_container_is_confined_as_the_server_is(spec):
    [init], [server] = spec["initContainers"], spec["containers"]
    assert init["securityContext"] == server["securityContext"]
    assert init["image"].split(":")[1] == server["image"].split(":")[1]
    assert init["image"].startswith("registry.example.com/ksrv-pull:")


def test_network_policy_lets_the_pod_reach_names_and_stores(objects):
    [rule] = objects["NetworkPolicy", "ksrv"]["spec"]["egress"]
    assert {(port["port"], port["protocol"]) for port in rule["ports"]} == {
        (53, "UDP"), (53, "TCP"), (443, "TCP"),
    }  # fmt: skip
