"""Mistakes of the first hour with MLflow's models: each answer names the cause and the remedy."""

import sys
import venv
from pathlib import Path

import numpy as np
import pytest
import requests
import yaml

from ksrv.client import Client
from ksrv.client.errors import StatusError
from ksrv.testing import Server, ServerFailed
from tests.dialects.mlflow.test_folder import write

CODE = """
import sys

import mlflow


class Told(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        if params["fails"]:
            raise ValueError(f"no file {__file__}")
        total = model_input["a"] * params["scale"] + len(params["words"])
        if params["short"]:
            total = total[:1]
        return {"total": total.to_numpy(), "prefix": [sys.prefix] * len(total)}


mlflow.models.set_model(Told())
"""
LOOKED_AT = """
import mlflow
import not_there
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a folder with a model that takes three columns and four parameters."""
    pytest.importorskip("mlflow")
    pytest.importorskip("pandas")
    import mlflow.pyfunc
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    root = tmp_path_factory.mktemp("saved")
    (root / "told.py").write_text(CODE)
    kinds = {"a": "double", "n": "long", "day": "datetime"}
    params = [
        ParamSpec("scale", DataType.double, 2.0),
        ParamSpec("words", DataType.string, ["a"], shape=(-1,)),
        ParamSpec("fails", DataType.boolean, False),
        ParamSpec("short", DataType.boolean, False),
    ]
    columns = Schema([ColSpec(kind, name, required=name == "a") for name, kind in kinds.items()])
    mlflow.pyfunc.save_model(
        str(root / "told"),
        python_model=str(root / "told.py"),
        pip_requirements=["mlflow-skinny"],
        signature=ModelSignature(columns, params=ParamSchema(params)),
    )
    return root / "told"


@pytest.fixture(scope="module")
def server(saved):
    with Server(saved, start_timeout=120) as running:
        yield running


def refusal(client, inputs, **more):
    with pytest.raises(StatusError) as failed:
        client.infer("told", inputs, **more)
    assert failed.value.status == 400
    return str(failed.value)


def column(*values):
    return np.array(values, np.float64)


# ---- requests ----------------------------------------------------------------------------------


def test_missing_column_is_named(client):
    assert "a" in refusal(client, {"n": np.array([1])})


def test_extra_column_is_named(client):
    said = refusal(client, {"a": column(1), "b": column(2)})
    assert "unknown input 'b'; the inputs of the model told are 'a', 'day', 'n'" in said


def test_text_for_a_number_is_refused_with_the_datatype(server):
    for datatype, said in ("FP64", "'a'"), ("BYTES", "the model told expects FP64"):
        body = {"inputs": [{"name": "a", "datatype": datatype, "shape": [1], "data": ["1.5"]}]}
        found = requests.post(f"{server.url}/v2/models/told/infer", json=body)
        assert found.status_code == 400 and said in found.json()["error"]


def test_date_that_is_none_is_refused_with_the_form(client):
    said = refusal(client, {"a": column(1), "day": np.array(["yesterday or so"], object)})
    assert "the input 'day' expects ISO 8601 dates" in said


def test_null_in_json_names_the_input(server):
    body = {"inputs": [{"name": "a", "datatype": "FP64", "shape": [1], "data": [None]}]}
    found = requests.post(f"{server.url}/v2/models/told/infer", json=body)
    assert found.status_code == 400 and "'a'" in found.json()["error"]


def test_parameters_of_the_request_replace_the_defaults(client):
    given = {"scale": 3, "words": '["x", "y"]'}
    assert client.infer("told", {"a": column(1, 2)})["total"].tolist() == [3.0, 5.0]
    found = client.infer("told", {"a": column(1, 2)}, parameters=given)
    assert found["total"].tolist() == [5.0, 8.0]


def test_parameter_of_the_wrong_type_is_named(client):
    said = refusal(client, {"a": column(1)}, parameters={"scale": "much"})
    assert "cannot predict" in said and "scale" in said
    said = refusal(client, {"a": column(1)}, parameters={"words": "x"})
    assert "the parameter 'words' expects a list or an object as JSON text" in said


def test_exception_of_the_model_is_the_cause_without_paths(client, saved):
    said = refusal(client, {"a": column(1)}, parameters={"fails": True})
    assert "the model told cannot predict: ValueError: no file" in said
    assert str(saved.parent) not in said


def test_explanations_are_refused(server):
    body = {"inputs": [{"name": "a", "datatype": "FP64", "shape": [1], "data": [1]}]}
    found = requests.post(f"{server.url}/v2/models/told/explain", json=body)
    assert found.status_code == 501 and "MLflow has no explanations" in found.json()["error"]


def test_requests_with_other_parameters_are_joined_but_predicted_apart(saved, tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    folder = copied(saved, tmp_path, "batching: {max_batch_size: 8, max_delay_ms: 100}\n")
    with Server(folder, start_timeout=120) as server, Client(server.url) as client:

        def ask(scale):
            found = client.infer("told", {"a": column(1, 2)}, parameters={"scale": scale})
            return found["total"].tolist()

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(ask, [1, 1, 2, 3])) == [[2, 3], [2, 3], [3, 5], [4, 7]]


# ---- MLflow's routes ---------------------------------------------------------------------------


def test_invocations_of_several_models_names_the_route_of_each(saved, tmp_path):
    for name in ("one", "two"):
        copied(saved, tmp_path / "models", name=name)
    with Server(tmp_path / "models", start_timeout=180) as server:
        found = requests.post(f"{server.url}/invocations", json={"inputs": {"a": [1]}})
        assert found.status_code == 404
        assert found.json() == {
            "error_code": "RESOURCE_DOES_NOT_EXIST",
            "message": "/invocations is for a server with one MLflow model, and this server has 2 ('one', 'two'); any model "
            "is called at /v2/models/NAME/infer",
        }
        assert requests.get(f"{server.url}/ping").status_code == 404


def test_invocations_without_a_model_of_mlflow_names_the_other_route(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/handler.py").write_text(
        "def handle(batch, context):\n    return dict(batch)\n"
    )
    with Server(tmp_path / "own") as server:
        found = requests.post(f"{server.url}/invocations", json={"inputs": {"a": [1]}})
        assert found.status_code == 404
        assert "this server has none; any model is called at" in found.json()["message"]


def test_torchserve_has_its_invocations_if_it_is_asked_for(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/handler.py").write_text(
        "def handle(batch, context):\n    return dict(batch)\n"
    )
    with Server(tmp_path / "own", torchserve_api=True) as server:
        found = requests.post(f"{server.url}/invocations", json={"inputs": {"a": [1]}})
        assert found.json()["type"] == "BadRequestException"
        assert requests.get(f"{server.url}/ping").json() == {"status": "Healthy"}


# ---- interpreters and packages -----------------------------------------------------------------


def copied(saved, parent, settings="", name="told"):
    """Return a copy of a model with a model.yaml."""
    import shutil

    folder = parent / name
    shutil.copytree(saved, folder)
    if settings:
        (folder / "model.yaml").write_text(settings)
    return folder


def environment(folder: Path, *, packages: bool) -> Path:
    """Make an environment that has the packages of these tests, or none."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    if packages:
        paths = [path for path in sys.path if path.endswith("site-packages")]
        (site / "others.pth").write_text("\n".join(paths))
    return folder


def load_error(folder):
    with pytest.raises(ServerFailed) as failed, Server(folder, start_timeout=120):
        pass
    return str(failed.value)


def test_interpreter_without_mlflow_is_named_with_three_remedies(tmp_path):
    own = environment(tmp_path / "own", packages=False)
    folder = write(tmp_path / "m", settings=f"python: {own}\n")
    (folder / "model.ubj").write_bytes(b"{")
    said = load_error(folder)
    python = own / "bin/python"
    assert (
        f"No module named 'mlflow'; {python} needs MLflow: {python} -m pip install mlflow-skinny"
        in said
    )
    assert f"pip install -r {folder / 'requirements.txt'}), and name it in" in said
    assert f"or serve its file without MLflow: ksrv serve {folder / 'model.ubj'}" in said


def test_model_runs_in_the_interpreter_of_its_model_yaml(saved, tmp_path):
    own = environment(tmp_path / "own", packages=True)
    folder = copied(saved, tmp_path, f"python: {own}\n")
    with Server(folder, start_timeout=120) as server, Client(server.url) as client:
        assert client.infer("told", {"a": column(1)})["prefix"].tolist() == [str(own).encode()]


def test_other_versions_than_saved_are_logged_with_the_remedy(saved, tmp_path):
    folder = copied(saved, tmp_path)
    (folder / "requirements.txt").write_text(
        "# as saved\nmlflow>=2\nnumpy==1.0.1\nnot-there==3.0\nabsent; python_version < '3'\n-r other.txt\n"
    )
    (folder / "python_env.yaml").write_text(yaml.safe_dump({"python": "3.8.10"}))
    with Server(folder, start_timeout=120) as server:
        log = server.log
    version = ".".join(map(str, sys.version_info[:3]))
    assert (
        f"{sys.executable} differs from the files of the model: Python {version} (saved with 3.8.10), numpy "
        f"{np.__version__} (saved with ==1.0.1), not-there is missing (saved with ==3.0); if its answers are wrong, make an "
        f"environment" in log
    )
    assert "absent" not in log


def test_nothing_is_logged_about_an_environment_as_saved(server):
    assert "differs from" not in server.log


def test_missing_library_is_named_with_what_the_model_was_saved_with(saved, tmp_path):
    folder = copied(saved, tmp_path)
    (folder / "told.py").write_text(LOOKED_AT)
    (folder / "requirements.txt").write_text("not-there==3.0\n")
    said = load_error(folder)
    assert "ModuleNotFoundError: No module named 'not_there'" in said
    assert (
        "not-there is missing (saved with ==3.0); make an environment (python -m venv DIR" in said
    )
    assert f"and name it in {folder / 'model.yaml'}: 'python: DIR'" in said
