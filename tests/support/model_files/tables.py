"""Twenty trained models of each library of tables: five kinds of tables, and four tasks on each.

The libraries are imported when a model is trained, so that tests without them can be collected.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

ROWS, SHOWN = 300, 48
TASKS = ("regression", "binary", "three", "seven")
KINDS = ("numbers", "missing", "named", "categories", "wide")
SUFFIXES = {"xgboost": ".ubj", "lightgbm": ".txt", "catboost": ".cbm", "sklearn": ".joblib"}


@dataclass(frozen=True)
class Trained:
    """A model and some rows for it.

    Attributes:
        name: The name under which it is served.
        model: The estimator, or a stand-in with `predict` and `predict_proba`.
        rows: The rows as the library takes them: an array or a data frame.
        datatype: The datatype of numbers.
        is_classifier: Whether it has probabilities.
    """

    name: str
    model: Any
    rows: Any
    datatype: str
    is_classifier: bool

    def inputs(self, rows: slice) -> dict[str, Array]:
        """Return some rows as a client sends them; a missing text is empty."""
        part = self.rows[rows]
        dtype = np.float32 if self.datatype == "FP32" else np.float64
        if isinstance(part, np.ndarray):
            return {"input": np.ascontiguousarray(part, dtype)}
        if len(part.columns) > 100:
            return {"input": np.ascontiguousarray(part.to_numpy(), dtype)}
        found = {}
        for name in part.columns:
            values = part[name].tolist()
            if any(isinstance(value, str) for value in values):
                texts = [value if isinstance(value, str) else "" for value in values]
                found[str(name)] = np.array(texts, object)
            else:
                found[str(name)] = np.array(values, dtype)
        return found

    def answers(self, rows: slice) -> dict[str, Array]:
        """Return the answers of the library for some rows."""
        part = self.rows[rows]
        predicted = np.asarray(self.model.predict(part))
        # CatBoost answers several classes as a column.
        found = {"predict": predicted[:, 0] if predicted.shape[1:] == (1,) else predicted}
        if self.is_classifier:
            found["predict_proba"] = np.asarray(self.model.predict_proba(part))
        return found


def table(kind: str, random: np.random.Generator) -> Any:
    """Return a table of a kind: an array, or a data frame if its columns have names."""
    import pandas

    if kind == "wide":
        rows = random.normal(size=(ROWS, 300)).astype(np.float32)
        rows[random.random(rows.shape) < 0.9] = 0
        return rows
    rows = random.normal(size=(ROWS, 6)).astype(np.float32)
    if kind == "missing":
        rows[random.random(rows.shape) < 0.15] = np.nan
    if kind in ("numbers", "missing"):
        return rows
    frame = pandas.DataFrame(rows, columns=["age", "income", "a b", "self", "größe", "x"])
    if kind == "categories":
        frame["city"] = random.choice(["Oslo", "Rome", "Kyiv", "São Paulo"], ROWS)
        frame["plan"] = random.choice(["free", "pro"], ROWS)
    return frame


def target(rows: Any, task: str, random: np.random.Generator) -> Array:
    """Return what a model learns from a table."""
    values: Array = rows if isinstance(rows, np.ndarray) else rows[rows.columns[:6]].to_numpy()
    y = np.nan_to_num(values).sum(1) + random.normal(size=ROWS)
    if not isinstance(rows, np.ndarray) and "city" in rows:
        y = y + 3 * (rows["city"] == "Oslo").to_numpy()
    if task == "regression":
        return np.asarray(y)
    count = {"binary": 2, "three": 3, "seven": 7}[task]
    return np.digitize(y, np.quantile(y, np.arange(1, count) / count))


def _xgboost(kind: str, task: str, rows: Any, y: Array) -> tuple[Any, Any]:
    import xgboost

    if kind == "categories":
        # XGBoost stores letters beyond ASCII cut off.
        rows["city"] = rows["city"].replace({"São Paulo": "Sao Paulo"})
        rows = rows.astype({"city": "category", "plan": "category"})
        rows.loc[::9, "city"] = np.nan
    make = xgboost.XGBRegressor if task == "regression" else xgboost.XGBClassifier
    booster = "dart" if (kind, task) == ("named", "binary") else "gbtree"
    return make(n_estimators=8, enable_categorical=True, booster=booster, n_jobs=1).fit(
        rows, y
    ), rows


def _lightgbm(kind: str, task: str, rows: Any, y: Array) -> tuple[Any, Any]:
    import lightgbm

    if not isinstance(rows, np.ndarray):  # LightGBM writes no spaces into names
        rows = rows.rename(columns={"a b": "a_b"})
    if kind == "categories":
        rows = rows.astype({"city": "category", "plan": "category"})
        rows.loc[::9, "city"] = np.nan
    make = lightgbm.LGBMRegressor if task == "regression" else lightgbm.LGBMClassifier
    return make(n_estimators=8, verbose=-1, n_jobs=1).fit(rows, y), rows


def _catboost(kind: str, task: str, rows: Any, y: Array) -> tuple[Any, Any]:
    import catboost

    make = catboost.CatBoostRegressor if task == "regression" else catboost.CatBoostClassifier
    texts = ["city", "plan"] if kind == "categories" else None
    labels = np.array(["no", "yes"])[y] if task == "binary" else y
    model = make(
        iterations=8,
        depth=4,
        verbose=0,
        cat_features=texts,
        allow_writing_files=False,
        thread_count=1,
    )
    return model.fit(rows, labels), rows


def _sklearn(kind: str, task: str, rows: Any, y: Array) -> tuple[Any, Any]:
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
        RandomForestClassifier,
        RandomForestRegressor,
    )
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

    number = task == "regression"
    labels = y if number or task == "seven" else np.array(["low", "middle", "high"])[y]
    linear = Ridge() if number else LogisticRegression()
    if kind == "numbers":
        rows = rows.astype(np.float64)
        return make_pipeline(StandardScaler(), linear).fit(rows, labels), rows
    if kind == "missing":
        model = HistGradientBoostingRegressor if number else HistGradientBoostingClassifier
        return model(max_iter=8).fit(rows.astype(np.float64), labels), rows.astype(np.float64)
    trees = (RandomForestRegressor if number else RandomForestClassifier)(8, random_state=0)
    if kind != "categories":
        if kind == "named":
            rows = rows.astype(np.float64)
        return trees.fit(rows, labels), rows
    rows = rows.astype(dict.fromkeys(rows.columns[:6], np.float64))
    rows.loc[::9, "city"] = None
    encoder = (
        make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder())
        if task in ("regression", "binary")
        else OrdinalEncoder()
    )
    columns = make_column_transformer(
        (StandardScaler(), list(rows.columns[:6])), (encoder, ["city", "plan"])
    )
    end = linear if task in ("regression", "binary") else trees
    return make_pipeline(columns, end).fit(rows, labels), rows


TRAIN: Mapping[str, Callable[[str, str, Any, Array], tuple[Any, Any]]] = {
    "xgboost": _xgboost,
    "lightgbm": _lightgbm,
    "catboost": _catboost,
    "sklearn": _sklearn,
}


def train(library: str, folder: Path) -> Iterator[Trained]:
    """Train twenty models of a library, and write each into a model repository.

    Args:
        library: A key of `TRAIN`.
        folder: The repository.
    """
    for kind in KINDS:
        for task in TASKS:
            random = np.random.default_rng(len(kind) * 100 + len(task))
            rows = table(kind, random)
            y = target(rows, task, random)
            model, rows = TRAIN[library](kind, task, rows, y)
            name = f"{kind}_{task}"
            write(library, model, folder, name)
            datatype = "FP32" if library in ("xgboost", "catboost") else "FP64"
            yield Trained(name, model, rows[:SHOWN], datatype, task != "regression")


def write(library: str, model: Any, folder: Path, name: str) -> None:
    """Write a model into a repository: as a file alone, or as a folder that trusts its pickle."""
    path = folder / f"{name}{SUFFIXES[library]}"
    if library != "sklearn":
        getattr(model, "booster_", model).save_model(str(path))
        return
    import joblib

    path = folder / name / path.name
    path.parent.mkdir()
    joblib.dump(model, path)
    (path.parent / "model.yaml").write_text(f"model: {path.name}\ntrust: pickle\n")
