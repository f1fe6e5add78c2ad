"""Serves estimators of scikit-learn from .skops files and pickles, and any pickled object that has their methods.

The names and the number of the columns are attributes of an estimator. Which columns have texts is found in its
encoders: `_texts` walks through pipelines to the transformers that see the table first.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ksrv.dialects.tabular.files import SKLEARN, untrusted
from ksrv.dialects.tabular.table_model import (
    MISSING,
    PREDICT,
    PROBABILITIES,
    TRANSFORM,
    Feature,
    Predictor,
    Table,
    as_objects,
    joined,
    tensor,
    unnamed,
)
from ksrv.loaders.loaded import ModelLoadError
from ksrv.model.spec import TensorSpec
from ksrv.request import Array

_INNER = ("best_estimator_", "regressor_", "estimator_")
"""The attributes with the inner estimator of a search, or of a regressor with a transformed target."""
_KEEP_COLUMNS = ("SimpleImputer", "FunctionTransformer", "str")
"""Pipeline steps that keep the order of the columns. "str" is the type of the step "passthrough"."""
_DOCUMENT = "text"
"""The only input of a model that takes one text for each row, instead of a table."""


def read_skops(path: Path, *, trusted: bool) -> Any:
    """Return the estimator in a .skops file.

    Raises:
        ModelLoadError: It has types that run code, and is not trusted.
    """
    import skops.io

    unknown = skops.io.get_untrusted_types(file=path)
    if unknown and not trusted:
        shown = ", ".join(unknown[:4]) + (", ..." if len(unknown) > 4 else "")
        raise ModelLoadError(
            f"{path} has types that skops does not know as safe: {shown}. If you trust the code of these types, write "
            f"'trust: pickle' into the model.yaml that names the file under model:"
        )
    return skops.io.load(path, trusted=unknown)


def read_pickle(path: Path, *, trusted: bool) -> Any:
    """Return the object in a pickle.

    Raises:
        ModelLoadError: It is not trusted.
    """
    if not trusted:
        raise ModelLoadError(untrusted(path))
    import joblib

    return joblib.load(path)


class Estimator(Predictor):
    """An estimator.

    Args:
        path: The file, for errors.
        estimator: The estimator.
    """

    library = SKLEARN
    number = "FP64"

    def __init__(self, path: Path, estimator: Any) -> None:
        self.estimator = estimator
        methods = [
            name
            for name in (PREDICT, PROBABILITIES, TRANSFORM)
            if callable(getattr(estimator, name, None))
        ]
        if not methods:
            raise ModelLoadError(
                f"{path} has a {type(estimator).__name__}; expected a fitted estimator of scikit-learn, with a method "
                f"predict"
            )
        names = getattr(estimator, "feature_names_in_", None)
        count = getattr(estimator, "n_features_in_", None)
        self.named = names is not None
        self._documents = _takes_documents(estimator)
        if self._documents:
            self.features = (Feature(_DOCUMENT, text=True),)
        elif count is None:
            raise ModelLoadError(
                f"{path} has a {type(estimator).__name__} that is not fitted, or does not say how many columns it takes "
                f"(n_features_in_); fit it before you save it, or write a handler that calls it"
            )
        else:
            shown = list(map(str, names)) if names is not None else unnamed(count)
            texts = _texts(estimator)
            self.features = tuple(
                Feature(name, index in texts, texts.get(index, ()), blank=index in texts)
                for index, name in enumerate(shown)
            )
        self._frame: Any = None
        if self.named:
            import pandas

            self._frame = pandas.DataFrame
        classes = getattr(estimator, "classes_", None)
        self.classes = classes if isinstance(classes, np.ndarray) else None
        self._methods = {PREDICT, PROBABILITIES} & set(methods) or {TRANSFORM}
        self.outputs = self._declared()

    def _declared(self) -> tuple[TensorSpec, ...]:
        """Return the outputs, from the answer for one row."""
        names = [one for one in (PREDICT, PROBABILITIES, TRANSFORM) if one in self._methods]
        try:
            found = self.predict(self._row(), names)
        except Exception:  # noqa: BLE001  a model may refuse zeros
            specs = [TensorSpec(PREDICT, "FP64", (-1,))]
            if self.classes is not None:
                probabilities = TensorSpec(PROBABILITIES, "FP64", (-1, len(self.classes)))
                specs = [tensor(PREDICT, as_objects(self.classes)), probabilities]
            return tuple(one for one in specs if one.name in names)
        return tuple(tensor(name, one) for name, one in found.items())

    def _row(self) -> Table:
        """Return a table of one row, which most models can take."""
        if not any(one.text for one in self.features):
            return np.zeros((1, len(self.features)))
        row: list[Array] = []
        for one in self.features:
            value = next((text for text in one.categories if isinstance(text, str)), "a")
            row.append(np.array([value], object) if one.text else np.zeros(1))
        return row

    def predict(self, table: Table, outputs: Collection[str]) -> dict[str, Array]:
        """See `Predictor.predict`."""
        made = self._made(table)
        found = {}
        for name in outputs:
            values = getattr(self.estimator, name)(made)
            if isinstance(values, list):  # the probabilities of several outputs
                continue
            if hasattr(values, "toarray"):  # a sparse matrix
                values = values.toarray()
            found[name] = as_objects(np.asarray(values))
        return found

    def _made(self, table: Table) -> Any:
        """Return a table as the estimator expects it: a data frame, texts or an array."""
        names = [one.name for one in self.features]
        if isinstance(table, np.ndarray):
            return table if self._frame is None else self._frame(table, columns=names)
        if self._documents:
            return table[0]
        columns = [
            _with_missing(column, one.categories) if one.text else column
            for one, column in zip(self.features, table, strict=True)
        ]
        if self._frame is not None:
            # pandas would give texts a type that has no None.
            frame = self._frame(dict(zip(names, columns, strict=True)), dtype=object)
            return frame.astype({one.name: float for one in self.features if not one.text})
        return joined(columns, object)


def _with_missing(column: Array, categories: Sequence[Any]) -> Array:
    """Return a column of texts with missing values as None or NaN, as the encoder has seen them."""
    empty = np.array([value == MISSING for value in column], bool)
    if MISSING in categories or not empty.any():
        return column
    column = column.copy()
    column[empty] = None if None in categories else np.nan
    return column


def _takes_documents(estimator: Any) -> bool:
    """Tell whether an estimator takes a text for each row: its first step is a vectorizer of texts."""
    while (steps := getattr(estimator, "steps", None)) is not None:
        estimator = steps[0][1]
    inner = next((getattr(estimator, name) for name in _INNER if hasattr(estimator, name)), None)
    if inner is not None:
        return _takes_documents(inner)
    return hasattr(estimator, "build_analyzer")


def _texts(step: Any) -> dict[int, tuple[Any, ...]]:
    """Return the columns of texts that a fitted step takes, by index, with their categories; () for free texts."""
    for name in _INNER:
        if hasattr(step, name):
            return _texts(getattr(step, name))
    if hasattr(step, "steps"):
        for _, one in step.steps:
            found = _texts(one)
            if found or type(one).__name__ not in _KEEP_COLUMNS:
                return found
    if hasattr(step, "transformers_"):
        return _texts_by_columns(step)
    if hasattr(step, "transformer_list"):
        return {
            at: values for _, one in step.transformer_list for at, values in _texts(one).items()
        }
    if getattr(step, "_preprocessor", None) is not None:  # gradient boosting with categories
        return _texts(step._preprocessor)
    categories: Iterable[Array] = getattr(step, "categories_", ())
    return {
        index: tuple(values.tolist())
        for index, values in enumerate(categories)
        if any(isinstance(value, str) for value in values.tolist())
    }


def _texts_by_columns(step: Any) -> dict[int, tuple[Any, ...]]:
    """Return the columns of texts of a ColumnTransformer; see `_texts`."""
    found: dict[int, tuple[Any, ...]] = {}
    for name, one, given in step.transformers_:
        if isinstance(one, str):
            continue
        columns = step._transformer_to_input_indices[name]
        if isinstance(given, str | int) and _takes_documents(one):
            found[columns[0]] = ()
            continue
        found |= {columns[at]: values for at, values in _texts(one).items()}
    return found
