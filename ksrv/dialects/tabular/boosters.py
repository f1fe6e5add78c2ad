"""The trees of XGBoost, LightGBM and CatBoost, from the files that these libraries write.

Each predicts as the classifier or regressor of the library does, even if a booster saved the file: `predict` returns
classes, and `predict_proba` their probabilities. XGBoost and LightGBM take the codes of categories, so texts become
codes here, as in their readers of data frames.
"""

import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ksrv.dialects.tabular.files import CATBOOST, LIGHTGBM, XGBOOST
from ksrv.dialects.tabular.table_model import (
    MISSING,
    PREDICT,
    PROBABILITIES,
    Feature,
    Predictor,
    Table,
    as_objects,
    joined,
    tensor,
    unnamed,
)
from ksrv.errors import quote
from ksrv.loaders.loaded import ModelLoadError
from ksrv.model.datatypes import DTYPES
from ksrv.request import Array


class _Trees(Predictor):
    """Trees that take numbers only: the codes of categories in place of their values.

    Attributes:
        count: The number of classes; 0 for other models than classifiers.
        refuses_unknown: Whether a value that is not a category of its column is an error; otherwise it is missing.
    """

    count = 0
    refuses_unknown = False

    def _declare(self, predicted: Array) -> None:
        """Set the classes and the outputs. `predicted` is the library's answer for one row."""
        if self.count and self.classes is None:
            self.classes = np.arange(self.count)
        self.outputs = tuple(tensor(name, one) for name, one in self._answers(predicted).items())

    def _answers(self, predicted: Array) -> dict[str, Array]:
        """Return the outputs for the library's answer: probabilities, or values."""
        if not self.count:
            return {PREDICT: predicted}
        if predicted.ndim == 1:  # the probability of the second class
            predicted = np.vstack((1.0 - predicted, predicted)).transpose()
        places = np.argmax(predicted, axis=1)
        classes = places if self.classes is None else self.classes[places]
        return {PREDICT: as_objects(classes), PROBABILITIES: predicted}

    def predict(self, table: Table, outputs: Collection[str]) -> dict[str, Array]:
        """See `Predictor.predict`."""
        found = self._answers(self._raw(self._coded(table)))
        return {name: found[name] for name in outputs}

    def _raw(self, table: Array) -> Array:
        """Return the library's answer for a table of numbers."""
        raise NotImplementedError

    def _coded(self, table: Table) -> Array:
        """Return a table with the codes of categories."""
        if isinstance(table, np.ndarray) and not any(one.categories for one in self.features):
            return table
        columns = table.T if isinstance(table, np.ndarray) else table
        coded = [
            self._codes(feature, column) if feature.categories else column
            for feature, column in zip(self.features, columns, strict=True)
        ]
        return joined(coded, DTYPES[self.number])

    def _codes(self, feature: Feature, column: Array) -> Array:
        codes = {value: float(code) for code, value in enumerate(feature.categories)}
        found = np.array([codes.get(value, math.nan) for value in column.tolist()])
        unknown = np.isnan(found)
        if self.refuses_unknown and unknown.any():
            for value in column[unknown].tolist():
                if value != MISSING and value == value:
                    raise ValueError(
                        f"{quote(value)} is not a category of the column {quote(feature.name)}"
                    )
        return found


class XgboostTrees(_Trees):
    """A model of XGBoost.

    Args:
        booster: The `xgboost.Booster`.
        threads: CPU threads; 0 for the library's choice.
        is_estimator: Whether an estimator of XGBoost made it. Only estimators stop at the best iteration by themselves.
    """

    library = XGBOOST
    refuses_unknown = True

    def __init__(self, booster: Any, threads: int, *, is_estimator: bool = False) -> None:
        self.estimator = self._booster = booster
        if threads:
            booster.set_param({"nthread": threads})
        learner = orjson.loads(booster.save_config())["learner"]
        self.named = booster.feature_names is not None
        kinds = booster.feature_types or []
        categories = _xgboost_categories(booster) if "c" in kinds else {}
        names = booster.feature_names or unnamed(booster.num_features())
        self.features = tuple(
            _feature(name, categories.get(index, ())) for index, name in enumerate(names)
        )
        self._inplace = learner["gradient_booster"]["name"] != "gblinear"
        is_estimator = is_estimator or booster.attr("scikit_learn") is not None
        best = booster.attr("best_iteration") if is_estimator else None
        self._range = (0, int(best) + 1) if best and self._inplace else (0, 0)
        objective = learner["objective"]["name"]
        shape = learner["learner_model_param"]
        if objective == "multi:softprob":
            self.count = int(shape["num_class"])
        elif objective == "binary:logistic":
            self._labels = int(shape.get("num_target", 1))
            self.count = 2
        self._kinds = kinds or None
        self._declare(self._raw(np.zeros((1, len(self.features)), np.float32)))

    _labels = 1

    def _answers(self, predicted: Array) -> dict[str, Array]:
        if self._labels > 1:  # several labels, each with its probability
            return {PREDICT: (predicted > 0.5).astype(np.float64), PROBABILITIES: predicted}
        return super()._answers(predicted)

    def _raw(self, table: Array) -> Array:
        if self._inplace:
            found: Array = self._booster.inplace_predict(
                table, iteration_range=self._range, validate_features=False
            )
            return found
        from xgboost import DMatrix

        matrix = DMatrix(table, feature_types=self._kinds, enable_categorical=True)
        predicted: Array = self._booster.predict(matrix, validate_features=False)
        return predicted


def _xgboost_categories(booster: Any) -> dict[int, Sequence[Any]]:
    """Return the categories that the file lists, by the index of their column.

    XGBoost returns them by pyarrow only. Its JSON is documented.
    """
    model = orjson.loads(booster.save_raw("json"))["learner"]["gradient_booster"]
    model = model.get("gbtree", model)["model"]  # DART has its trees in "gbtree"
    found: dict[int, Sequence[Any]] = {}
    for index, column in enumerate(model.get("cats", {}).get("enc", ())):
        values, ends = column["values"], column.get("offsets")
        if ends:  # the texts one after the other, in bytes
            text = bytes(value % 256 for value in values)
            if not text.isascii():
                raise ModelLoadError(
                    f"the column {index} has categories with letters beyond ASCII, which XGBoost writes cut off: it counts "
                    f"letters, not bytes; rename them, or train on their numbers"
                )
            values = [text[one:two].decode() for one, two in pairwise(ends)]
        if values:
            found[index] = values
    return found


def _feature(name: str, categories: Sequence[Any]) -> Feature:
    """Return a column of numbers or, if there are categories, of their values."""
    text = any(isinstance(value, str) for value in categories)
    return Feature(name, text, tuple(categories), blank=text)


class LightgbmTrees(_Trees):
    """A model of LightGBM.

    Args:
        booster: The `lightgbm.Booster`.
        threads: CPU threads; 0 for the library's choice.
        classes: The classes that an estimator of LightGBM knows; None for their numbers.
    """

    library = LIGHTGBM
    number = "FP64"

    def __init__(self, booster: Any, threads: int, *, classes: Array | None = None) -> None:
        from lightgbm.basic import LightGBMError

        self.refusals = (ValueError, LightGBMError)
        self._threads = {"num_threads": threads} if threads else {}
        self.estimator = self._booster = booster
        head = _lightgbm_head(booster)
        names = booster.feature_name()
        self.named = names != [f"Column_{index}" for index in range(len(names))]
        columns = [
            index
            for index, info in enumerate(head.get("feature_infos", "").split(" "))
            if ":" in info and not info.startswith("[")
        ]
        values = booster.pandas_categorical or []
        if values and len(columns) != len(values):
            raise ModelLoadError(
                f"the file has the categories of {len(values)} columns, and its trees use {len(columns)} of them, so the file "
                f"does not say which columns these are; train it again without the unused columns of categories"
            )
        categories = dict(zip(columns, values, strict=False))
        self.features = tuple(
            _feature(name, categories.get(index, ()))
            for index, name in enumerate(names if self.named else unnamed(len(names)))
        )
        objective = head.get("objective", "").partition(" ")[0]
        if objective in ("multiclass", "multiclassova"):
            self.count = int(head["num_class"])
        elif objective == "binary":
            self.count = 2
        self.classes = classes
        self._declare(self._raw(np.zeros((1, len(names)))))

    def _raw(self, table: Array) -> Array:
        found: Array = self._booster.predict(table, **self._threads)
        return found


def _lightgbm_head(booster: Any) -> dict[str, str]:
    """Return the keys and values of a model's file, before the trees."""
    lines = booster.model_to_string(num_iteration=1).partition("\nTree=")[0].split("\n")
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


class CatboostTrees(Predictor):
    """A model of CatBoost.

    Args:
        model: The `catboost.CatBoost`, or a subclass.
        threads: CPU threads; 0 for the library's choice.
    """

    library = CATBOOST

    def __init__(self, model: Any, threads: int) -> None:
        from catboost import CatBoostError

        self.refusals = (ValueError, CatBoostError)
        self.estimator = model
        self._threads = threads or -1
        if model.get_embedding_feature_indices():
            raise ModelLoadError(
                "the model has columns of embeddings, which ksrv does not serve; write a handler that calls CatBoost"
            )
        names = list(model.feature_names_)
        self.named = names != [str(index) for index in range(len(names))]
        self._categories = model.get_cat_feature_indices()
        self._texts = model.get_text_feature_indices()
        texts = {*self._categories, *self._texts}
        self.features = tuple(
            Feature(name, index in texts)
            for index, name in enumerate(names if self.named else unnamed(len(names)))
        )
        self.classes = np.asarray(model.classes_) if len(model.classes_) else None
        row: Table = np.zeros((1, len(names)), np.float32)
        if texts:
            row = [np.array(["" if one.text else 0.0], object) for one in self.features]
        found = self.predict(row, (PREDICT, PROBABILITIES))
        self.outputs = tuple(tensor(name, one) for name, one in found.items())

    def predict(self, table: Table, outputs: Collection[str]) -> dict[str, Array]:
        """See `Predictor.predict`."""
        from catboost import Pool

        pool = Pool(
            table if isinstance(table, np.ndarray) else joined(table, object),
            cat_features=self._categories,
            text_features=self._texts,
            thread_count=self._threads,
        )
        found = {}
        if PREDICT in outputs:
            predicted = self.estimator.predict(pool, thread_count=self._threads)
            # With more than two classes it is a column.
            found[PREDICT] = as_objects(
                predicted[:, 0] if predicted.shape[1:] == (1,) else predicted
            )
        if PROBABILITIES in outputs and self.classes is not None:
            found[PROBABILITIES] = self.estimator.predict_proba(pool, thread_count=self._threads)
        return found


def read_trees(path: Path, library: str, threads: int) -> Predictor:
    """Return the model in a file that a library wrote.

    Raises:
        ModelLoadError: The file is not whole, and the library would crash.
    """
    content = path.read_bytes()
    ends = content.count(b"\nend of ")  # LightGBM ends its trees so, and also any parameters
    is_whole = ends > (b"\nparameters:" in content) or not content.startswith(b"tree\nversion=v4")
    if not is_whole or (content.startswith(b"{") and not content.rstrip().endswith(b"}")):
        raise ModelLoadError(f"{path} is cut off: its end is missing; copy it or save it again")
    if library == XGBOOST:
        from xgboost import Booster

        return XgboostTrees(Booster(model_file=str(path)), threads)
    if library == LIGHTGBM:
        import lightgbm

        return LightgbmTrees(lightgbm.Booster(model_file=str(path)), threads)
    import catboost

    model = catboost.CatBoost().load_model(str(path))
    kind = catboost.CatBoostClassifier if len(model.classes_) else catboost.CatBoostRegressor
    return CatboostTrees(kind().load_model(str(path)), threads)


def trees_of(model: Any, threads: int) -> Predictor | None:
    """Return the predictor of an object of one of the libraries, such as a pickled classifier; None for other objects."""
    modules = {one.__module__.partition(".")[0] for one in type(model).__mro__}
    trees: _Trees | CatboostTrees
    if CATBOOST in modules:
        return CatboostTrees(model, threads)
    if XGBOOST in modules:
        if hasattr(model, "get_booster"):
            if not np.isnan(model.missing):
                return None
            trees = XgboostTrees(model.get_booster(), threads, is_estimator=True)
        else:
            trees = XgboostTrees(model, threads)
    elif LIGHTGBM in modules:
        classes = getattr(model, "classes_", None)
        trees = LightgbmTrees(getattr(model, "booster_", model), threads, classes=classes)
    else:
        return None
    trees.estimator = model
    return trees
