"""Tabular models in folders: with settings, versions and handlers, and batches in which one request is at fault."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests

from ksrv.client import Client
from ksrv.client.errors import InvalidRequest
from ksrv.testing import Server
from ksrv.testing.server import ServerFailed

pytest.importorskip("xgboost", reason="make test-dialects installs it")
pytest.importorskip("sklearn", reason="make test-dialects installs it")
pytest.importorskip("pandas", reason="make test-dialects installs it")
pytest.importorskip("joblib", reason="make test-dialects installs it")

import joblib
import pandas
import xgboost
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

CITIES = ["Oslo", "Rome", "Kyiv"]
FRAME = pandas.DataFrame({"age": np.arange(60.0), "city": pandas.Categorical(CITIES * 20)})
LABELS = (FRAME["age"] + 20 * (FRAME["city"] == "Oslo") > 35).astype(int).to_numpy()
NUMBERS = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)

PEOPLE = xgboost.XGBClassifier(n_estimators=4, enable_categorical=True, n_jobs=1)
TREES = [xgboost.XGBRegressor(n_estimators=n, n_jobs=1) for n in (2, 5)]
NAMED = xgboost.XGBRegressor(n_estimators=3, n_jobs=1)

HANDLER = """
from ksrv import BaseHandler


class Named(BaseHandler):
    def postprocess(self, outputs):
        assert type(self.model.estimator).__name__ == "Booster"
        return {"answer": [("no", "yes")[one] for one in outputs["predict"]]}
"""
FILES = {
    "renamed/model.yaml": "model: people.ubj\noutputs: [chances]\nrename: {predict_proba: chances}\n",
    "handled/model.yaml": "model: people.ubj\nhandler: handler.py\n",
    "handled/handler.py": HANDLER,
    "columns/model.yaml": "model: trees.json\ninputs:\n"
    "  - {name: one, datatype: FP32, shape: [-1]}\n"
    "  - {name: two, datatype: INT64, shape: [-1]}\n"
    "  - {name: three, datatype: FP64, shape: [-1, 1]}\n",
    "matrix/model.yaml": "model: named.ubj\n"
    "inputs: [{name: table, datatype: FP32, shape: [-1, 3]}]\n",
    "turned/model.yaml": "model: named.ubj\ninputs:\n"
    "  - {name: c, datatype: FP32, shape: [-1]}\n"
    "  - {name: a, datatype: FP32, shape: [-1]}\n"
    "  - {name: b, datatype: FP32, shape: [-1]}\n",
    "joined/model.yaml": "model: pipe.joblib\ntrust: pickle\n"
    "batching: {max_batch_size: 64, max_delay_ms: 300}\n",
    "slow/model.yaml": "model: people.ubj\nbatching: {max_batch_size: 64, max_delay_ms: 300}\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    PEOPLE.fit(FRAME, LABELS)
    for name in ("renamed", "handled", "slow"):
        PEOPLE.save_model(root / name / "people.ubj")
    for version, trees in enumerate(TREES, 1):
        trees.fit(NUMBERS, LABELS)
        (root / "versions" / str(version)).mkdir(parents=True)
        trees.save_model(root / f"versions/{version}/trees.json")
    (root / "versions/model.yaml").write_text("model: trees.json\nversion_policy: all\n")
    TREES[0].save_model(root / "columns/trees.json")
    NAMED.fit(pandas.DataFrame(NUMBERS, columns=["a", "b", "c"]), LABELS)
    for name in ("matrix", "turned"):
        NAMED.save_model(root / name / "named.ubj")
    joblib.dump(pipeline(), root / "joined/pipe.joblib")
    return root


def pipeline():
    columns = make_column_transformer((OneHotEncoder(), ["city"]), remainder="passthrough")
    frame = FRAME.astype({"city": object})
    return make_pipeline(columns, LogisticRegression()).fit(frame, LABELS)


@pytest.fixture(scope="module")
def server(folder):
    with Server(folder, start_timeout=120) as running:
        yield running


ROWS = {"age": FRAME["age"].to_numpy(np.float32), "city": np.array(CITIES * 20, object)}


def test_outputs_are_chosen_and_renamed(client):
    answer = client.infer("renamed", ROWS)
    assert list(answer) == ["chances"]
    assert answer["chances"].tobytes() == PEOPLE.predict_proba(FRAME).tobytes()


def test_handler_gets_the_model(client):
    answer = client.infer("handled", ROWS)["answer"]
    assert [one == b"yes" for one in answer] == PEOPLE.predict(FRAME).astype(bool).tolist()


def test_each_version_has_its_file(client):
    for version, trees in enumerate(TREES, 1):
        answer = client.infer("versions", {"input": NUMBERS}, version=str(version))
        assert answer["predict"].tobytes() == trees.predict(NUMBERS).tobytes()


def test_declared_columns_of_a_file_without_names_are_taken_in_order(client):
    table = np.round(NUMBERS)
    one, two, three = table.T
    inputs = {"one": one, "two": two.astype(np.int64), "three": three[:, None].astype(np.float64)}
    expected = TREES[0].predict(table)
    assert client.infer("columns", inputs)["predict"].tobytes() == expected.tobytes()


def test_declared_matrix_of_a_file_with_names_has_the_order_of_the_file(client):
    expected = NAMED.predict(pandas.DataFrame(NUMBERS, columns=["a", "b", "c"]))
    assert client.infer("matrix", {"table": NUMBERS})["predict"].tobytes() == expected.tobytes()


def test_declared_columns_with_the_names_of_the_file_may_have_any_order(client):
    expected = NAMED.predict(pandas.DataFrame(NUMBERS, columns=["a", "b", "c"]))
    answer = client.infer("turned", dict(zip("abc", NUMBERS.T, strict=True)))
    assert answer["predict"].tobytes() == expected.tobytes()


def test_rows_of_kserve_v1_are_answered(server):
    rows = [{"age": 20, "city": "Oslo"}, {"age": None, "city": None}]
    answer = requests.post(f"{server.url}/v1/models/handled:predict", json={"instances": rows})
    assert len(answer.json()["predictions"]) == 2, answer.text


@pytest.mark.parametrize("model", ["slow", "joined"])
def test_one_request_with_an_unknown_category_does_not_fail_the_others(server, model):
    def ask(place):
        city = "Bonn" if place == 3 else CITIES[place % 3]
        with Client(server.url) as calls:
            rows = {"age": np.array([place], np.float64), "city": np.array([city], object)}
            if model == "slow":
                rows["age"] = rows["age"].astype(np.float32)
            return calls.infer(model, rows)["predict"].tolist()

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, place) for place in range(8)]
    for place, one in enumerate(asked):
        if place == 3:
            with pytest.raises(InvalidRequest, match="Bonn"):
                one.result()
        else:
            assert one.result() in ([0], [1])
    stats = requests.get(f"{server.url}/v2/models/{model}/stats").json()["model_stats"][0]
    assert int(stats["execution_count"]) < int(stats["inference_count"])


def test_larger_requests_than_a_batch_run_alone(client):
    many = np.tile(NUMBERS, (50, 1))
    answer = client.infer("versions", {"input": many})["predict"]
    assert answer.tobytes() == TREES[1].predict(many).tobytes()


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ("[{name: x, datatype: FP32, shape: [-1, 4]}]", "the model has 2 columns; declare one input"),
        ("[{name: x, datatype: FP32, shape: [-1, 2]}]", "the column 'city' has texts"),
        (
            "[{name: age, datatype: FP32, shape: [-1]}]",
            "declare one input of the shape [-1, 2] or an input of the shape [-1] for each column",
        ),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_the_file_are_refused(folder, tmp_path, inputs, text):
    made = tmp_path / "model"
    made.mkdir()
    PEOPLE.save_model(made / "people.ubj")
    (made / "model.yaml").write_text(f"model: people.ubj\ninputs: {inputs}\n")
    with pytest.raises(ServerFailed) as failed, Server(made):
        pass
    assert text in str(failed.value)
