"""The mistakes of the first hour with a file of a tabular model: each error names the cause and the remedy."""

import shutil
import sys

import numpy as np
import pytest
import requests

from ksrv.loaders.loaded import ModelLoadError
from ksrv.testing import Server
from ksrv.testing.server import ServerFailed
from tests.support.wait_until import wait_until

pytest.importorskip("xgboost", reason="make test-dialects installs it")
pytest.importorskip("lightgbm", reason="make test-dialects installs it")
pytest.importorskip("sklearn", reason="make test-dialects installs it")
pytest.importorskip("skops", reason="make test-dialects installs it")
pytest.importorskip("joblib", reason="make test-dialects installs it")
pytest.importorskip("pandas", reason="make test-dialects installs it")

import joblib
import lightgbm
import pandas
import sklearn
import skops.io
import xgboost
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from ksrv.dialects.tabular.loader import load_table_model

FRAME = pandas.DataFrame(
    {"age": [20.0, 30, 40, 50] * 10, "city": pandas.Categorical(["Oslo", "Rome"] * 20)}
)
LABELS = np.array([0, 1, 1, 1] * 10)
NUMBERS = np.random.default_rng(0).normal(size=(40, 3))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    people = xgboost.XGBClassifier(n_estimators=3, enable_categorical=True).fit(FRAME, LABELS)
    people.save_model(folder / "people.ubj")
    xgboost.XGBRegressor(n_estimators=3).fit(NUMBERS, LABELS).save_model(folder / "plain.json")
    light = lightgbm.LGBMRegressor(n_estimators=3, verbose=-1).fit(NUMBERS, LABELS)
    light.booster_.save_model(folder / "light.txt")
    linear = LogisticRegression().fit(NUMBERS, LABELS)
    joblib.dump(linear, folder / "iris.joblib")
    skops.io.dump(linear, folder / "safe.skops")
    skops.io.dump(RandomForestClassifier(3).fit(NUMBERS, LABELS), folder / "woods.skops")
    return folder


@pytest.fixture
def folder(files, tmp_path):
    """Return a function that makes a model's folder of a file and a model.yaml."""

    def make(name, yaml):
        made = tmp_path / "model"
        made.mkdir()
        shutil.copy(files / name, made)
        (made / "model.yaml").write_text(yaml)
        return made

    return make


def why_not(target):
    """Return the log of a server that cannot serve a model."""
    with pytest.raises(ServerFailed) as failed, Server(target):
        pass
    return str(failed.value)


# ---- the file -------------------------------------------------------------------------------


def test_pickle_without_trust_names_the_key_and_skops(files):
    text = why_not(files / "iris.joblib")
    assert "iris.joblib is a pickle, and loading a pickle runs the code in it" in text
    assert "'model: iris.joblib' and 'trust: pickle'" in text
    assert "skops.io.dump" in text


def test_pickle_in_the_servers_process_is_refused(folder):
    text = why_not(folder("iris.joblib", "model: iris.joblib\ntrust: pickle\nexecutor: inline\n"))
    assert "executor: a pickle is loaded in a handler process; write process, or leave it" in text


def test_pickle_with_trust_is_loaded_in_a_handler_process(folder):
    with Server(folder("iris.joblib", "model: iris.joblib\ntrust: pickle\n")) as server:
        answer = requests.post(f"{server.url}/v2/models/model/generate", json={"input": [1, 2, 3]})
        assert set(answer.json()) == {"model_name", "predict", "predict_proba"}


STEPS = """
class Half:
    n_features_in_ = 2

    def predict(self, rows):
        return rows.sum(axis=1) / 2
"""


def test_pickle_finds_the_modules_of_its_folder(tmp_path, monkeypatch):
    (tmp_path / "halves.py").write_text(STEPS)
    monkeypatch.syspath_prepend(tmp_path)
    import halves

    joblib.dump(halves.Half(), tmp_path / "half.joblib")
    (tmp_path / "model.yaml").write_text("model: half.joblib\ntrust: pickle\n")
    with Server(tmp_path, model_name="half") as server:
        answer = requests.post(f"{server.url}/v2/models/half/generate", json={"input": [1, 2]})
        assert answer.json()["predict"] == 1.5


def test_unknown_trust_names_the_word(folder):
    text = why_not(folder("iris.joblib", "model: iris.joblib\ntrust: yes please\n"))
    assert "line 2: trust: expected one of pickle, found 'yes please'" in text


def test_skops_with_types_that_are_not_safe_names_them(files):
    text = why_not(files / "woods.skops")
    assert "sklearn.tree._tree.Tree" in text
    assert "'trust: pickle'" in text


def test_wrong_suffix_lists_the_suffixes(files, tmp_path):
    wrong = tmp_path / "forest.xgb"
    shutil.copy(files / "people.ubj", wrong)
    text = why_not(wrong)
    assert "a model's file ends with" in text
    assert ".ubj" in text
    (tmp_path / "model.yaml").write_text("model: forest.xgb\n")
    text = why_not(tmp_path)
    assert "'forest.xgb' has the suffix '.xgb'; model files end with" in text
    assert ".joblib" in text


def test_text_and_json_files_beside_models_are_no_models(files, tmp_path):
    shutil.copy(files / "light.txt", tmp_path)
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    (tmp_path / "notes.json").write_text("{}")
    with Server(tmp_path) as server:
        index = requests.post(f"{server.url}/v2/repository/index").json()
        assert [one["name"] for one in index] == ["light"]


def test_damaged_file_names_the_version_of_the_library(files, tmp_path):
    damaged = tmp_path / "plain.json"
    damaged.write_bytes((files / "plain.json").read_bytes()[:-400] + b"}")
    text = why_not(damaged)
    assert f"plain.json cannot be loaded by xgboost {xgboost.__version__}" in text
    assert "save it again" in text


@pytest.mark.parametrize("name", ["people.ubj", "plain.json", "light.txt"])
def test_file_without_its_end_is_refused(files, tmp_path, name):
    whole = (files / name).read_bytes()
    for part in (0.2, 0.5, 0.9):
        (tmp_path / name).write_bytes(whole[: int(len(whole) * part)])
        with pytest.raises(
            ModelLoadError, match=r"is damaged: .* crashes|cannot be loaded|is cut off"
        ):
            load_table_model(tmp_path / name)


def test_damaged_trees_do_not_end_the_worker_that_loads_them(files, tmp_path):
    whole = (files / "light.txt").read_bytes()
    (tmp_path / "light.txt").write_bytes(whole.replace(b"\nnum_leaves=", b"\nnum_keaves="))
    shutil.copy(files / "people.ubj", tmp_path)
    with Server(tmp_path, wait_ready=False) as server:
        requests.post(f"{server.url}/v2/repository/models/light/load", timeout=60)
        [light] = [
            one
            for one in requests.post(f"{server.url}/v2/repository/index").json()
            if one["name"] == "light"
        ]
        assert "light.txt is damaged: lightgbm crashes when it loads the file (SIGABRT)" in str(
            light
        )
        assert server.log.count("Booting worker") == 1
        wait_until(lambda: requests.get(f"{server.url}/v2/models/people/ready").ok)


def test_other_file_is_no_model_without_any_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    (tmp_path / "notes.txt").write_text("milk, eggs")
    assert "notes.txt is not a model: it does not begin as the files of lightgbm do" in why_not(
        tmp_path / "notes.txt"
    )


def test_empty_file_is_named(tmp_path):
    (tmp_path / "forest.ubj").write_bytes(b"")
    assert "forest.ubj is empty (0 bytes)" in why_not(tmp_path / "forest.ubj")


def test_another_device_is_refused(folder):
    text = why_not(folder("people.ubj", "model: people.ubj\ndevice: cuda\n"))
    assert "device: people.ubj is served on the CPU" in text


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("people.ubj", "xgboost", "xgboost"),
        ("light.txt", "lightgbm", "lightgbm"),
        ("safe.skops", "skops", "skops"),
        ("iris.joblib", "sklearn", "scikit-learn"),
    ],
)
def test_missing_library_is_named(files, monkeypatch, name, module, package):
    for loaded in [one for one in sys.modules if one.partition(".")[0] == module]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModelLoadError, match=f"needs {package}: pip install {package}"):
        load_table_model(files / name, trusted=True)


def test_missing_package_of_a_pickle_is_named(tmp_path, monkeypatch):
    (tmp_path / "steps.py").write_text("class Step:\n    def predict(self, rows): return rows\n")
    monkeypatch.syspath_prepend(tmp_path)
    import steps

    joblib.dump(steps.Step(), tmp_path / "own.joblib")
    monkeypatch.setitem(sys.modules, "steps", None)
    with pytest.raises(ModelLoadError, match=r"the model .*own\.joblib needs steps"):
        load_table_model(tmp_path / "own.joblib", trusted=True)


def test_pickle_of_another_object_is_named(tmp_path):
    joblib.dump({"weights": [1, 2]}, tmp_path / "dict.pkl")
    with pytest.raises(ModelLoadError, match="has a dict; expected a fitted estimator"):
        load_table_model(tmp_path / "dict.pkl", trusted=True)


def test_estimator_that_is_not_fitted_is_named(tmp_path):
    joblib.dump(LogisticRegression(), tmp_path / "raw.pkl")
    with pytest.raises(ModelLoadError, match="LogisticRegression that is not fitted"):
        load_table_model(tmp_path / "raw.pkl", trusted=True)


def test_another_version_of_scikit_learn_is_logged(folder, monkeypatch):
    made = folder("iris.joblib", "model: iris.joblib\ntrust: pickle\n")
    model = joblib.load(made / "iris.joblib")
    monkeypatch.setattr(sklearn.base, "__version__", "1.0.2")
    joblib.dump(model, made / "iris.joblib")
    with Server(made) as server:
        saved = f"it was saved by scikit-learn 1.0.2, and {sklearn.__version__} is installed"
        assert saved in server.log


# ---- the request ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people(files):
    with Server(files / "people.ubj") as server:
        yield lambda body: requests.post(f"{server.url}/v2/models/people/generate", json=body)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([{"age": 30}], "the input 'city' is missing; the inputs of the model people are 'age'"),
        (
            [{"age": 30, "city": "Oslo", "cty": 1}],
            "row 0: 'cty' is not an input of the model; did you mean 'city'?",
        ),
        ([{"age": "30", "city": "Oslo"}], "'age' has the datatype 'BYTES'; the model people expects FP32"),
        ([{"age": 30, "city": 3}], "value 0 of 'data' is not a string"),
        ([{"age": 30, "city": "Bonn"}], "'Bonn' is not a category of the column 'city'"),
        ([{"age": [1, 2], "city": "Oslo"}], "'age'"),
        ([{"age": 30, "city": "Oslo"}, {"age": 30}], "row 1 has no 'city', and row 0 has"),
    ],
)  # fmt: skip
def test_wrong_row_is_refused(people, body, text):
    answer = people(body)
    assert answer.status_code == 400
    assert text in answer.json()["error"]


def test_null_is_a_missing_value(people):
    full, no_age, no_city = people(
        [
            {"age": 20, "city": "Oslo"},
            {"age": None, "city": "Oslo"},
            {"age": 20, "city": None},
        ]
    ).json()
    model = xgboost.XGBClassifier(n_estimators=3, enable_categorical=True).fit(FRAME, LABELS)
    frame = pandas.DataFrame(
        {
            "age": [20, np.nan, 20],
            "city": pandas.Categorical(["Oslo", "Oslo", None], ["Oslo", "Rome"]),
        }
    )
    expected = model.predict_proba(frame)
    for row, wanted in zip((full, no_age, no_city), expected, strict=True):
        assert np.float32(row["predict_proba"]).tobytes() == wanted.tobytes()


def test_null_that_the_model_cannot_take_is_a_400(files):
    with Server(files / "safe.skops") as server:
        answer = requests.post(
            f"{server.url}/v2/models/safe/generate", json={"input": [1, 2, None]}
        )
        assert answer.status_code == 400
        assert "the model cannot take the values of the request" in answer.json()["error"]
        assert "NaN" in answer.json()["error"]


def test_matrix_with_another_number_of_columns_is_refused(files):
    with Server(files / "plain.json") as server:
        url = f"{server.url}/v2/models/plain/generate"
        for row in ([1, 2], [1, 2, 3, 4]):
            answer = requests.post(url, json={"input": [row, row]})
            assert answer.status_code == 400
            assert "[-1, 3]" in answer.json()["error"]
