"""A scikit-learn pipeline with a transformer from the model's folder, kept by joblib, as people keep them."""

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from ksrv.client import Client
from ksrv.testing import Server

pytestmark = pytest.mark.skipif(
    find_spec("sklearn") is None, reason="make test-packages installs it"
)  # found, not imported: each process that collects the tests would

FEATURES = """
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin


class Ratios(BaseEstimator, TransformerMixin):
    def fit(self, x, y=None):
        return self

    def transform(self, x):
        return np.column_stack([x, x[:, 0] / (1 + np.abs(x[:, 1]))])
"""

TRAIN = """
import joblib
import numpy as np
from features import Ratios
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline

rows = np.random.default_rng(5).normal(size=(64, 2))
model = make_pipeline(Ratios(), RandomForestClassifier(8, n_jobs=2, random_state=0))
model.fit(rows, rows[:, 0] > rows[:, 1])
joblib.dump(model, "model.joblib")
np.savez("asked.npz", rows=rows[:3].astype("f4"), answer=model.predict_proba(rows[:3].astype("f4")))
"""

HANDLER = """
import joblib
from ksrv import BaseHandler, Float32, Float64


class Model(BaseHandler):
    def initialize(self, context):
        self.model = joblib.load(context.file("model.joblib"))

    def inference(self, x: Float32[2]) -> Float64[2]:
        return self.model.predict_proba(x)
"""


@pytest.mark.timeout(300)
def test_a_pipeline_with_a_transformer_of_its_own(tmp_path):
    folder = tmp_path / "ratios"
    folder.mkdir()
    (folder / "features.py").write_text(FEATURES)
    (folder / "handler.py").write_text(HANDLER)
    (folder / "model.yaml").write_text("handler: handler.py\nexecutor: process\n")
    subprocess.run([sys.executable, "-c", TRAIN], cwd=folder, check=True)
    asked = np.load(folder / "asked.npz")
    with Server(folder, start_timeout=120) as server, Client(server.url, timeout=60) as client:
        answer = client.infer("ratios", {"x": asked["rows"]})["output"]
    np.testing.assert_allclose(answer, asked["answer"])
