"""MLServer's runtimes of tabular models: the answers are the libraries' own, in MLServer's forms; and first mistakes."""

import json
import sys

import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.wait_until import wait_until

pytest.importorskip("pydantic", reason="make test-dialects installs it")
pytest.importorskip("pandas", reason="make test-dialects installs it")
pytest.importorskip("xgboost", reason="make test-dialects installs it")
pytest.importorskip("lightgbm", reason="make test-dialects installs it")
pytest.importorskip("catboost", reason="make test-dialects installs it")
pytest.importorskip("sklearn", reason="make test-dialects installs it")
pytest.importorskip("skops", reason="make test-dialects installs it")

import catboost
import joblib
import lightgbm
import pandas
import skops.io
import xgboost
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from ksrv.dialects.mlserver.api.codecs import PandasCodec
from ksrv.dialects.mlserver.api.types import CodecError, InferenceRequest

pytestmark = pytest.mark.long

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(60, 4)).astype(np.float32)
LABELS = RANDOM.integers(0, 3, 60)
SOME = ROWS[:5]
TABLE = pandas.DataFrame({"a": [1, 2, 3], "op": ["+", "+", "-"]})


class Models:
    """The models, as the libraries have them."""

    def __init__(self):
        encoder = ColumnTransformer(
            [
                ("num", StandardScaler(), ["a"]),
                ("cat", OneHotEncoder(handle_unknown="ignore"), ["op"]),
            ]
        )
        self.linear = LogisticRegression(max_iter=500).fit(ROWS, LABELS)
        self.pipeline = Pipeline([("encode", encoder), ("regress", DummyRegressor())]).fit(
            TABLE, [11, 22, -33]
        )
        self.encoder = self.pipeline.steps[0][1]
        self.booster = xgboost.train(
            {"objective": "binary:logistic"}, xgboost.DMatrix(ROWS, LABELS > 0), 3
        )
        self.classifier = xgboost.XGBClassifier(n_estimators=3).fit(ROWS, LABELS)
        self.light = lightgbm.train(
            {"objective": "multiclass", "num_class": 3, "verbose": -1},
            lightgbm.Dataset(ROWS, LABELS),
            3,
        )
        self.cat = catboost.CatBoostClassifier(
            iterations=3, verbose=False, allow_writing_files=False
        ).fit(ROWS, LABELS)


@pytest.fixture(scope="module")
def models():
    return Models()


def write(folder, kind, **settings):
    folder.mkdir(exist_ok=True)
    settings = {"implementation": f"mlserver_{kind}", **settings}
    (folder / "model-settings.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def server(tmp_path_factory, models):
    root = tmp_path_factory.mktemp("models")
    pickled = {"trust": "pickle", "parameters": {"uri": "./model.joblib", "version": "v0.1.0"}}
    for name in ("linear", "pipeline"):
        write(root / name, "sklearn.SKLearnModel", **pickled)
        joblib.dump(getattr(models, name), root / name / "model.joblib")
    write(
        root / "encoder",
        "sklearn.SKLearnModel",
        trust="pickle",
        parameters={"extra": {"predict_fn": "transform"}},
    )
    joblib.dump(models.encoder, root / "encoder" / "model.pkl")
    write(root / "safe", "sklearn.SKLearnModel", parameters={"uri": "model.skops"})
    skops.io.dump(models.linear, root / "safe" / "model.skops")
    write(root / "booster", "xgboost.XGBoostModel")
    models.booster.save_model(root / "booster" / "model.json")
    write(root / "classifier", "xgboost.XGBoostModel", max_batch_size=16, max_batch_time=0.01)
    models.classifier.save_model(root / "classifier" / "model.ubj")
    write(root / "light", "lightgbm.LightGBMModel", parameters={"uri": "./iris-lightgbm.bst"})
    models.light.save_model(root / "light" / "iris-lightgbm.bst")
    write(root / "cat", "catboost.CatboostModel")
    models.cat.save_model(root / "cat" / "model.cbm")
    with Server(root, start_timeout=300) as running:
        yield running


def post(server, model, *inputs, outputs=(), **fields):
    body = {"inputs": list(inputs), **fields}
    if outputs:
        body["outputs"] = [{"name": name} for name in outputs]
    return requests.post(f"{server.url}/v2/models/{model}/infer", json=body, timeout=30)


def rows(array=SOME):
    return {"name": "x", "datatype": "FP32", "shape": list(array.shape), "data": array.tolist()}


def arrays(answer):
    assert answer.status_code == 200, answer.text
    return {
        each["name"]: np.array(each["data"]).reshape(each["shape"])
        for each in answer.json()["outputs"]
    }


@pytest.mark.parametrize(
    ("model", "outputs", "expected"),
    [
        ("linear", (), lambda m: {"predict": m.linear.predict(SOME)}),
        ("safe", (), lambda m: {"predict": m.linear.predict(SOME)}),
        ("linear", ("predict_proba",), lambda m: {"predict_proba": m.linear.predict_proba(SOME)}),
        (
            "linear",
            ("predict_proba", "predict"),
            lambda m: {"predict_proba": m.linear.predict_proba(SOME), "predict": m.linear.predict(SOME)},
        ),
        ("booster", (), lambda m: {"predict": m.booster.predict(xgboost.DMatrix(SOME))}),
        ("classifier", (), lambda m: {"predict": m.classifier.predict(SOME)}),
        ("classifier", ("predict_proba",), lambda m: {"predict_proba": m.classifier.predict_proba(SOME)}),
        ("light", (), lambda m: {"predict": m.light.predict(SOME)}),
        ("cat", (), lambda m: {"predict": m.cat.predict(SOME)}),
    ],
)  # fmt: skip
def test_answers_are_those_of_the_library(server, models, model, outputs, expected):
    answer = post(server, model, rows(), outputs=outputs)
    found, wanted = arrays(answer), expected(models)
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].shape == (array.shape if array.ndim > 1 else (len(array), 1))
        assert (found[name].reshape(array.shape).astype(array.dtype) == array).all()
    assert all(each["parameters"] == {"content_type": "np"} for each in answer.json()["outputs"])


COLUMNS = (
    {"name": "a", "datatype": "INT32", "shape": [2], "data": [10, 2]},
    {
        "name": "op",
        "datatype": "BYTES",
        "shape": [2],
        "data": ["-", "+"],
        "parameters": {"content_type": "str"},
    },
)
SENT = pandas.DataFrame({"a": np.array([10, 2], np.int32), "op": ["-", "+"]})


def test_the_content_type_pd_makes_a_table_of_the_inputs(server, models):
    answer = post(server, "pipeline", *COLUMNS, parameters={"content_type": "pd"})
    assert arrays(answer)["predict"].reshape(-1).tolist() == models.pipeline.predict(SENT).tolist()


def test_predict_fn_names_the_default_output(server, models):
    answer = post(server, "encoder", *COLUMNS, parameters={"content_type": "pd"})
    assert arrays(answer)["transform"].tolist() == models.encoder.transform(SENT).tolist()


@pytest.mark.parametrize(
    ("model", "inputs", "fields", "error"),
    [
        ("linear", [rows()], {"outputs": ["label"]}, "no output 'label'; expected predict, predict_proba"),
        ("booster", [rows()], {"outputs": ["label"]}, "no output 'label'; expected predict"),
        ("linear", [rows(), {**rows(), "name": "y"}], {},
         "the content type 'np' takes one input, and the request has 2; a table with a column in each input has the content "
         "type 'pd'"),
        ("linear", [rows(ROWS[:2, :3])], {}, "predict refuses the inputs: X has 3 features, but LogisticRegression is "
         "expecting 4 features as input"),
        ("light", [rows(ROWS[:2, :3])], {}, "predict refuses the inputs: The number of features in data (3) is not the same"),
        ("cat", [rows(ROWS[:2, :3])], {}, "predict refuses the inputs: "),
        ("booster", [rows(ROWS[:2, :3])], {}, "predict refuses the inputs: "),
        ("linear", [{**rows(), "parameters": {"content_type": 5}}], {}, "inputs.0.parameters.content_type: Input should be a valid string"),
        ("pipeline", COLUMNS[:1], {"parameters": {"content_type": "pd"}},
         "predict refuses the inputs: columns are missing: {'op'}"),
        ("pipeline", [COLUMNS[0], {**COLUMNS[1], "shape": [1], "data": ["-"]}], {"parameters": {"content_type": "pd"}},
         "expected columns of one length, found {'a': 2, 'op': 1}"),
        ("pipeline", [], {"parameters": {"content_type": "pd"}}, "expected columns of one length, found {}"),
        ("pipeline", [{**COLUMNS[0], "shape": [1, 2]}, COLUMNS[1]], {"parameters": {"content_type": "pd"}},
         "the input 'a' has the shape [1, 2]; a column has [N] or [N, 1]"),
        ("linear", [{**rows(), "data": [["a"] * 4] * 5}], {}, "input 'x' (index 0): value 0 of 'data' is a string; FP32 takes"),
    ],
)  # fmt: skip
def test_a_request_that_does_not_fit_gets_400(server, model, inputs, fields, error):
    answer = post(server, model, *inputs, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"].startswith(error)


def test_table_without_pandas_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        CodecError, match="needs pandas, which the server lacks: pip install pandas"
    ) as raised:
        PandasCodec.decode_request(InferenceRequest(inputs=[]))
    assert raised.value.status_code == 400


def failure_of(folder):
    """Return the log of a server whose model cannot be loaded."""
    with Server(folder, wait_ready=False, grpc="off") as running:
        wait_until(lambda: "models loaded in" in running.log, 60, lambda: running.log)
        return running.log


@pytest.mark.parametrize(
    ("kind", "settings", "error"),
    [
        ("sklearn.SKLearnModel", {"trust": "pickle"}, "has no model.joblib or model.pickle or model.pkl or model.skops; name "
         "the file in parameters.uri"),
        ("sklearn.SKLearn", {"trust": "pickle"}, "wants 'SKLearn' from mlserver_sklearn (did you mean SKLearnModel?), which ksrv's stand-in does not have: "
         "pip install mlserver-sklearn"),
        ("alibi_detect.AlibiDetectRuntime", {}, "mlserver_alibi_detect.AlibiDetectRuntime cannot be imported: No module named "
         "'mlserver_alibi_detect'; the folder has no Python file; a package needs pip install mlserver-alibi-detect"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_load_names_the_remedy(tmp_path, kind, settings, error):
    write(tmp_path / "model", kind, **settings)
    assert error in failure_of(tmp_path / "model")


def test_a_missing_package_names_the_interpreter(tmp_path):
    (tmp_path / "model-settings.json").write_text('{"implementation": "models.Model"}')
    (tmp_path / "models.py").write_text("import not_there\n")
    error = f"No module named 'not_there' (models.py, line 1); install the package that has not_there for {sys.executable}"
    assert error in failure_of(tmp_path)


def test_a_missing_module_names_the_files_of_the_folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model-settings.json").write_text('{"implementation": "sums.Model"}')
    (folder / "models.py").write_text(
        "from mlserver import MLModel\n\n\nclass Model(MLModel): ...\n"
    )
    error = failure_of(folder)
    assert (
        "sums.Model cannot be imported: No module named 'sums'; the folder has models.py" in error
    )
    (folder / "model-settings.json").write_text('{"implementation": "models.Sums"}')
    assert "module 'models' has no attribute 'Sums'" in failure_of(folder)


def test_a_load_that_returns_nothing_is_named(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model-settings.json").write_text('{"implementation": "models.Model"}')
    code = "from mlserver import MLModel\n\n\nclass Model(MLModel):\n    async def load(self):\n        self.x = 1\n"
    (folder / "models.py").write_text(code)
    assert "load of models.Model did not return True" in failure_of(folder)
