"""`calls:` in model.yaml: the calls of many requests are joined, and the model is ready when the called models are."""

import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ksrv.client import Client
from ksrv.testing import Server
from tests.support.models import VECTOR, write_model

REQUESTS = 16

PIPELINE = """
from pathlib import Path

from ksrv import BaseHandler

CALLING = Path(__file__).parents[2] / "calling"


class Pipeline(BaseHandler):
    def inference(self, x):
        self.row = x.copy()
        CALLING.joinpath(str(int(x[0, 0]))).touch()
        y = self.context.models["detector"].infer({"x": x})["y"]
        assert (self.row == x).all(), "another request has written to this handler"
        return {"y": y}
"""

DETECTOR = f"""
import time
from pathlib import Path

from ksrv import BaseHandler

CALLING = Path(__file__).parents[2] / "calling"


class Detector(BaseHandler):
    def inference(self, x):
        latest = time.monotonic() + 20
        while len(list(CALLING.iterdir())) < {REQUESTS} and time.monotonic() < latest:
            time.sleep(0.005)
        return {{"y": x * 2}}
"""

TWICE = "def inference(x): return {'y': x * 2}\n"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "calling").mkdir()
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.mark.differs_in_processes(
    "only models in the worker get instances for the calls that they make"
)
def test_synchronous_pipeline_joins_the_calls_of_its_requests(root):
    write_model(root, "pipeline", PIPELINE, VECTOR + "calls: [detector]\n")
    joins = "batching: {max_batch_size: 32}\nwarmup: false\n"
    write_model(root, "detector", DETECTOR, VECTOR + joins)
    with Server(root) as server, Client(server.url) as client:

        def ask(number: int) -> float:
            answer = client.infer("pipeline", {"x": np.full((1, 4), number, np.float32)})
            return answer["y"][0, 0]

        with ThreadPoolExecutor(REQUESTS) as pool:
            assert list(pool.map(ask, range(REQUESTS))) == [2 * n for n in range(REQUESTS)]
        [counts] = client.statistics("detector")
    assert counts["inference_count"] == REQUESTS
    assert counts["execution_count"] <= REQUESTS // 2


def ready(server, path="/v2/health/ready"):
    try:
        with urllib.request.urlopen(server.url + path) as found:
            return found.status
    except urllib.error.HTTPError as error:
        return error.code


def test_model_is_ready_when_the_models_that_it_calls_are(root):
    write_model(root, "pipeline", TWICE, VECTOR + "calls: [detector]\n")
    write_model(root, "detector", TWICE, VECTOR)
    with Server(root) as server, Client(server.url) as client:
        assert ready(server, "/v2/models/pipeline/ready") == 200
        client.unload("detector")
        assert ready(server, "/v2/models/pipeline/ready") == 503
        client.load("detector")
        assert ready(server, "/v2/models/pipeline/ready") == 200


def test_models_that_name_each_other_under_calls_are_ready(root):
    for name, called in (("one", "two"), ("two", "one"), ("itself", "itself")):
        write_model(root, name, TWICE, VECTOR + f"calls: [{called}]\n")
    with Server(root) as server:
        assert [ready(server, f"/v2/models/{name}/ready") for name in ("one", "two", "itself")] == [
            200
        ] * 3
        assert ready(server) == 200
