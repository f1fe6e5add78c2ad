"""Reading model-settings.json, settings.json and the variables MLSERVER_*: settings, reports, errors of the first hour."""

import json

import pytest

from ksrv.dialects.mlserver.model_settings import FORMAT
from ksrv.dialects.registry import formats
from ksrv.model.config import JoinPolicy
from ksrv.repository.layout import Repository, RepositoryError


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("IMPLEMENTATION", "NAME", "URI", "TRUST", "MAX_BATCH_SIZE", "EXTRA"):
        monkeypatch.delenv(f"MLSERVER_MODEL_{name}", raising=False)


def entry_of(folder, **settings):
    folder.mkdir(exist_ok=True)
    (folder / "model-settings.json").write_text(json.dumps(settings))
    [entry] = Repository([folder], formats()).scan().values()
    return entry


def config_of(folder, **settings):
    entry = entry_of(folder, implementation="models.Model", **settings)
    assert entry.error is None
    [source] = entry.versions.values()
    return source.config


def error_of(folder, **settings):
    error = entry_of(folder, **settings).error
    assert error is not None
    return error.removeprefix(f"{folder}/")


def test_the_name_and_the_version_come_from_the_file(tmp_path):
    entry = entry_of(
        tmp_path, implementation="models.Model", name="sums", parameters={"version": "v1.2.3"}
    )
    assert entry.name == "sums"
    assert list(entry.versions) == ["v1.2.3"]


def test_a_model_without_a_name_has_the_name_of_its_folder(tmp_path):
    assert entry_of(tmp_path / "sums", implementation="models.Model").name == "sums"


def test_the_setting_model_name_replaces_the_name_of_the_file(tmp_path):
    (tmp_path / "model-settings.json").write_text('{"implementation": "m.M", "name": "sums"}')
    assert list(Repository([tmp_path], formats(), model_name="cats").scan()) == ["cats"]


def test_folders_of_one_name_are_versions_of_one_model(tmp_path):
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        settings = {"implementation": "m.M", "name": "sums", "parameters": {"version": version}}
        (tmp_path / version / "model-settings.json").write_text(json.dumps(settings))
    entries = Repository([tmp_path], formats()).scan()
    assert {name: list(entry.versions) for name, entry in entries.items()} == {"sums": ["v1", "v2"]}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"max_batch_size": 8}, None),
        ({"max_batch_size": 1, "max_batch_time": 0.1}, None),
        ({"max_batch_size": 8, "max_batch_time": 0.1}, JoinPolicy(max_batch_size=8, max_delay_ms=100.0, split=True)),
    ],
)  # fmt: skip
def test_requests_are_joined_with_both_keys(tmp_path, settings, expected):
    assert config_of(tmp_path, **settings).batching == expected


@pytest.mark.parametrize(
    ("model", "server", "instances"),
    [
        ({}, None, 1),
        ({}, {"parallel_workers": 3}, 3),
        ({"parallel_workers": 2}, {"parallel_workers": 3}, 2),
        ({"parallel_workers": 0}, {"parallel_workers": 3}, 1),
    ],
)
def test_workers_are_instances(tmp_path, model, server, instances):
    folder = tmp_path / "models" / "sums"
    folder.mkdir(parents=True)
    if server is not None:
        (tmp_path / "settings.json").write_text(json.dumps({"http_port": 9000, **server}))
    assert config_of(folder, **model).instances == instances


def test_keys_without_effect_are_reported(tmp_path):
    (tmp_path / "settings.json").write_text('{"kafka_enabled": true, "debug": false}')
    report = entry_of(tmp_path, implementation="m.M", max_batch_size=4, max_batch_tim=0.1).report
    assert report.lines() == [
        "implementation: m.M; parallel_workers: 1",
        "model-settings.json max_batch_tim: ignored, (did you mean max_batch_time?)",
        "settings.json kafka_enabled: ignored, it changes nothing in ksrv",
        "max_batch_size: ignored, without max_batch_time requests are not joined",
    ]


def test_variables_give_keys_that_the_file_leaves_out(tmp_path, monkeypatch):
    variables = {
        "MODEL_MAX_BATCH_SIZE": "4",
        "MODEL_MAX_BATCH_TIME": "0.5",
        "MODEL_EXTRA": '{"a": 1}',
    }
    variables |= {"MODEL_URI": "./other", "MODEL_WARM": "1", "PARALLEL_WORKERS": "2"}
    for name, value in variables.items():
        monkeypatch.setenv(f"MLSERVER_{name}", value)
    config = config_of(tmp_path, max_batch_size=8, parameters={"uri": "./mine"})
    assert config.batching == JoinPolicy(max_batch_size=8, max_delay_ms=500.0, split=True)
    assert config.instances == 2
    assert config.parameters == {"a": 1}
    assert config.dialect[FORMAT]["parameters"] == {"uri": "./mine", "extra": {"a": 1}}


def test_a_folder_without_settings_is_described_by_variables(tmp_path, monkeypatch):
    (tmp_path / "model.bst").write_text("tree")
    with pytest.raises(RepositoryError, match="holds no model"):
        Repository([tmp_path], formats()).check()
    monkeypatch.setenv("MLSERVER_MODEL_IMPLEMENTATION", "mlserver_lightgbm.LightGBMModel")
    [entry] = Repository([tmp_path], formats(), model_name="iris").scan().values()
    assert (entry.name, entry.error) == ("iris", None)


def test_variables_do_not_describe_folders_beside_models_with_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("MLSERVER_MODEL_IMPLEMENTATION", "mlserver_lightgbm.LightGBMModel")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "model-settings.json").write_text('{"implementation": "m.M"}')
    assert list(Repository([tmp_path], formats()).scan()) == ["one"]


def test_an_environment_is_the_python_of_the_model(tmp_path):
    config = config_of(tmp_path, parameters={"environment_path": "env"})
    assert config.python == str(tmp_path / "env")


def test_other_parameters_reach_the_runtime(tmp_path):
    config = config_of(
        tmp_path, parameters={"own": 1}, inputs=[{"name": "x", "datatype": "BYTES", "shape": [-1]}]
    )
    given = config.dialect[FORMAT]
    assert given["parameters"] == {"own": 1, "uri": str(tmp_path)}
    assert given["inputs"] == [{"name": "x", "datatype": "BYTES", "shape": [-1], "parameters": {}}]


def test_MLflows_folder_is_served_by_MLflows_runner(tmp_path):
    (tmp_path / "mlruns").mkdir()
    (tmp_path / "mlruns" / "MLmodel").write_text(
        "flavors:\n  python_function: {loader_module: mlflow.sklearn}\n"
    )
    (tmp_path / "mlruns" / "model.pkl").write_bytes(b"\x80\x04N.")
    settings = {"name": "wine", "parameters": {"uri": "./mlruns", "version": "v2"}}
    settings["implementation"] = "mlserver_mlflow.MLflowRuntime"
    [source] = entry_of(tmp_path, **settings).versions.values()
    assert "model.pkl is a pickle" in source.error
    entry = entry_of(tmp_path, trust="pickle", **settings)
    assert (entry.name, entry.error, list(entry.versions)) == ("wine", None, ["v2"])
    assert entry.versions["v2"].config.runner.endswith(":MLflowRuntime")


SKLEARN = "mlserver_sklearn.SKLearnModel"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({}, "model-settings.json, line 1: implementation: this section needs a implementation"),
        (
            {"implementation": "Model"},
            "model-settings.json, line 1: implementation: expected MODULE.CLASS, such as models.MyModel, found 'Model'",
        ),
        (
            {"implementation": "m.M", "max_batch_size": -1},
            "model-settings.json, line 1: max_batch_size: expected a whole number from 0 to 1000000, found -1",
        ),
        (
            {"implementation": "m.M", "inputs": [{"name": "x", "datatype": "FP31", "shape": [1]}]},
            "model-settings.json, line 1: inputs[0].datatype: expected one of BOOL, ",
        ),
        (
            {"implementation": "m.M", "parameters": {"version": "a/b"}},
            "model-settings.json, line 1: parameters.version: expected 1 to 64 letters, digits, '.', '_', '+' and '-', found 'a/b'",
        ),
        (
            {"implementation": "m.M", "parameters": {"environment_tarball": "env.tar.gz"}},
            "model-settings.json, line 1: parameters.environment_tarball: unpack it, and set environment_path",
        ),
        (
            {"implementation": SKLEARN, "parameters": {"uri": "./iris.jobli"}, "trust": "pickle"},
            "model-settings.json, line 1: parameters.uri: {folder}/iris.jobli does not exist (did you mean iris.joblib?)",
        ),
        (
            {"implementation": SKLEARN, "parameters": {"uri": "./iris.joblib"}},
            "model-settings.json, line 1: trust: mlserver_sklearn.SKLearnModel loads a pickle, which may run any code. If you "
            'trust its origin, write "trust": "pickle" into model-settings.json, or set MLSERVER_MODEL_TRUST=pickle; or save '
            "the model with skops",
        ),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_line(tmp_path, settings, error):
    (tmp_path / "iris.joblib").write_bytes(b"")
    expected = error.replace("{folder}", str(tmp_path))
    assert error_of(tmp_path, **settings).startswith(expected)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", 'line 1: expected an object such as {"implementation": "models.Model"}'),
        ('{"implementation"}', "line 1: not JSON: Expecting ':' delimiter"),
    ],
)
def test_a_file_that_is_no_object_is_refused(tmp_path, text, error):
    (tmp_path / "model-settings.json").write_text(text)
    [entry] = Repository([tmp_path], formats()).scan().values()
    assert entry.error == f"{tmp_path}/model-settings.json, {error}"


def test_a_wrong_variable_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MLSERVER_MODEL_MAX_BATCH_SIZE", "many")
    error = entry_of(tmp_path, implementation="m.M").error
    assert (
        error
        == "MLSERVER_MODEL_*: max_batch_size: expected a whole number from 0 to 1000000, found 'many'"
    )
