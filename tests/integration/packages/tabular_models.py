"""Seven models of tables in one repository, fitted to random numbers, and what they answer."""

from pathlib import Path

import joblib
import lightgbm
import numpy as np
import pandas as pd
import torch
import xgboost
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from transformers import PatchTSTConfig, PatchTSTForRegression

from tests.integration.packages.transformers_models import Question

ROWS = np.random.default_rng(3).normal(size=(64, 4)).astype(np.float32)
LABELS = (ROWS[:, 0] + ROWS[:, 1] > 0).astype(np.int64)
CITIES = np.where(ROWS[:, 2] > 0, "Oslo", "Rome")

SKLEARN = """
import joblib
from ksrv import BaseHandler, Float32


class Model(BaseHandler):
    def initialize(self, context):
        self.model = joblib.load(context.file("model.joblib"))

    def inference(self, x: Float32[4]) -> Float32[2]:
        return self.model.predict_proba(x).astype("float32")
"""

XGBOOST = """
import xgboost
from ksrv import BaseHandler, Float32


class Model(BaseHandler):
    def initialize(self, context):
        self.model = xgboost.XGBClassifier()
        self.model.load_model(context.file("model.json"))

    def inference(self, x: Float32[4]) -> Float32[2]:
        return self.model.predict_proba(x)
"""

LIGHTGBM = """
from ksrv import BaseHandler, Float32


class Model(BaseHandler):
    def initialize(self, context):
        import lightgbm

        self.model = lightgbm.Booster(model_file=str(context.file("model.txt")))

    def inference(self, x: Float32[4]) -> Float32[1]:
        return self.model.predict(x).astype("float32")[:, None]
"""

PANDAS = """
import joblib
import pandas as pd
from ksrv import BaseHandler, Bytes, Float32


class Model(BaseHandler):
    def initialize(self, context):
        self.model = joblib.load(context.file("model.joblib"))

    def inference(self, age: Float32, income: Float32, city: Bytes) -> Float32[2]:
        frame = pd.DataFrame({"age": age, "income": income, "city": [one.decode() for one in city]})
        return self.model.predict_proba(frame).astype("float32")
"""

NET = """
import pandas
import sklearn.preprocessing
import torch


def make():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
"""

SERIES = """
from pathlib import Path

import sklearn.metrics
import torch
from ksrv import BaseHandler, Float32


class Model(BaseHandler):
    def initialize(self, context):
        from transformers import PatchTSTForRegression

        self.model = PatchTSTForRegression.from_pretrained(Path(context.model_dir) / "weights").eval()

    def preprocess(self, batch):
        return batch.tensor("x")

    def inference(self, x):
        return {"y": self.model(x).regression_outputs}
"""


def write(root: Path) -> dict[str, Question]:
    """Write the repository, and return a question to each model."""
    row = ROWS[:1]
    asked = {}
    for name, model in (
        ("linear", make_pipeline(StandardScaler(), LogisticRegression())),
        ("forest", RandomForestClassifier(8, random_state=0)),
    ):
        model.fit(ROWS, LABELS)
        joblib.dump(model, _model(root, name, SKLEARN) / "model.joblib")
        asked[name] = Question({"x": row}, model.predict_proba(row).astype(np.float32))

    boosted = xgboost.XGBClassifier(n_estimators=4, max_depth=2).fit(ROWS, LABELS)
    boosted.save_model(_model(root, "xgboost", XGBOOST) / "model.json")
    asked["xgboost"] = Question({"x": row}, boosted.predict_proba(row))

    trees = lightgbm.train(
        {"objective": "binary", "verbose": -1, "num_threads": 1},
        lightgbm.Dataset(ROWS, LABELS),
        num_boost_round=4,
    )
    trees.save_model(_model(root, "lightgbm", LIGHTGBM) / "model.txt")
    asked["lightgbm"] = Question({"x": row}, trees.predict(row).astype(np.float32)[:, None])

    frame = pd.DataFrame({"age": ROWS[:, 0], "income": ROWS[:, 1], "city": CITIES})
    columns = ColumnTransformer(
        [("numbers", StandardScaler(), ["age", "income"]), ("city", OneHotEncoder(), ["city"])]
    )
    people = make_pipeline(columns, LogisticRegression()).fit(frame, LABELS)
    joblib.dump(people, _model(root, "pandas", PANDAS) / "model.joblib")
    asked["pandas"] = Question(
        {"age": ROWS[:1, 0], "income": ROWS[:1, 1], "city": [str(CITIES[0])]},
        people.predict_proba(frame[:1]).astype(np.float32),
    )

    torch.manual_seed(6)
    with torch.inference_mode():
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        folder = root / "net"
        folder.mkdir(parents=True)
        (folder / "net.py").write_text(NET)
        (folder / "model.yaml").write_text(
            "class: net.py:make\nmodel: net.pth\n"
            "inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]\n"
        )
        torch.save(net.state_dict(), folder / "net.pth")
        asked["net"] = Question({"x": row}, net(torch.from_numpy(row)).numpy())

        config = PatchTSTConfig(
            num_input_channels=1, context_length=16, patch_length=4, patch_stride=4, d_model=8,
            num_attention_heads=2, num_hidden_layers=1, ffn_dim=16, num_targets=2,
        )  # fmt: skip
        series = PatchTSTForRegression(config).eval()
        folder = _model(root, "series", SERIES)
        (folder / "model.yaml").write_text(
            "handler: handler.py\ninputs: [{name: x, datatype: FP32, shape: [-1, 16, 1]}]\n"
        )
        series.save_pretrained(folder / "weights")
        steps = np.linspace(0, 1, 16, dtype=np.float32).reshape(1, 16, 1)
        asked["series"] = Question(
            {"x": steps}, series(torch.from_numpy(steps)).regression_outputs.numpy()
        )
    return asked


def _model(root: Path, name: str, handler: str) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "handler.py").write_text(handler)
    return folder
