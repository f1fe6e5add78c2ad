"""model_config_list files: names, base paths, versions and labels, and calls that change them."""

import grpc
import pytest
import requests

from ksrv.dialects.registry import formats
from ksrv.repository.layout import Repository, RepositoryError
from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.tfserving import MODEL, connected, tensor_proto

NUMBER = """
import numpy as np

def inference(x):
    return {{"y": np.full((len(x), 1), {number}, np.float32)}}
"""
YAML = """
inputs: [{name: x, datatype: FP32, shape: [-1, 1]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 1]}]
"""
CONFIG = """
# The models of this machine.
model_config_list {
  config {
    name: "m"
    base_path: "models/m"
    model_platform: "tensorflow"
    model_version_policy { specific { versions: 1 versions: 3 } }
    version_labels { key: "stable" value: 1 }
    version_labels { key: "canary" value: 3 }
  }
}
"""


def write_versions(root, *numbers):
    for number in numbers:
        write_model(root / "models/m", str(number), NUMBER.format(number=number), YAML)


def entries(root, text):
    path = root / "models.config"
    path.write_text(text)
    return Repository([path], formats()).scan()


def config(**keys):
    lines = {"name": '"m"', "base_path": '"models/m"'} | keys
    body = " ".join(
        f"{key}: {value}" if value[0] != "{" else f"{key} {value}" for key, value in lines.items()
    )
    return f"model_config_list {{ config {{ {body} }} }}"


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        (None, ["3"]),
        ("{ latest { } }", ["3"]),
        ("{ latest { num_versions: 2 } }", ["2", "3"]),
        ("{ all { } }", ["1", "2", "3"]),
        ("{ specific { versions: [2, 1] } }", ["1", "2"]),
    ],
)
def test_the_policy_chooses_versions(tmp_path, policy, versions):
    write_versions(tmp_path, 1, 2, 3)
    keys = {} if policy is None else {"model_version_policy": policy}
    found = entries(tmp_path, config(**keys))["m"]
    assert (found.error, list(found.versions)) == (None, versions)


def test_a_policy_keeps_the_shadow_version_beside_the_serving_version(tmp_path):
    write_versions(tmp_path, 1, 2, 3)
    (tmp_path / "models/m/model.yaml").write_text("shadow: {version: 3}\n")
    found = entries(tmp_path, config(model_version_policy="{ latest { num_versions: 1 } }"))["m"]
    assert (found.error, list(found.versions)) == (None, ["2", "3"])
    assert {source.config.shadow.version for source in found.versions.values()} == {3}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("models: 1", "line 1, column 1: Message type"),
        ("model_config_list {", "line 1"),
        ("", "expected model_config_list"),
        ("custom_model_config { }", "expected model_config_list"),
        ("model_config_list { config { nam: 'm' } }", 'has no field named "nam"'),
        ("model_config_list { config { name: 3 } }", "line 1"),
        ("\0", "models.config"),
    ],
)
def test_a_file_that_is_no_list_is_refused(tmp_path, text, error):
    with pytest.raises(RepositoryError) as caught:
        entries(tmp_path, text)
    assert error in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"name": '"../m"'}, "'../m' is no model name"),
        ({"base_path": '"gs://bucket/m"'}, "copy a remote model to a folder first"),
        ({"base_path": '""'}, "base_path '' is no folder"),
        ({"base_path": '"elsewhere"'}, "base_path 'elsewhere' is no folder"),
        ({"base_path": '"models"'}, "holds no model.yaml"),
        ({"model_version_policy": "{ specific { versions: 7 } }"}, "names the versions 7"),
        (
            {"version_labels": '{ key: "stable" value: 2 }'},
            "'stable' is for version 2, which is not served; served are 3",
        ),
    ],
)
def test_a_model_that_cannot_be_served_has_the_reason(tmp_path, keys, error):
    write_versions(tmp_path, 1, 2, 3)
    (found,) = entries(tmp_path, config(**keys)).values()
    errors = [found.error, *(source.error for source in found.versions.values())]
    assert error in " ".join(filter(None, errors))


def test_keys_without_a_meaning_are_reported(tmp_path):
    write_versions(tmp_path, 1)
    found = entries(tmp_path, config(logging_config="{ sampling_config { sampling_rate: 1 } }"))[
        "m"
    ]
    assert found.report.ignored == {
        "logging_config": "record: in model.yaml writes samples of requests"
    }


@pytest.fixture
def server(tmp_path):
    write_versions(tmp_path, 1, 2, 3)
    (tmp_path / "models.config").write_text(CONFIG)
    with Server(tmp_path / "models.config") as found:
        yield found


def answer(client, **spec):
    return client.predict("m", {"x": tensor_proto("FP32", (1, 1), float_val=[0])}, **spec)["y"][
        0, 0
    ]


def test_versions_and_labels_over_both_protocols(server):
    with connected(server) as client:
        assert answer(client) == 3
        assert answer(client, version=1) == 1
        assert answer(client, version_label="stable") == 1
        assert answer(client, version_label="canary") == 3
        with pytest.raises(grpc.RpcError, match="no label 'stabl' "):
            answer(client, version_label="stabl")
        with pytest.raises(grpc.RpcError, match="version '2' is not found"):
            answer(client, version=2)
        states = client.call(MODEL, "GetModelStatus", model_spec={"name": "m"})
        assert [one.version for one in states.model_version_status] == [3, 1]
    url = f"{server.url}/v1/models/m"
    for path, number in (("", 3), ("/versions/1", 1), ("/labels/stable", 1), ("/labels/canary", 3)):
        found = requests.post(f"{url}{path}:predict", json={"instances": [[0]]}, timeout=60)
        assert found.json() == {"predictions": [[number]]}
    described = requests.get(f"{url}/labels/stable/metadata", timeout=60).json()
    assert described["model_spec"]["version"] == "1"
    states = requests.get(f"{url}/labels/stable", timeout=60).json()["model_version_status"]
    assert [one["version"] for one in states] == ["1"]


def reload(client, **keys):
    config = {"model_config_list": {"config": [{"name": "m", **keys}]}}
    return client.call(MODEL, "HandleReloadConfigRequest", config=config)


def test_a_call_moves_labels_and_versions(server):
    with connected(server) as client:
        policy = {"specific": {"versions": [2, 3]}}
        labels = {"stable": 2}
        made = reload(client, model_version_policy=policy, version_labels=labels)
        assert made.status.error_code == 0
        assert answer(client, version_label="stable") == 2
        with pytest.raises(grpc.RpcError, match="version '1' is not found"):
            answer(client, version=1)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"name": "nobody"}, "the repository has no model 'nobody'"),
        ({"base_path": "/etc"}, "a call cannot change it; leave base_path empty"),
        ({"version_labels": {"stable": 9}}, "'stable' is for version 9"),
        ({"model_version_policy": {"specific": {"versions": [9]}}}, "versions 9"),
    ],
)
def test_a_call_changes_nothing_that_is_wrong(server, keys, text):
    with connected(server) as client:
        with pytest.raises(grpc.RpcError) as caught:
            reload(client, **keys)
        assert text in caught.value.details()
        assert answer(client, version_label="stable") == 1


def test_a_call_without_models_reads_the_file_again(server, tmp_path):
    path = tmp_path / "models.config"
    path.write_text(CONFIG.replace("value: 3", "value: 1"))
    with connected(server) as client:
        assert answer(client, version_label="canary") == 3
        client.call(MODEL, "HandleReloadConfigRequest")
        assert answer(client, version_label="canary") == 1


def test_a_call_needs_control_rights(tmp_path):
    write_versions(tmp_path, 1)
    (tmp_path / "models.config").write_text(config())
    (tmp_path / "token").write_text("secret")
    settings = {"control_token_file": str(tmp_path / "token")}
    with Server(tmp_path / "models.config", **settings) as server, connected(server) as client:
        with pytest.raises(grpc.RpcError) as caught:
            client.call(MODEL, "HandleReloadConfigRequest")
        assert caught.value.code() in (
            grpc.StatusCode.UNAUTHENTICATED,
            grpc.StatusCode.PERMISSION_DENIED,
        )
