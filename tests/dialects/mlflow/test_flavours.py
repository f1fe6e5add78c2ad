"""Models of MLflow's flavours, saved by the test: ksrv answers what `mlflow.pyfunc.load_model(...).predict` answers."""

import io
import json

import numpy as np
import pytest
import requests

from ksrv.client import Client
from ksrv.testing import Server
from tests.support.model_files.mlflow_models import FLAVOURS

mlflow = pytest.importorskip("mlflow")
pd = pytest.importorskip("pandas")

LIBRARIES = {"pytorch": "torch", "code": "mlflow", "pyfunc": "mlflow", "sklearn": "skops"}


class Served:
    """A flavour's folder, its data, the predictions of MLflow, and a server with the model."""

    def __init__(self, folder, data, server):
        import mlflow.pyfunc

        self.name, self.data, self.server = folder.name, data, server
        self.model = mlflow.pyfunc.load_model(str(folder))
        self.predictions = self.model.predict(data)

    @property
    def inputs(self):
        """The data as inputs of KServe v2."""
        if isinstance(self.data, dict):
            return self.data
        if isinstance(self.data, pd.DataFrame):
            return {name: self.data[name].to_numpy() for name in self.data}
        return {"input": self.data}

    @property
    def outputs(self):
        """The predictions as outputs of KServe v2."""
        if isinstance(self.predictions, pd.DataFrame):
            return {str(name): self.predictions[name].to_numpy() for name in self.predictions}
        if isinstance(self.predictions, dict):
            return self.predictions
        return {"predict": np.asarray(self.predictions)}


@pytest.fixture(scope="module", params=FLAVOURS)
def served(request, tmp_path_factory):
    save, is_pickle = FLAVOURS[request.param]
    library = request.param.partition("-")[0]
    pytest.importorskip(LIBRARIES.get(library, library))
    folder = tmp_path_factory.mktemp("models") / request.param
    data = save(folder)
    settings = "trust: pickle\n" if is_pickle else ""
    settings += "env: {KERAS_BACKEND: torch}\n" if library == "keras" else ""
    if settings:
        (folder / "model.yaml").write_text(settings)
    with Server(folder, start_timeout=200) as server:
        yield Served(folder, data, server)


def same(found, expected):
    if expected.dtype == object:  # texts, or values that KServe v2 has no datatype for
        expected = [one if isinstance(one, str) else json.dumps(one) for one in expected]
        found = [one.decode() if isinstance(one, bytes) else one for one in found]
        return found == expected
    return found.shape == expected.shape and np.array_equal(found, expected)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_inference_answers_what_mlflow_predicts(served, protocol):
    server = served.server
    with Client(server.url if protocol == "http" else f"grpc://{server.grpc}") as client:
        answer = client.infer(served.name, served.inputs)
    assert set(answer) == set(served.outputs)
    for name, expected in served.outputs.items():
        assert same(answer[name], expected), name


def test_signature_is_the_metadata(served):
    document = requests.get(f"{served.server.url}/v2/models/{served.name}").json()
    assert document["platform"] == "mlflow"
    schema = served.model.metadata.get_input_schema()
    given = [one["name"] for one in document["inputs"]]
    if schema is not None:
        names = [column.name or "input" for column in schema.inputs]
        assert given == names


def test_invocations_answer_what_mlflows_server_answers(served):
    from mlflow.pyfunc import scoring_server

    if isinstance(served.data, pd.DataFrame):
        body = {"dataframe_split": served.data.to_dict(orient="split")}
    elif isinstance(served.data, dict):
        body = {"inputs": {name: values.tolist() for name, values in served.data.items()}}
    else:
        body = {"inputs": served.data.tolist()}
    found = requests.post(f"{served.server.url}/invocations", json=body)
    written = io.StringIO()
    scoring_server.predictions_to_json(served.predictions, written)
    assert found.status_code == 200, found.text
    assert found.json() == json.loads(written.getvalue())


HINTS = """
import mlflow
import pydantic


class Message(pydantic.BaseModel):
    role: str
    length: int = 0


class Hinted(mlflow.pyfunc.PythonModel):
    def predict(self, model_input: list[HINT], params=None) -> list[str]:
        return [f"{type(one).__name__} {one}" for one in model_input]


mlflow.models.set_model(Hinted())
"""
HINTED = {
    "str": ["a", "\u00e9"],
    "Message": [{"role": "user", "length": 1}, {"role": "system"}],
    "dict[str, int]": [{"a": 1}, {"b": 2}],
}


def test_type_hints_of_predict_declare_the_input(tmp_path):
    from mlflow.pyfunc import load_model, save_model

    for index, hint in enumerate(HINTED):
        source = tmp_path / f"{index}.py"
        source.write_text(HINTS.replace("HINT", hint))
        folder = tmp_path / "models" / f"m{index}"
        save_model(str(folder), python_model=str(source), pip_requirements=["mlflow-skinny"])
    with Server(tmp_path / "models", start_timeout=200) as server, Client(server.url) as client:
        for index, rows in enumerate(HINTED.values()):
            texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
            found = client.infer(f"m{index}", {"input": texts})["predict"]
            expected = load_model(str(tmp_path / "models" / f"m{index}")).predict(rows)
            assert [text.decode() for text in found] == expected
