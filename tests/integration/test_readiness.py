"""When a server and its models call themselves ready, and how they follow the disk."""

import shutil

import pytest
import requests
from integration_models import VECTOR, write_broken, write_double, write_model
from tritonclient import grpc as triton

from ksrv.testing import Server
from tests.until import until

SLOW_TO_WARM = """
import time
from pathlib import Path
from ksrv import BaseHandler

class Handler(BaseHandler):
    def inference(self, x):
        here = Path(__file__).parent
        with (here / "sizes").open("a") as file:
            file.write(f"{len(x)} ")
        while not x.any() and not (here / "go").exists():
            time.sleep(0.005)
        return {"y": x}
"""

ADDS = """
from ksrv import BaseHandler

class Adds(BaseHandler):
    def inference(self, x):
        return {"y": x + NUMBER}
"""


def status(server, path):
    return requests.get(server.url + path, timeout=30).status_code


def infer(server, model, values=(1.0, 2.0, 3.0, 4.0)):
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": list(values)}
    url = f"{server.url}/v2/models/{model}/infer"
    answer = requests.post(url, json={"inputs": [entry]}, timeout=30)
    return answer.json()["outputs"][0]["data"] if answer.status_code == 200 else answer.status_code


@pytest.mark.parametrize(("settings", "ready"), [({}, False), ({"ready_when": "any"}, True)])
def test_a_model_that_cannot_be_loaded_and_the_readiness_of_the_server(tmp_path, settings, ready):
    write_double(tmp_path)
    write_broken(tmp_path)
    with Server(tmp_path, wait_ready=False, **settings) as server:
        until(lambda: "models loaded" in server.log)
        until(lambda: status(server, "/v2/models/double/ready") == 200)
        assert status(server, "/v2/models/broken/ready") == 503
        until(lambda: (status(server, "/v2/health/ready") == 200) == ready)
        assert status(server, "/v2/health/live") == 200
        with triton.InferenceServerClient(server.grpc) as client:
            assert client.is_server_ready() == ready
            assert client.is_server_live()
            assert client.is_model_ready("double") and not client.is_model_ready("broken")
        assert infer(server, "double") == [2.0, 4.0, 6.0, 8.0]
        assert infer(server, "broken") == 503


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_a_model_is_ready_once_it_is_warm_at_every_size(tmp_path, executor):
    yaml = f"{VECTOR}executor: {executor}\nbatching: {{max_batch_size: 3}}\n"
    folder = write_model(tmp_path, "m", SLOW_TO_WARM, yaml)
    with Server(tmp_path, wait_ready=False) as server:
        until(lambda: (folder / "sizes").exists())
        until(lambda: status(server, "/v2/health/live") == 200)
        assert status(server, "/v2/models/m/ready") == 503
        assert status(server, "/v2/health/ready") == 503
        assert infer(server, "m") == 503
        (folder / "go").touch()
        until(lambda: status(server, "/v2/health/ready") == 200)
        assert (folder / "sizes").read_text().split() == ["1", "2", "3"]
        assert infer(server, "m") == [1.0, 2.0, 3.0, 4.0]


def test_a_watching_server_follows_the_disk(tmp_path):
    folder = write_model(tmp_path, "m", ADDS.replace("NUMBER", "1"), VECTOR)
    with Server(tmp_path, watch=0.1) as server:
        assert infer(server, "m") == [2.0, 3.0, 4.0, 5.0]
        (folder / "handler.py").write_text(ADDS.replace("NUMBER", "10"))
        until(lambda: infer(server, "m") == [11.0, 12.0, 13.0, 14.0])
        write_model(tmp_path, "new", ADDS.replace("NUMBER", "2"), VECTOR)
        until(lambda: infer(server, "new") == [3.0, 4.0, 5.0, 6.0])
        shutil.rmtree(folder)
        until(lambda: infer(server, "m") == 404)
        # It was not, where it was looked at half written or half removed.
        until(lambda: status(server, "/v2/health/ready") == 200)


@pytest.mark.parametrize(
    ("policy", "served"),
    [("{latest: 1}", ["10"]), ("{latest: 2}", ["3", "10"]), ("all", ["2", "3", "10"]),
     ("{specific: [2, 10]}", ["2", "10"])],
)  # fmt: skip
def test_the_versions_that_a_policy_names_are_served(tmp_path, policy, served):
    model = write_model(tmp_path, "m", "", f"{VECTOR}version_policy: {policy}\n")
    (model / "handler.py").unlink()
    for version in ("2", "3", "10"):
        (model / version).mkdir()
        (model / version / "handler.py").write_text(ADDS.replace("NUMBER", version))
    with Server(tmp_path) as server:
        document = requests.get(f"{server.url}/v2/models/m", timeout=30).json()
        assert document["versions"] == served
        assert infer(server, "m") == [11.0, 12.0, 13.0, 14.0]
        for version in ("2", "3", "10"):
            expected = [1 + float(version), 2 + float(version), 3 + float(version),
                        4 + float(version)]  # fmt: skip
            found = infer(server, f"m/versions/{version}")
            assert found == (expected if version in served else 404)
