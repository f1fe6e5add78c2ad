"""Models of MLflow's flavours, and the data that they predict on. MLflow and the libraries are imported when it saves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 24
CODE_MODEL = """
import mlflow
import pandas as pd


class Doubler(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return pd.DataFrame({"doubled": model_input["a"] * 2, "text": model_input["word"] + "!"})


mlflow.models.set_model(Doubler())
"""
"""A model that MLflow saves as code, without a pickle."""


def table() -> Any:
    """Return a DataFrame of four columns of doubles, and a target of three classes for each row."""
    import pandas as pd

    values = np.random.default_rng(7).normal(size=(ROWS, 4))
    frame = pd.DataFrame(values, columns=["a", "b", "c", "d"])
    return frame, (np.arange(ROWS) % 3)


def _saved(module: str, model: Any, folder: Path, data: Any, **options: Any) -> Any:
    """Save a model with the signature of its predictions, and return the data."""
    from importlib import import_module

    from mlflow.models import infer_signature

    flavour = import_module(module)
    outputs = options.pop("outputs", None)
    options.setdefault("signature", infer_signature(data, outputs))
    flavour.save_model(model, str(folder), pip_requirements=["mlflow-skinny"], **options)
    return data


def sklearn(folder: Path) -> Any:
    """Save a pipeline of scikit-learn as .skops."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data, target = table()
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(data, target)
    options = {"serialization_format": "skops", "outputs": model.predict(data)}
    return _saved("mlflow.sklearn", model, folder, data, **options)


def sklearn_pickle(folder: Path) -> Any:
    """Save probabilities of a forest of scikit-learn by cloudpickle, without a signature."""
    from sklearn.ensemble import RandomForestClassifier

    data, target = table()
    model = RandomForestClassifier(5, random_state=1).fit(data.to_numpy(), target)
    options: dict[str, Any] = {"pyfunc_predict_fn": "predict_proba", "signature": None}
    _saved("mlflow.sklearn", model, folder, data, serialization_format="cloudpickle", **options)
    return data.to_numpy()


def xgboost(folder: Path) -> Any:
    """Save a booster of XGBoost, whose predictions are probabilities."""
    import xgboost

    data, target = table()
    options = {"objective": "multi:softprob", "num_class": 3, "nthread": 1}
    model = xgboost.train(options, xgboost.DMatrix(data, target), 4)
    return _saved("mlflow.xgboost", model, folder, data)


def lightgbm(folder: Path) -> Any:
    """Save a booster of LightGBM."""
    import lightgbm

    data, target = table()
    options = {"verbose": -1, "min_data_in_leaf": 1, "num_threads": 1}
    model = lightgbm.train(options, lightgbm.Dataset(data, target), 4)
    return _saved("mlflow.lightgbm", model, folder, data, outputs=model.predict(data))


def catboost(folder: Path) -> Any:
    """Save a classifier of CatBoost."""
    import catboost

    data, target = table()
    options: dict[str, Any] = {"verbose": False, "allow_writing_files": False, "thread_count": 1}
    model = catboost.CatBoostClassifier(iterations=4, **options).fit(data, target)
    return _saved("mlflow.catboost", model, folder, data)


def statsmodels(folder: Path) -> Any:
    """Save a linear regression of statsmodels, which is a pickle with the suffix .statsmodels."""
    from statsmodels.api import OLS

    data, target = table()
    model = OLS(target, data).fit()
    return _saved("mlflow.statsmodels", model, folder, data, outputs=model.predict(data))


def onnx(folder: Path) -> Any:
    """Save an ONNX model of a tensor."""
    from onnx import TensorProto, helper

    info = helper.make_tensor_value_info
    shape: list[Any] = ["rows", 4]
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"])],
        "softmax",
        [info("x", TensorProto.FLOAT, shape)],
        [info("y", TensorProto.FLOAT, shape)],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
    data = table()[0].to_numpy(np.float32)
    return _saved("mlflow.onnx", model, folder, {"x": data}, outputs={"y": data})


def pytorch(folder: Path, serialization_format: str = "pickle") -> Any:
    """Save a network of torch, a pickle unless it is exported as .pt2."""
    import torch

    data = table()[0].to_numpy(np.float32)
    torch.manual_seed(3)
    example = {} if serialization_format == "pickle" else {"input_example": data}
    options = {"serialization_format": serialization_format, "outputs": data[:, :2], **example}
    return _saved("mlflow.pytorch", torch.nn.Linear(4, 2), folder, data, **options)


def pytorch_exported(folder: Path) -> Any:
    """Save a network of torch as an exported program."""
    return pytorch(folder, "pt2")


def keras(folder: Path) -> Any:
    """Save a network of Keras, which runs on torch here."""
    import os

    os.environ["KERAS_BACKEND"] = "torch"
    import keras as library

    data = table()[0].to_numpy(np.float32)
    model = library.Sequential([library.layers.Input((4,)), library.layers.Dense(2)])
    return _saved("mlflow.keras", model, folder, data)


def spacy(folder: Path) -> Any:
    """Save a classifier of texts of spaCy."""
    import pandas as pd
    import spacy as library
    from spacy.training import Example

    texts = ["a good day", "a bad day", "good", "bad"]
    model = library.blank("en")
    model.add_pipe("textcat").add_label("good")
    model.get_pipe("textcat").add_label("bad")
    cats = [{"good": float("good" in text), "bad": float("bad" in text)} for text in texts]
    examples = [
        Example.from_dict(model.make_doc(text), {"cats": cat})
        for text, cat in zip(texts, cats, strict=True)
    ]
    model.initialize(lambda: examples)
    return _saved("mlflow.spacy", model, folder, pd.DataFrame({"text": texts}))


def code(folder: Path) -> Any:
    """Save a Python model as code."""
    import pandas as pd

    source = folder.parent / f"{folder.name}.py"
    source.write_text(CODE_MODEL)
    data = pd.DataFrame({"a": np.arange(4), "word": ["x", "yy", "", "é"]})
    return _saved_pyfunc(str(source), folder, data)


def pyfunc(folder: Path) -> Any:
    """Save a Python model by cloudpickle, with a parameter."""
    import mlflow
    import pandas as pd

    class Scaled(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            return model_input.sum(axis=1) * params["scale"] + len(params["words"])

    data: pd.DataFrame = table()[0]
    return _saved_pyfunc(Scaled(), folder, data, {"scale": 2.5, "words": ["a"]})


def _saved_pyfunc(model: Any, folder: Path, data: Any, params: Any = None) -> Any:
    import mlflow.pyfunc
    from mlflow.models import infer_signature

    mlflow.pyfunc.save_model(
        str(folder),
        python_model=model,
        signature=infer_signature(data, params=params),
        pip_requirements=["mlflow-skinny"],
    )
    return data


FLAVOURS: dict[str, tuple[Callable[[Path], Any], bool]] = {
    "sklearn": (sklearn, False),
    "sklearn-pickle": (sklearn_pickle, True),
    "xgboost": (xgboost, False),
    "lightgbm": (lightgbm, False),
    "catboost": (catboost, False),
    "statsmodels": (statsmodels, True),
    "onnx": (onnx, False),
    "pytorch": (pytorch, True),
    "pytorch-exported": (pytorch_exported, False),
    "keras": (keras, False),
    "spacy": (spacy, False),
    "code": (code, False),
    "pyfunc": (pyfunc, True),
}
"""How each flavour is saved, and whether it is a pickle."""
