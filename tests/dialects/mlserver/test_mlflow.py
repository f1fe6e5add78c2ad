"""MLflow's folders with the settings of mlserver_mlflow: inputs are converted, and answers have MLServer's forms."""

import json

import numpy as np
import pytest
import requests

from ksrv.testing import Server

mlflow = pytest.importorskip("mlflow", reason="make test-dialects installs it")
pandas = pytest.importorskip("pandas", reason="make test-dialects installs it")
pytest.importorskip("pydantic", reason="make test-dialects installs it")

pytestmark = pytest.mark.long

CODE = """
import mlflow.pyfunc
import pandas
from mlflow.models import set_model


class Model(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        if not isinstance(model_input, pandas.DataFrame):
            return {"sum": model_input.sum(axis=1), "first": model_input[:1]}
        table = pandas.DataFrame({"total": model_input["a"] + model_input["b"], "word": model_input["word"].str.upper()})
        return table if (params or {}).get("table") else table["total"].to_numpy()


set_model(Model())
"""
COLUMNS = pandas.DataFrame({"a": [1.5], "b": [2.0], "word": ["one"]})


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    spec = mlflow.types.TensorSpec(np.dtype(np.float32), (-1, 3))
    tensor = mlflow.models.ModelSignature(mlflow.types.Schema([spec]))
    signatures = {
        "columns": mlflow.models.infer_signature(COLUMNS, [3.5], {"table": False}),
        "tensor": tensor,
    }
    for name, signature in signatures.items():
        (root / name).mkdir()
        code = root / f"{name}.py"
        code.write_text(CODE)
        mlflow.pyfunc.save_model(root / name / "saved", python_model=str(code), signature=signature)
        code.unlink()
        settings = {
            "implementation": "mlserver_mlflow.MLflowRuntime",
            "parameters": {"uri": "./saved", "version": "v1"},
        }
        (root / name / "model-settings.json").write_text(json.dumps(settings))
    with Server(root, start_timeout=300) as running:
        yield running


def column(name, values, datatype="FP32", **parameters):
    return {
        "name": name,
        "datatype": datatype,
        "shape": [len(values), 1],
        "data": values,
        "parameters": parameters,
    }


def post(server, model, *inputs, **fields):
    body = {"inputs": list(inputs), **fields}
    return requests.post(f"{server.url}/v2/models/{model}/versions/v1/infer", json=body, timeout=60)


NUMBERS = (column("a", [1.5, 3]), column("b", [2, 4], "INT32"))
WORDS = column("word", ["one", "two"], "BYTES", content_type="str")


def test_numbers_are_converted_to_the_signature_and_the_output_is_MLServers(server):
    answer = post(server, "columns", *NUMBERS, WORDS)
    assert answer.status_code == 200, answer.text
    assert answer.json()["parameters"] == {"content_type": "np"}
    [output] = answer.json()["outputs"]
    assert output == {
        "name": "output-1", "datatype": "FP64", "shape": [2, 1], "parameters": {"content_type": "np"}, "data": [3.5, 7.0],
    }  # fmt: skip


def test_a_table_has_an_output_for_each_column(server):
    answer = post(server, "columns", *NUMBERS, WORDS, parameters={"table": True})
    outputs = {each["name"]: each["data"] for each in answer.json()["outputs"]}
    assert outputs == {"total": [3.5, 7.0], "word": ["ONE", "TWO"]}
    assert answer.json()["parameters"] == {"content_type": "pd"}


def test_a_tensor_has_any_name_and_a_dictionary_an_output_for_each_entry(server):
    rows = {"name": "predict", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}
    outputs = {
        each["name"]: each["data"] for each in post(server, "tensor", rows).json()["outputs"]
    }
    assert outputs == {"sum": [6.0, 15.0], "first": [1.0, 2.0, 3.0]}


@pytest.mark.parametrize(
    ("model", "inputs", "error"),
    [
        ("columns", [*NUMBERS], "missing inputs ['word']"),
        ("columns", [column("z", [1])], "the request has none of the inputs a, b, word"),
        ("columns", [*NUMBERS, column("word", ["one"], "BYTES")],
         "the columns have different lengths: {'a': 2, 'b': 2, 'word': 1}"),
        ("columns", [column("a", ["x", "y"], "BYTES"), NUMBERS[1], WORDS], "Failed to convert column a from type object to"),
        ("tensor", [*NUMBERS], "the model takes one tensor, and the request has 2"),
        ("tensor", [column("x", [1.0])], "Shape of input (1, 1) does not match expected shape (-1, 3)"),
    ],
)  # fmt: skip
def test_a_request_that_does_not_fit_gets_400(server, model, inputs, error):
    answer = post(server, model, *inputs)
    assert answer.status_code == 400
    assert error in answer.json()["error"]


def test_metadata_shows_the_signature(server):
    answer = requests.get(f"{server.url}/v2/models/columns", timeout=60).json()
    assert answer["inputs"][0] == {"name": "a", "datatype": "FP64", "shape": [-1]}
