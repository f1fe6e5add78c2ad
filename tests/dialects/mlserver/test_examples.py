"""The 43 model-settings.json of MLServer's repository: MLServer and ksrv answer the requests of its pages alike.

MLSERVER_SAMPLES names a checkout of github.com/SeldonIO/MLServer, and MLSERVER the command `mlserver` of an environment
that `make test-dialects` makes. The models are trained here, as the pages train them.
"""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.wait_until import wait_until
from tests.support.wire.json_tensors import tensor

SAMPLES = os.environ.get("MLSERVER_SAMPLES", "")
MLSERVER = os.environ.get("MLSERVER", "")
for package in ("pydantic", "pandas", "xgboost", "lightgbm", "catboost", "sklearn", "mlflow"):
    pytest.importorskip(package, reason="make test-dialects installs it")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not SAMPLES, reason="MLSERVER_SAMPLES names no checkout of MLServer"),
    pytest.mark.skipif(not MLSERVER, reason="MLSERVER names no command of MLServer"),
]
NOT_SERVED = ("alibi-detect", "alibi-explain", "cassava", "mllib", "tempo")
"""Examples that MLServer does not serve with what is in the repository; the page has the reasons."""
DIFFERENT = ("id", "headers", "reason")
"""Fields that MLServer makes up, or that ksrv alone fills."""
ROWS = np.random.default_rng(0)


class Call(NamedTuple):
    """A request; MODEL in its path is the model's name."""

    path: str
    body: Any = None


class Example(NamedTuple):
    """A folder with settings, or with several of them.

    Attributes:
        folder: Its path in the repository.
        calls: The requests of its page.
        make: Makes the files that the page makes.
    """

    folder: str
    calls: list[Call]
    make: Callable[[Path], None] = lambda folder: None


def infer(*inputs, route="infer", model="MODEL", **fields):
    return Call(f"/v2/models/{model}/{route}", {"inputs": list(inputs), **fields})


def digits():
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)


def save_digits(folder, *names):
    import joblib
    from sklearn.svm import SVC

    pixels, labels = digits()
    for name in names:
        joblib.dump(SVC(gamma=0.001).fit(pixels[:800], labels[:800]), folder / name)


def save_mushrooms(folder, name):
    import xgboost

    rows = ROWS.integers(0, 2, (300, 126)).astype(np.float32)
    options = {"max_depth": 2, "eta": 1, "objective": "binary:logistic"}
    xgboost.train(options, xgboost.DMatrix(rows, rows[:, 3] > 0), 2).save_model(folder / name)


def save_both(folder):
    save_digits(folder, "mnist-svm/model.joblib")
    save_mushrooms(folder, "mushroom-xgboost/model.json")


def save_iris(folder):
    import joblib
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    joblib.dump(
        LogisticRegression(max_iter=500).fit(*load_iris(return_X_y=True)), folder / "model.joblib"
    )


def save_lightgbm(folder):
    import lightgbm
    from sklearn.datasets import load_iris

    options = {"objective": "multiclass", "metric": "softmax", "num_class": 3, "verbose": -1}
    rows = lightgbm.Dataset(*load_iris(return_X_y=True))
    lightgbm.train(options, rows, 10).save_model(folder / "iris-lightgbm.bst")


def save_catboost(folder):
    import catboost

    model = catboost.CatBoostClassifier(
        iterations=2,
        depth=2,
        learning_rate=1,
        loss_function="Logloss",
        verbose=False,
        allow_writing_files=False,
    )
    model.fit(ROWS.integers(0, 100, (100, 10)), ROWS.integers(0, 2, 100)).save_model(
        folder / "model.cbm"
    )


def bring_fixtures(folder):
    (folder / "tests").mkdir()
    (folder / "tests/__init__.py").touch()
    shutil.copy(Path(SAMPLES, "tests/fixtures.py"), folder / "tests")


def save_digits_without_a_broker(folder):
    save_digits(folder, "mnist-svm.joblib")
    (folder / "settings.json").write_text('{"debug": true}')  # MLServer ends if Kafka has no broker


WINE = {
    "fixed acidity": 7.4, "volatile acidity": 0.7, "citric acid": 0, "residual sugar": 1.9, "chlorides": 0.076,
    "free sulfur dioxide": 11, "total sulfur dioxide": 34, "density": 0.9978, "pH": 3.51, "sulphates": 0.56,
    "alcohol": 9.4,
}  # fmt: skip


def save_wine(folder):
    import mlflow
    import pandas
    from mlflow.models import infer_signature
    from sklearn.linear_model import ElasticNet

    table = pandas.DataFrame(
        ROWS.normal(size=(90, len(WINE))) + list(WINE.values()), columns=list(WINE)
    )
    quality = pandas.DataFrame({"quality": table["alcohol"] / 2 + table["pH"]})
    model = ElasticNet(alpha=0.5, l1_ratio=0.5, random_state=42).fit(table, quality)
    uri = json.loads((folder / "model-settings.json").read_text())["parameters"]["uri"]
    mlflow.sklearn.save_model(model, folder / uri, signature=infer_signature(table, quality))
    (folder / uri / "model.yaml").write_text(
        "trust: pickle\n"
    )  # for ksrv; MLServer does not read it


DIGIT = infer(tensor("predict", digits()[0][900:901]))
MUSHROOM = infer(tensor("predict", ROWS.integers(0, 2, (1, 126))))
BOTH = [
    DIGIT._replace(path="/v2/models/mnist-svm/versions/v0.1.0/infer"),
    MUSHROOM._replace(path="/v2/models/mushroom-xgboost/versions/v0.1.0/infer"),
]
HELLO = json.dumps({"name": "Foo Bar", "message": "Hello from Client (REST)!"})
GREETING = "hello world 😁"
IRIS = [[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]]
INDEX = Call("/v2/repository/index", {})

EXAMPLES = [
    Example(
        "benchmarking/testserver/models/iris",
        [
            infer(tensor("input-0", IRIS)),
            infer(tensor("input-0", IRIS), outputs=[{"name": "predict_proba"}]),
        ],
        save_iris,
    ),
    Example("benchmarking/testserver/models/sum-model", [infer(tensor("input-0", [0.5] * 128))]),
    Example(
        "tests/testdata",
        [
            infer(tensor("input-0", [[1, 2, 3]], "INT32")),
        ],
        bring_fixtures,
    ),
]
PAGES = [
    Example("catboost", [infer(tensor("predict-prob", ROWS.integers(0, 100, (1, 10))))], save_catboost),
    Example("conda", [DIGIT], lambda folder: save_digits(folder, "model.joblib")),
    Example(
        "content-type",
        [
            infer(tensor("parameters-np", [1, 2, 3, 4], "INT32", [2, 2], content_type="np"),
                  tensor("parameters-str", GREETING, "BYTES", [1], content_type="str")),
            infer(tensor("parameters-np", [1, 2, 3, 4], "INT64", [2, 2], content_type="np"),
                  tensor("parameters-str", [GREETING], "BYTES", [1, 1], content_type="str")),
            infer(tensor("metadata-np", [1, 2, 3, 4], "INT32", [2, 2]), tensor("metadata-str", GREETING, "BYTES", [11])),
            infer(tensor("parameters-np", [1, 2, 3, 4], "INT32", [2, 2], content_type="np"),
                  tensor("parameters-str", [GREETING, "bye bye 😁"], "BYTES", [2, 11], content_type="str"),
                  parameters={"content_type": "pd"}),
        ],
    ),
    Example("custom-json", [infer(tensor("echo_request", [HELLO], "BYTES", [len(HELLO)]))]),
    Example("custom", [infer(tensor("marriage", [28.0], "FP64", [1, 1], content_type="np"))]),
    Example("kafka", [DIGIT], save_digits_without_a_broker),
    Example("lightgbm", [infer(tensor("predict-prob", IRIS[:1]))], save_lightgbm),
    Example(
        "mlflow",
        [
            infer(*(tensor(name, [value]) for name, value in WINE.items())),
            Call("/invocations", {"dataframe_split": {"columns": list(WINE), "data": [list(WINE.values())]}}),
        ],
        save_wine,
    ),
    Example("mms/models", BOTH, save_both),
    Example(
        "model-repository/models",
        [
            INDEX, Call("/v2/repository/models/mushroom-xgboost/unload", {}), INDEX,
            Call("/v2/repository/models/mushroom-xgboost/load", {}), INDEX, *BOTH,
        ],
        save_both,
    ),
    Example("sklearn", [DIGIT], lambda folder: save_digits(folder, "mnist-svm.joblib")),
    Example("streaming", [
        infer(tensor("prompt", ["What is the capital of France?"], "BYTES", [1], content_type="str"),
              route="generate_stream", outputs=[{"name": "output"}]),
    ]),
    Example("xgboost", [MUSHROOM], lambda folder: save_mushrooms(folder, "mushroom-xgboost.json")),
]  # fmt: skip
EXAMPLES += [page._replace(folder=f"docs-gb/examples/{page.folder}") for page in PAGES]


def free_port():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


@contextmanager
def mlserver(folder: Path, names: list[str]) -> Iterator[str]:
    """Run MLServer in a folder until its models are loaded, and yield its URL."""
    ports = {f"MLSERVER_{name}_PORT": str(free_port()) for name in ("HTTP", "GRPC", "METRICS")}
    log = folder.parent / "mlserver.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [MLSERVER, "start", "."],
            cwd=folder,
            env=os.environ | ports,
            stdout=output,
            stderr=output,
        )
    url = f"http://127.0.0.1:{ports['MLSERVER_HTTP_PORT']}"

    def is_ready():
        assert process.poll() is None, log.read_text()
        try:
            models = [f"{url}/v2/models/{name}/ready" for name in names]
            return all(requests.get(model, timeout=5).ok for model in models)
        except (requests.ConnectionError, requests.Timeout):
            return False

    try:
        wait_until(is_ready, 300, log.read_text)
        yield url
    finally:
        process.kill()  # SIGTERM does not always end it
        process.wait(60)


def comparable(value: Any) -> Any:
    """Return an answer as MLServer's client reads it, without what the page says differs in every answer.

    MLServer's codecs read texts whatever their shape is, and a lone text as a list.
    """
    if isinstance(value, dict):
        kept = {name: comparable(each) for name, each in value.items() if each not in ({}, None)}
        kept = {name: each for name, each in kept.items() if each != {}}
        if value.get("datatype") == "FP32" and "data" in value:
            kept["data"] = np.asarray(value["data"], np.float32).tolist()
        if value.get("datatype") == "BYTES" and "data" in value:
            texts = [value["data"]] if isinstance(value["data"], str) else value["data"]
            kept |= {"shape": [len(texts)], "data": texts}
        return {name: each for name, each in kept.items() if name not in DIFFERENT}
    if isinstance(value, list) and value and isinstance(value[0], dict) and "state" in value[0]:
        value = sorted(value, key=lambda model: model["name"])
    return [comparable(each) for each in value] if isinstance(value, list) else value


def answer(url, call, names):
    """Return the status and the content of an answer."""
    address = url + call.path.replace("MODEL", names[0])
    if call.body is None:
        found = requests.get(address, timeout=60)
    else:
        found = requests.post(address, json=call.body, timeout=60)
    if found.headers.get("content-type", "").startswith("text/event-stream"):
        events = [
            line.removeprefix("data: ")
            for line in found.text.splitlines()
            if line.startswith("data: ")
        ]
        return found.status_code, [comparable(json.loads(event)) for event in events]
    return found.status_code, comparable(found.json()) if found.content else ""


def test_each_settings_file_is_compared_or_named():
    found = {
        str(path.parent.relative_to(SAMPLES)): path
        for path in Path(SAMPLES).rglob("model-settings.json")
    }
    assert len(found) == 43
    for folder, path in found.items():
        twin = folder.replace("docs/", "docs-gb/", 1)
        assert path.read_text().split() == found[twin].read_text().split()
        known = [twin.startswith(example.folder) for example in EXAMPLES]
        assert any(known) or twin.split("/")[2] in NOT_SERVED, folder


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(
            each,
            id=each.folder,
            marks=pytest.mark.xfail(
                each.folder.endswith("sum-model"),
                reason="MLServer gives the only sum the shape of the request",
                strict=True,
            ),
        )
        for each in EXAMPLES
    ],
)
def test_answers_are_those_of_MLServer(example, tmp_path):
    folder = tmp_path / "models"
    shutil.copytree(Path(SAMPLES, example.folder), folder)
    example.make(folder)
    settings = [
        json.loads(file.read_text()) for file in sorted(folder.rglob("model-settings.json"))
    ]
    names = [each["name"] for each in settings]
    with mlserver(folder, names) as url:
        theirs = [answer(url, call, names) for call in example.calls]
    environment = {"MLSERVER_MODEL_TRUST": "pickle"}
    with Server(folder, environment=environment, start_timeout=300) as running:
        ours = [answer(running.url, call, names) for call in example.calls]
    for call, (status, their), our in zip(example.calls, theirs, ours, strict=True):
        if isinstance(their, dict) and "model_version" not in their:
            our[1].pop("model_version", None)  # ksrv always names it
        if their == "":  # ksrv confirms loads and unloads in a body
            our = our[0], ""
        assert our == (status, their), call.path
