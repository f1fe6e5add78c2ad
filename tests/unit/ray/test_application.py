"""Settings from a command line or a config file reach the replicas."""

from pathlib import Path

import pytest
import yaml

import ksrv.ray
from ksrv.ray.application import app, given_settings
from ksrv.server.settings import SettingsError
from ksrv.server.settings_sources import resolve
from tests.support.paths import ROOT


@pytest.fixture
def with_ray():
    pytest.importorskip("ray")


def test_only_given_settings_travel():
    flags = {"models": ("m",), "drain_delay": 2, "limits.body": "2M", "limits.json": 5}
    resolved = resolve({**flags, "allowed_origins": "*"}, {"KSRV_WORKERS": "3"})
    assert given_settings(resolved) == {
        "drain_delay": 2.0,
        "limits": {"body": 2 << 20, "json": 5},
        "allowed_origins": ("*",),
        "workers": 3,
    }
    assert given_settings(resolve({}, {})) == {}


def bound(application):
    """The arguments of the replicas, and the deployment's options."""
    node = application._bound_deployment
    return node.init_args, node


@pytest.mark.usefixtures("with_ray")
def test_application_is_built():
    application = app(Path("models"), settings={"limits": {"body": "1M"}, "stop_timeout": 7})
    (models, settings, stop, start, _), deployment = bound(application)
    assert (models, settings) == (["models"], {"limits": {"body": 1 << 20}, "stop_timeout": 7.0})
    assert (stop, start) == (5 + 7 + 5, 600)
    assert deployment.name == "ksrv"
    # The replica may take its time although Ray's HAProxy has held it open for half a minute before.
    options = deployment._deployment_config
    assert options.graceful_shutdown_timeout_s >= stop + 30
    assert deployment.num_replicas == 1
    assert deployment.ray_actor_options["num_cpus"] == 1


@pytest.mark.usefixtures("with_ray")
def test_options_of_ray_win():
    application = app(["a", "b"], num_replicas=3, actor={"num_cpus": 2}, max_ongoing_requests=5)
    (models, *_), deployment = bound(application)
    assert models == ["a", "b"]
    assert (deployment.num_replicas, deployment.max_ongoing_requests) == (3, 5)
    assert deployment.ray_actor_options["num_cpus"] == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"unknown": 1},
        {"limits": {"unknown": 1}},
        {"workers": 0},
        {"limits": {"body": "x"}},
        {"models": ["other"]},
    ],
)
def test_invalid_settings_are_refused(settings):
    with pytest.raises(SettingsError):
        app("models", settings=settings)


def test_number_of_replicas_and_autoscaling_are_refused_together():
    with pytest.raises(SettingsError, match="num_replicas and autoscaling"):
        app("models", num_replicas=2, autoscaling={"max_replicas": 3})


@pytest.mark.usefixtures("with_ray")
@pytest.mark.parametrize("settings", [{"http": "off"}, {"metrics": False}, {"tls_client_ca": "ca"}])
def test_unreadable_load_is_refused(settings):
    with pytest.raises(SettingsError, match="autoscaling reads the load on /metrics"):
        app("models", settings=settings, autoscaling={"max_replicas": 3})


def config(name):
    path = {"example": "examples/ray/serve.yaml", "kuberay": "deploy/kuberay/rayservice.yaml"}[name]
    document = next(yaml.safe_load_all((ROOT / path).read_text()))
    return yaml.safe_load(document["spec"]["serveConfigV2"]) if name == "kuberay" else document


@pytest.mark.usefixtures("with_ray")
@pytest.mark.parametrize("name", ["example", "kuberay"])
def test_config_files_are_valid_to_ray_and_to_ksrv(name):
    from ray.serve.schema import ServeDeploySchema

    document = config(name)
    [application] = ServeDeploySchema.model_validate(document).applications
    assert application.import_path == "ksrv.ray:build"
    (models, *_), deployment = bound(ksrv.ray.build(application.args))
    assert models == ["/models"]
    [options] = application.deployments
    assert options.name == deployment.name
    deployment.options(user_config=options.user_config)  # which must be JSON
    document["applications"][0]["deployments"] = 1
    with pytest.raises(ValueError, match="deployments"):
        ServeDeploySchema.model_validate(document)
