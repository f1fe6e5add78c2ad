"""Forests of 100 trees on 30 numbers (W6) in the files of each library, beside the library's `predict`.

    python benchmarks/load/tables.py [--rows 1 32 1024 4096] [--repeats 50]

Each round calls the library and the model as the default handler calls it, in turn, with one thread each. Printed are
the least CPU time of the library, and the ratio of the model's to it. `make test-dialects` makes an environment with the
libraries.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import catboost
import joblib
import lightgbm
import numpy as np
import xgboost
from sklearn.ensemble import RandomForestRegressor

from ksrv.dialects.tabular.loader import load_table_model

COLUMNS, TREES, DEPTH = 30, 100, 8


def trained(folder: Path, rows: Any, y: Any) -> dict[str, tuple[Callable[[Any], Any], Path]]:
    """Return the `predict` of each library, and the file of the same model."""
    trees = xgboost.XGBRegressor(n_estimators=TREES, max_depth=DEPTH, n_jobs=1).fit(rows, y)
    trees.save_model(folder / "xgboost.ubj")
    light = lightgbm.LGBMRegressor(
        n_estimators=TREES, num_leaves=2**DEPTH - 1, max_depth=DEPTH, verbose=-1, n_jobs=1
    ).fit(rows, y)
    light.booster_.save_model(folder / "lightgbm.txt")
    cat = catboost.CatBoostRegressor(
        iterations=TREES, depth=DEPTH, verbose=0, thread_count=1, allow_writing_files=False
    ).fit(rows, y)
    cat.save_model(folder / "catboost.cbm")
    forest = RandomForestRegressor(TREES, max_depth=DEPTH).fit(rows, y)
    (folder / "forest").mkdir()
    joblib.dump(forest, folder / "forest" / "forest.joblib")
    (folder / "forest" / "model.yaml").write_text("model: forest.joblib\ntrust: pickle\n")
    return {
        "xgboost": (trees.predict, folder / "xgboost.ubj"),
        "lightgbm": (light.predict, folder / "lightgbm.txt"),
        "catboost": (lambda given: cat.predict(given, thread_count=1), folder / "catboost.cbm"),
        "forest": (forest.predict, folder / "forest" / "forest.joblib"),
    }


def fastest(calls: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Return the least CPU time of each call in seconds; the calls are made in turn."""
    best = [float("inf")] * len(calls)
    for _ in range(repeats):
        for place, call in enumerate(calls):
            began = time.thread_time()
            call()
            best[place] = min(best[place], time.thread_time() - began)
    return best


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 1024, 4096])
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    table = random.normal(size=(max(options.rows), COLUMNS)).astype(np.float32)
    y = 2 * table[:, 0] + random.normal(size=len(table))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        models = trained(folder, table, y)
        print("model     rows  library ms  ratio")
        for name, (predict, file) in models.items():
            loaded = load_table_model(file, trusted=True, threads=1)
            wide = loaded.input_specs[0].datatype == "FP64"
            for rows in options.rows:
                given = table[:rows]
                inputs = {"input": given.astype(np.float64) if wide else given}
                calls = [partial(predict, given), partial(loaded.run, inputs)]
                library, served = fastest(calls, options.repeats)
                shown = f"{name:9} {rows:4}  {library * 1e3:10.3f}"
                print(f"{shown}  {served / library:5.2f}", flush=True)


if __name__ == "__main__":
    main()
