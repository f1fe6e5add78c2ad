"""The runtimes and services for KServe match the types of its package, and ksrv's settings."""

import pytest
import yaml
from click.testing import CliRunner

from ksrv.cli.main import main
from ksrv.dialects.registry import formats
from ksrv.repository.layout import Repository
from tests.unit.deploy.kserve_schema import Schema
from tests.unit.deploy.packages import DEPLOY, need


def documents(name):
    return list(yaml.safe_load_all((DEPLOY / "kserve" / f"{name}.yaml").read_text()))


RUNTIMES = {one["metadata"]["name"]: one for one in documents("runtimes")}
SERVICES = {one["metadata"]["name"]: one for one in documents("inferenceservices")}


@pytest.fixture(scope="module")
def schema():
    return Schema(need("kserve"))


@pytest.mark.parametrize("name", [*RUNTIMES, *SERVICES])
def test_every_object_is_valid(schema, name):
    assert list(schema.errors((RUNTIMES | SERVICES)[name])) == []


def arguments(args):
    given = [arg.replace("{{.Name}}", "cats") for arg in args]
    done = CliRunner().invoke(main, [*given, "--print-config"])
    assert done.exit_code == 0, done.output
    return dict(line.split("  (")[0].split(" = ", 1) for line in done.output.splitlines())


@pytest.fixture
def volume(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "model-store").mkdir()
    (tmp_path / "config" / "config.properties").write_text(
        f"inference_address=http://0.0.0.0:8085\ngrpc_inference_port=7070\nmodel_store={tmp_path}/model-store\n"
        "load_models=all\nenable_envvars_config=true\n"
    )
    return tmp_path


@pytest.mark.parametrize("name", RUNTIMES)
def test_arguments_are_valid_settings(name, volume):
    [container] = RUNTIMES[name]["spec"]["containers"]
    assert container["name"] == "kserve-container"
    if name == "ksrv-torchserve":
        args = [one.replace("/mnt/models", str(volume)) for one in container["args"]]
        chosen = arguments(args)
        assert chosen["models"] == f"('{volume}/model-store',)"
        assert chosen["torchserve_api"] == "True"
        assert [one["name"] for one in container["env"]] == ["TS_SERVICE_ENVELOPE"]
    else:
        chosen = arguments(container["args"])
        assert chosen["models"] == "('/mnt/models',)"
        assert chosen["model_name"] == "'cats'"
    assert chosen["insecure"] == "True"
    assert chosen["model_control"] == "'none'"
    assert float(chosen["drain_delay"]) + float(chosen["stop_timeout"]) < 30
    # Otherwise probes alone would make a server count as connected.
    assert container["readinessProbe"]["periodSeconds"] < float(chosen["drain_delay"])
    port = RUNTIMES[name]["spec"]["annotations"]["prometheus.kserve.io/port"]
    assert chosen["http"] == f"'0.0.0.0:{port}'"


def test_the_runtime_for_MLServer_serves_a_bare_file_by_its_variables(tmp_path, monkeypatch):
    [container] = RUNTIMES["ksrv-mlserver"]["spec"]["containers"]
    for each in container["env"]:
        value = each["value"].replace("{{.Labels.modelClass}}", "mlserver_sklearn.SKLearnModel")
        monkeypatch.setenv(each["name"], value)
    (tmp_path / "model.joblib").write_bytes(b"")
    [entry] = Repository([tmp_path], formats(), model_name="iris").scan().values()
    assert (entry.name, entry.error) == ("iris", None)


def test_the_gRPC_runtime_has_the_one_port_that_Knative_takes():
    [container] = RUNTIMES["ksrv-grpc"]["spec"]["containers"]
    [port] = container["ports"]
    assert port["name"] == "h2c"
    assert arguments(container["args"])["grpc"] == f"'0.0.0.0:{port['containerPort']}'"
    assert container["readinessProbe"]["grpc"]["port"] == port["containerPort"]
    assert "ports" not in RUNTIMES["ksrv-rest"]["spec"]["containers"][0]


@pytest.mark.parametrize("name", SERVICES)
def test_services_match_their_runtimes(name):
    model = SERVICES[name]["spec"]["predictor"]["model"]
    offered = [
        runtime["metadata"]["name"]
        for runtime in RUNTIMES.values()
        if model["protocolVersion"] in runtime["spec"]["protocolVersions"]
        and model["modelFormat"]["name"]
        in [one["name"] for one in runtime["spec"]["supportedModelFormats"]]
    ]
    assert model.get("runtime", "ksrv-rest") in offered
    if "args" in model:
        chosen = arguments(model["args"])
        assert chosen["model_control"] == "'poll'"
        grace = SERVICES[name]["spec"]["predictor"]["terminationGracePeriodSeconds"]
        assert float(chosen["drain_delay"]) + float(chosen["stop_timeout"]) + 5 <= grace
