"""MLflow's scoring routes: each form of a request is answered as MLflow's own scoring server answers it.

The forms are from MLflow's tests of its server. The oracle is the function that answers them there.
"""

import json
from collections.abc import Iterator

import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.model_files import mlflow_models

mlflow = pytest.importorskip("mlflow")
pd = pytest.importorskip("pandas")
pytest.importorskip("sklearn")

JSON, CSV, PARQUET = "application/json", "text/csv", "application/vnd.apache.parquet"

ECHO = """
import mlflow


class Echo(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        if isinstance(model_input, dict):
            found = [[name, str(value.dtype), list(value.shape)] for name, value in model_input.items()]
        else:
            found = [[str(name), str(kind)] for name, kind in model_input.dtypes.items()]
            found += [[str(value) for value in row] for row in model_input.to_numpy().tolist()]
        return [*found, params]


mlflow.models.set_model(Echo())
"""
"""Answers the types and the values that reach a model."""

CHAT = """
import mlflow


class Chat(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return {"choices": [str(model_input), params]}


mlflow.models.set_model(Chat())
"""


def save_code(folder, code, **options):
    source = folder.parent / f"{folder.name}.py"
    source.write_text(code)
    mlflow.pyfunc.save_model(
        str(folder), python_model=str(source), pip_requirements=["mlflow-skinny"], **options
    )


def columns():
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    kinds = ["boolean", "integer", "long", "float", "double", "binary", "datetime", "string"]
    optional = ColSpec("double", "maybe", required=False)
    params = [
        ParamSpec("when", DataType.datetime, np.datetime64("2023-07-01")),
        ParamSpec("count", DataType.long, 3),
        ParamSpec("words", DataType.string, ["a"], shape=(-1,)),
    ]
    return ModelSignature(
        Schema([*(ColSpec(kind, kind) for kind in kinds), optional]), params=ParamSchema(params)
    )


def tensors():
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    shape = [(-1, 2), (-1, 2)]
    kinds = [np.dtype("float32"), np.dtype("int64")]
    made = [TensorSpec(kind, one, name) for kind, one, name in zip(kinds, shape, "ab", strict=True)]
    return ModelSignature(Schema(made))


class Pair:
    """A served model, and the same model in MLflow."""

    def __init__(self, folder, server):
        from mlflow.pyfunc import load_model

        self.server, self.model = server, load_model(str(folder))

    def post(self, body, content_type):
        url = f"{self.server.url}/invocations"
        return requests.post(url, data=body, headers={"Content-Type": content_type})

    def expected(self, body, content_type):
        """Return the status and the text that MLflow's server answers."""
        from mlflow.exceptions import MlflowException
        from mlflow.pyfunc import scoring_server

        schema = self.model.metadata.get_input_schema()
        raw = body.encode() if isinstance(body, str) else body
        try:
            answer = scoring_server.invocations(raw, content_type, self.model, schema)
        except MlflowException as error:
            return error.get_http_status_code(), error.serialize_as_json()
        return answer.status, answer.response


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Iterator:
    """Return a function that serves a model, each once."""
    root, made = tmp_path_factory.mktemp("models"), {}
    save = {
        "knn": lambda folder: mlflow_models.sklearn_pickle(folder),
        "columns": lambda folder: save_code(folder, ECHO, signature=columns()),
        "tensors": lambda folder: save_code(folder, ECHO, signature=tensors()),
        "open": lambda folder: save_code(folder, ECHO),
        "chat": lambda folder: save_code(folder, CHAT),
    }

    def serve(name):
        if name not in made:
            folder = root / name
            save[name](folder)
            if name == "knn":
                (folder / "model.yaml").write_text("trust: pickle\n")
            server = Server(folder, start_timeout=120)
            server.start()
            made[name] = Pair(folder, server)
        return made[name]

    yield serve
    for one in made.values():
        one.server.close()


def frame():
    return pd.DataFrame(
        {
            "boolean": [True, False],
            "integer": np.array([1, 2], np.int32),
            "long": np.array([1, 2**40]),
            "float": np.array([np.pi, -0.5], np.float32),
            "double": [np.pi, -0.5],
            "binary": ["AQID", "BAUG"],
            "datetime": ["2021-01-01T00:00:00", "2021-03-03T12:00:00"],
            "string": ["a", "é"],
        }
    )


def split(data, **more):
    return json.dumps({"dataframe_split": data.to_dict(orient="split"), **more})


def records(data, **more):
    return json.dumps({"dataframe_records": data.to_dict(orient="records"), **more})


def lists(data, **more):
    return json.dumps({"inputs": data.to_dict(orient="list"), **more})


ROWS = [[0.5, 1.0, -1.0, 2.0], [0.0, 0.0, 0.0, 0.0]]
TWO = pd.DataFrame(ROWS, columns=["a", "b", "c", "d"])
PAIRS = [{"a": [1, 2], "b": [3, 4]}, {"a": [5, 6], "b": [7, 8]}]

SERVED = [
    ("knn", records(TWO), JSON),
    ("knn", records(TWO), f"{JSON}; charset=UTF-8"),
    ("knn", split(TWO), f"{JSON}; charset=utf-8"),
    ("knn", split(TWO), JSON),
    ("knn", json.dumps({"instances": ROWS}), JSON),
    ("knn", json.dumps({"inputs": ROWS}), JSON),
    ("knn", TWO.to_csv(index=False), CSV),
    ("knn", records(TWO, unknown=1), JSON),
    ("columns", split(frame()), JSON),
    ("columns", split(frame()[sorted(frame())]), JSON),
    ("columns", records(frame()), JSON),
    ("columns", lists(frame()), JSON),
    ("columns", json.dumps({"instances": frame().to_dict(orient="records")}), JSON),
    ("columns", records(frame(), params={"count": 7, "words": ["x", "y"]}), JSON),
    ("columns", records(frame(), params={"when": "2024-01-01T00:00:00"}), JSON),
    ("columns", records(frame(), params={"unknown": "value"}), JSON),
    ("columns", records(frame().assign(maybe=[1.5, 2.5], more=["x", "y"])), JSON),
    ("columns", records(frame().assign(maybe=[1.5, None])), JSON),
    ("columns", records(frame().assign(string=[None, "b"])), JSON),
    ("columns", records(frame().assign(double=[1, 2])), JSON),
    ("tensors", json.dumps({"instances": PAIRS}), JSON),
    ("tensors", json.dumps({"inputs": {"a": [[1, 2]], "b": [[3, 4]]}}), JSON),
    ("open", '{"dataframe_records": [{"zip": "95120", "cost": 10.45, "score": 8}]}', JSON),
    ("open", '{"dataframe_split": {"columns": ["zip", "n"], "index": [0], "data": [["1", -8]]}}', JSON),
    ("open", split(pd.DataFrame({"url": ["http://a.example"], "bad": ["aaa://bbb"]})), JSON),
    ("open", '{"dataframe_records": [{"x": NaN}, {"x": 1}]}', JSON),
    ("open", "zip,cost\n95120,10.45\n,3\n", CSV),
    ("chat", '{"messages": [{"role": "user", "content": "hello"}], "temperature": 0.5}', JSON),
]  # fmt: skip
"""Models, bodies and content types of requests that are served."""

REFUSED = [
    ("knn", "this is,,,, not valid json", JSON, "valid JSON formatted string"),
    ("knn", "1", JSON, "exactly one of the input fields"),
    ("knn", '"1"', JSON, "exactly one of the input fields"),
    ("knn", "[1]", JSON, "exactly one of the input fields"),
    ("knn", '{"not": "a serialized dataframe"}', JSON, "exactly one of the input fields"),
    ("knn", '{"dataframe_records": [], "dataframe_split": {"data": []}}', JSON, "exactly one of"),
    ("knn", '{"dataframe_split": [{"a": 1}]}', JSON, "must be a dictionary. Got list"),
    ("knn", '{"dataframe_records": {"data": [[1]]}}', JSON, "must be a list of records"),
    ("knn", '{"dataframe_split": {"index": [1, 2], "data": [[1], [2], [3]]}}', JSON, "not a valid"),
    ("knn", '{"dataframe_split": {"data": [[1], [2]]}}', JSON, "ValueError: X has 1 features, but"),
    ("knn", '{"dataframe_split": {"data": [["a", 1, 2, 3]]}}', JSON, "could not convert string"),
    ("knn", "", CSV, "No columns to parse"),
    ("knn", b"a,b\n\xff\xfe", CSV, "UTF-8"),
    ("knn", b'{"inputs": "\xff"}', JSON, "invalid start byte"),
    ("knn", b"", PARQUET, "Parquet"),
    ("knn", '{"instances": [[1, 2], [3]]}', JSON, "inhomogeneous"),
    ("columns", records(frame().drop(columns="long")), JSON, "missing inputs ['long']"),
    ("columns", records(frame().assign(double=["a", "b"])), JSON, "double"),
    ("columns", records(frame().assign(long=["a", "b"])), JSON, "long"),
    ("columns", records(frame().assign(binary=["*", "AQ"])), JSON, "binary"),
    ("columns", records(frame(), params={"when": "invalid_value1"}), JSON, "when"),
    ("columns", records(frame(), params={"count": "x"}), JSON, "count"),
    ("columns", records(frame(), params=[1]), JSON, "dictionary"),
    ("tensors", json.dumps({"inputs": {"a": [[1, 2]]}}), JSON, "missing inputs ['b']"),
    ("tensors", json.dumps({"inputs": {"a": [[1, 2, 3]], "b": [[3, 4]]}}), JSON, "shape"),
    ("tensors", json.dumps({"instances": [{"a": [1, 2], "b": [3, 4]}, {"a": [1, 2]}]}), JSON, "same"),
]  # fmt: skip
"""Models, bodies and content types of requests that are refused with 400, and a part of the message."""

UNSUPPORTED = [
    "not_a_supported_content_type",
    "application/json; something=something",
    "text/csv; charset=latin-1",
    "",
]


@pytest.mark.parametrize(("name", "body", "content_type"), SERVED)
def test_served_form_gets_mlflows_answer(pair, name, body, content_type):
    one = pair(name)
    found = one.post(body, content_type)
    status, text = one.expected(body, content_type)
    assert (found.status_code, found.text) == (status, text)
    assert status == 200
    assert found.headers["Content-Type"] == JSON


@pytest.mark.parametrize(("name", "body", "content_type", "said"), REFUSED)
def test_wrong_request_gets_mlflows_error_code_and_the_cause(pair, name, body, content_type, said):
    one = pair(name)
    found = one.post(body, content_type)
    assert found.status_code == 400, found.text
    assert found.headers["Content-Type"] == JSON
    document = found.json()
    assert set(document) == {"error_code", "message"}
    assert said in document["message"]
    status, text = one.expected(body, content_type)
    assert (status, json.loads(text)["error_code"]) == (400, document["error_code"])


def test_parquet_is_read(pair):
    pytest.importorskip("pyarrow")
    one, body = pair("knn"), TWO.to_parquet()
    found = one.post(body, PARQUET)
    assert (found.status_code, found.text) == one.expected(body, PARQUET)


@pytest.mark.parametrize("content_type", UNSUPPORTED)
def test_unsupported_content_type_gets_415(pair, content_type):
    found = pair("knn").post(split(TWO), content_type)
    assert found.status_code == 415
    assert found.headers["Content-Type"].startswith("text/plain")
    assert "content type" in found.text or "UTF-8" in found.text


@pytest.mark.parametrize(
    "body",
    ["[" * 100_000, '{"inputs": ' + "[" * 50_000 + "]" * 50_000 + "}", '{"inputs": 1e999}', "{}", "null"],
)  # fmt: skip
def test_hostile_body_gets_an_answer_and_the_model_lives_on(pair, body):
    one = pair("knn")
    assert one.post(body, JSON).status_code == 400
    assert one.post(records(TWO), JSON).status_code == 200


WIDE = [f"c{index}" for index in range(6000)]


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (",".join(WIDE) + "\n" + ",".join("1" * 6000), CSV),
        ("a,b\n" + ",".join("1" * 6000), CSV),
        (json.dumps({"dataframe_records": [{name: 1} for name in WIDE]}), JSON),
        (json.dumps({"dataframe_records": [dict.fromkeys(WIDE, 1)]}).replace("_", "\\u005f"), JSON),
    ],
)
def test_table_of_far_too_many_columns_gets_400_without_pandas(pair, body, content_type):
    found = pair("columns").post(body, content_type)
    assert found.status_code == 400
    assert "the table has 6000 columns, and the model takes" in found.json()["message"]


def test_predictions_without_a_form_in_json_get_500(tmp_path):
    code = CHAT.replace('{"choices": [str(model_input), params]}', "object()")
    save_code(tmp_path / "odd", code)
    with Server(tmp_path / "odd", start_timeout=120) as server:
        found = requests.post(f"{server.url}/invocations", json={"inputs": [1]})
    assert found.status_code == 500
    assert "is not JSON serializable" in found.json()["message"]


def test_mlflows_client_serves_itself(pair):
    from mlflow.pyfunc.scoring_server.client import ScoringServerClient

    one = pair("knn")
    host, port = one.server.http.rsplit(":", 1)
    client = ScoringServerClient(host, int(port))
    client.wait_server_ready()
    assert client.get_version() == mlflow.__version__
    answer = client.invoke(TWO).get_predictions()
    assert np.array_equal(answer.to_numpy(), one.model.predict(TWO.to_numpy()))


def test_health_needs_no_token_and_invocations_do(tmp_path):
    save_code(tmp_path / "open", ECHO)
    (tmp_path / "tokens").write_text("secret\n")
    with Server(
        tmp_path / "open", token_file=str(tmp_path / "tokens"), start_timeout=120
    ) as server:
        for path in ("/ping", "/health"):
            found = requests.get(server.url + path)
            assert (found.status_code, found.text) == (200, "\n")
        refused = requests.post(f"{server.url}/invocations", json={"inputs": [1]})
        assert (refused.status_code, refused.json()["error_code"]) == (401, "UNAUTHENTICATED")
        assert requests.get(f"{server.url}/version").status_code == 401
