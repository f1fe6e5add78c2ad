"""When a server and its models call themselves ready, and how they follow the disk."""

import json
import os
import shutil
import signal
import socket

import numpy as np
import pytest
import requests
from tritonclient import grpc as triton

from ksrv.testing import Server
from tests.support.models import BROKEN, DOUBLE, VECTOR, write_broken, write_double, write_model
from tests.support.processes import answers_of_each, children
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import read_answer

pytestmark = pytest.mark.long

SLOW_TO_WARM = """
import time
from pathlib import Path


def inference(x):
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
        wait_until(lambda: "models loaded" in server.log, tell=lambda: server.log)
        wait_until(lambda: status(server, "/v2/models/double/ready") == 200)
        assert status(server, "/v2/models/broken/ready") == 503
        wait_until(lambda: (status(server, "/v2/health/ready") == 200) == ready)
        assert status(server, "/v2/health/live") == 200
        with triton.InferenceServerClient(server.grpc) as client:
            assert client.is_server_ready() == ready
            assert client.is_server_live()
            assert client.is_model_ready("double") and not client.is_model_ready("broken")
        assert infer(server, "double") == [2.0, 4.0, 6.0, 8.0]
        assert infer(server, "broken") == 503


@pytest.mark.parametrize("workers", [1, 2])
def test_readiness_is_right_once_a_load_has_been_answered(tmp_path, workers):
    """In every worker: a quarter of a second later is too late for who asks next."""
    write_double(tmp_path)
    with Server(tmp_path, workers=workers) as server:
        wait_until(lambda: server.log.count("ready: True") == workers)
        folder = write_broken(tmp_path)
        for _ in range(3):
            (folder / "handler.py").write_text(BROKEN)
            for action in ("unload", "load"):
                requests.post(f"{server.url}/v2/repository/models/broken/{action}", timeout=30)
            assert {status(server, "/v2/health/ready") for _ in range(8)} == {503}
            (folder / "handler.py").write_text(DOUBLE)
            load = f"{server.url}/v2/repository/models/broken/load"
            assert requests.post(load, timeout=30).status_code == 200
            assert {status(server, "/v2/health/ready") for _ in range(8)} == {200}


def reading(server, name):
    page = requests.get(f"{server.url}/metrics", timeout=30).text
    return [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(name)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_new_model_that_polling_cannot_load_leaves_the_server_ready(tmp_path, workers):
    write_double(tmp_path)
    with Server(tmp_path, workers=workers, poll_interval=0.1) as server:
        wait_until(lambda: server.log.count("ready: True") == workers)
        folder = write_broken(tmp_path)

        def broken():
            line = index(server).get("broken", {})
            return line.get("state"), "the weights are gone" in line.get("reason", "")

        # Not all workers learn of the model at the same time.
        wait_until(
            lambda: answers_of_each(server.pid, broken) == [{("UNAVAILABLE", True)}] * workers
        )
        assert reading(server, 'ksrv_model_ready{model="broken",version=""}') == ["0.0"]
        assert {status(server, "/v2/health/ready") for _ in range(8)} == {200}
        with triton.InferenceServerClient(server.grpc) as client:
            assert client.is_server_ready() and not client.is_model_ready("broken")
        # A worker that takes the place of another does not require the model either.
        os.kill(children(server.pid)[0], signal.SIGKILL)
        wait_until(lambda: server.log.count("ready: True") == workers + 1)
        wait_until(lambda: "broken" in index(server))
        assert {status(server, "/v2/health/ready") for _ in range(8)} == {200}
        (folder / "handler.py").write_text(DOUBLE)
        wait_until(lambda: server.log.count("loaded broken in") == workers)
        (folder / "handler.py").write_text(BROKEN)
        wait_until(
            lambda: "the last load failed" in index(server).get("broken", {}).get("reason", "")
        )
        assert infer(server, "broken") == [2.0, 4.0, 6.0, 8.0]
        assert {status(server, "/v2/health/ready") for _ in range(8)} == {200}


def test_a_call_that_cannot_load_a_new_model_takes_readiness_away(tmp_path):
    write_double(tmp_path)
    with Server(tmp_path, poll_interval=0.1) as server:
        write_broken(tmp_path)
        wait_until(lambda: "broken" in index(server))
        assert status(server, "/v2/health/ready") == 200
        assert post(server, "/v2/repository/models/broken/load").status_code == 500
        assert status(server, "/v2/health/ready") == 503
        assert post(server, "/v2/repository/models/broken/unload").status_code == 200
        assert status(server, "/v2/health/ready") == 200


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_a_model_is_ready_once_it_is_warm_at_every_size(tmp_path, executor):
    yaml = f"{VECTOR}executor: {executor}\nbatching: {{max_batch_size: 3}}\n"
    folder = write_model(tmp_path, "m", SLOW_TO_WARM, yaml)
    with Server(tmp_path, wait_ready=False) as server:
        wait_until(lambda: (folder / "sizes").exists())
        wait_until(lambda: status(server, "/v2/health/live") == 200)
        assert status(server, "/v2/models/m/ready") == 503
        assert status(server, "/v2/health/ready") == 503
        assert infer(server, "m") == 503
        (folder / "go").touch()
        wait_until(lambda: status(server, "/v2/health/ready") == 200)
        assert (folder / "sizes").read_text().split() == ["1", "2", "3"]
        assert infer(server, "m") == [1.0, 2.0, 3.0, 4.0]


def test_a_watching_server_follows_the_disk(tmp_path):
    folder = write_model(tmp_path, "m", ADDS.replace("NUMBER", "1"), VECTOR)
    with Server(tmp_path, poll_interval=0.1) as server:
        assert infer(server, "m") == [2.0, 3.0, 4.0, 5.0]
        (folder / "handler.py").write_text(ADDS.replace("NUMBER", "10"))
        wait_until(lambda: infer(server, "m") == [11.0, 12.0, 13.0, 14.0])
        write_model(tmp_path, "new", ADDS.replace("NUMBER", "2"), VECTOR)
        wait_until(lambda: infer(server, "new") == [3.0, 4.0, 5.0, 6.0])
        shutil.rmtree(folder)
        wait_until(lambda: infer(server, "m") == 404)
        # It was unready if it was read half written or half removed.
        wait_until(lambda: status(server, "/v2/health/ready") == 200)


def test_the_versions_that_a_policy_names_are_served(tmp_path):
    policies = {
        "latest": ("{latest: 1}", ["10"]), "two": ("{latest: 2}", ["3", "10"]),
        "every": ("all", ["2", "3", "10"]), "chosen": ("{specific: [2, 10]}", ["2", "10"]),
    }  # fmt: skip
    for name, (policy, _) in policies.items():
        model = write_model(tmp_path, name, "", f"{VECTOR}version_policy: {policy}\n")
        (model / "handler.py").unlink()
        for version in ("2", "3", "10"):
            write_version(model, version, ADDS.replace("NUMBER", version))
    with Server(tmp_path) as server:
        for name, (_, served) in policies.items():
            document = requests.get(f"{server.url}/v2/models/{name}", timeout=30).json()
            assert document["versions"] == served
            assert infer(server, name) == [11.0, 12.0, 13.0, 14.0]
            for version in ("2", "3", "10"):
                found = infer(server, f"{name}/versions/{version}")
                added = [float(version) + number for number in (1, 2, 3, 4)]
                assert found == (added if version in served else 404)


HELD_START = """
import os
from pathlib import Path
from ksrv import BaseHandler

HERE = Path(__file__).parent

class Held(BaseHandler):
    def initialize(self, context):
        while (HERE / "hold").exists():
            (HERE / "held").touch()

    def inference(self, x):
        if x[0, 0] < 0:
            (HERE / "hold").touch()
            os._exit(3)
        return {"y": x}
"""


def test_a_process_that_is_replaced_leaves_the_rest_of_the_server_ready(tmp_path):
    write_double(tmp_path)
    folder = write_model(
        tmp_path, "poisoned", HELD_START, f"{VECTOR}executor: process\nretry: false\n"
    )
    with Server(tmp_path) as server:
        assert infer(server, "poisoned", (-1.0, 0.0, 0.0, 0.0)) == 500
        wait_until(lambda: (folder / "held").exists())
        wait_until(lambda: status(server, "/v2/models/poisoned/ready") == 503)
        answer = requests.get(f"{server.url}/v2/models/poisoned/ready", timeout=30).json()
        assert "being replaced" in answer["error"]
        assert status(server, "/v2/health/ready") == 200
        with triton.InferenceServerClient(server.grpc) as client:
            assert client.is_server_ready()
            assert client.is_model_ready("double") and not client.is_model_ready("poisoned")
        (folder / "hold").unlink()
        wait_until(lambda: status(server, "/v2/models/poisoned/ready") == 200)
        assert infer(server, "poisoned") == [1.0, 2.0, 3.0, 4.0]


def write_version(model, version, handler):
    (model / version).mkdir()
    (model / version / "handler.py").write_text(handler)


def post(server, path):
    return requests.post(server.url + path, timeout=30)


@pytest.mark.parametrize("policy", ["all", "{latest: 1}"])
def test_broken_new_version_keeps_the_previous_version(tmp_path, policy):
    model = write_model(tmp_path, "m", "", f"{VECTOR}version_policy: {policy}\n")
    (model / "handler.py").unlink()
    for version in ("7", "8"):
        write_version(model, version, ADDS.replace("NUMBER", version))
    served = ["7", "8"] if policy == "all" else ["8"]
    with Server(tmp_path) as server, triton.InferenceServerClient(server.grpc) as client:
        write_version(model, "9", "raise ValueError('damaged')\n")
        refused = post(server, "/v2/repository/models/m/load")
        assert refused.status_code == 500 and "damaged" in refused.json()["error"]
        assert infer(server, "m") == infer(server, "m/versions/8") == [9.0, 10.0, 11.0, 12.0]
        assert infer(server, "m/versions/9") == 503
        assert status(server, "/v2/models/m/ready") == 200
        assert status(server, "/v2/health/ready") == 200
        assert requests.get(f"{server.url}/v2/models/m", timeout=30).json()["versions"] == served
        states = {
            entry["version"]: (entry["state"], entry["reason"])
            for entry in post(server, "/v2/repository/index").json()
        }
        assert {version: state for version, (state, _) in states.items()} == dict.fromkeys(
            served, "READY"
        ) | {"9": "UNAVAILABLE"}
        assert "damaged" in states["9"][1]
        assert client.is_server_ready() and client.is_model_ready("m")
        assert not client.is_model_ready("m", "9")
        assert list(client.get_model_metadata("m").versions) == served
        x = triton.InferInput("x", [1, 4], "FP32").set_data_from_numpy(np.ones((1, 4), "f4"))
        assert client.infer("m", [x]).as_numpy("y").tolist() == [[9.0] * 4]
        (model / "9" / "handler.py").write_text(ADDS.replace("NUMBER", "9"))
        assert post(server, "/v2/repository/models/m/load").status_code == 200
        assert infer(server, "m") == [10.0, 11.0, 12.0, 13.0]


ANSWERS = """
import numpy as np
from ksrv import BaseHandler

class Answers(BaseHandler):
    def inference(self, x):
        return RESULT
"""

PLANES = """
from ksrv import BaseHandler

class Planes(BaseHandler):
    def inference(self, image):
        if image.shape[CHANNELS] != 3:
            raise ValueError(f"expected 3 channels, found {image.shape}")
        return {"y": image.mean(axis=(1, 2, 3))}
"""

PICTURE = """
inputs: [{name: image, datatype: FP32, shape: [-1, 8, 6, 3], image: {model_layout: LAYOUT}}]
outputs: [{name: y, datatype: FP32, shape: [-1]}]
"""


def index(server):
    return {entry["name"]: entry for entry in post(server, "/v2/repository/index").json()}


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_a_warm_up_that_shows_a_broken_promise_fails_the_load(tmp_path, executor):
    results = {
        "name": ('{"z": x}', "the handler returned the outputs z; declared are y"),
        "shape": ('{"y": x[:, :3]}', "with the shape [1, 3]; the declared shape is [-1, 4]"),
        "datatype": ('{"y": x > 0}', "BOOL values as the output 'y'; FP32 is declared"),
        "count": ("(x, x)", "returned 2 outputs; 1 are declared: y"),
    }
    more = f"executor: {executor}\n"
    for name, (result, _) in results.items():
        write_model(tmp_path, name, ANSWERS.replace("RESULT", result), VECTOR + more)
    layouts = {"nhwc": ("NHWC", "1", "NCHW"), "nchw": ("NCHW", "3", "NHWC")}
    for name, (declared, channels, _) in layouts.items():
        handler = PLANES.replace("CHANNELS", channels)
        write_model(tmp_path, name, handler, PICTURE.replace("LAYOUT", declared) + more)
    write_model(tmp_path, "kept", PLANES.replace("CHANNELS", "1"),
                PICTURE.replace("LAYOUT", "NCHW") + more)  # fmt: skip
    with Server(tmp_path, wait_ready=False) as server:
        wait_until(lambda: "models loaded" in server.log, tell=lambda: server.log)
        found = index(server)
        for name, (_, sentence) in results.items():
            assert found[name]["state"] == "UNAVAILABLE"
            assert sentence in found[name]["reason"]
            assert infer(server, name) == 503
        for name, (declared, _, wanted) in layouts.items():
            assert found[name]["state"] == "UNAVAILABLE"
            assert f"the layout {declared} of the input 'image'" in found[name]["reason"]
            assert f"write model_layout: {wanted}" in found[name]["reason"]
        assert (found["kept"]["state"], found["kept"]["reason"]) == ("READY", "")


def test_a_warm_up_that_fails_otherwise_is_told_as_failed(tmp_path):
    wants = ANSWERS.replace("RESULT", '{"y": x / x.max() if x.any() else 1 / 0}')
    write_model(tmp_path, "wants", wants, VECTOR)
    write_double(tmp_path)
    with Server(tmp_path) as server:
        wait_until(lambda: "curl" in server.log)
        entry = index(server)["wants"]
        assert entry["state"] == "READY"
        assert "the warm-up failed" in entry["reason"]
        assert "ZeroDivisionError: division by zero (handler.py, line " in entry["reason"]
        asked = requests.post(
            f"{server.url}/v2/models/wants/infer",
            json={"id": "warm-up", "inputs": [
                {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0, 0, 0, 0]}]},
            timeout=60,
        )  # fmt: skip
        told = asked.json()["error"]  # a client gets only the type
        assert told.endswith("failed with ZeroDivisionError; the server's log has its traceback")
        assert index(server)["double"]["reason"] == ""
        lines = server.log.splitlines()
        place = next(n for n, line in enumerate(lines) if line.startswith("wants "))
        assert lines[place].split()[-2:] == ["FAILED", "yes"]
        assert "the warm-up failed" in lines[place + 1]
        assert infer(server, "wants") == [0.25, 0.5, 0.75, 1.0]


def probe(connection, *fields):
    lines = ["GET /v2/health/ready HTTP/1.1", "Host: ksrv", *fields]
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    return read_answer(connection)


def test_unready_server_names_its_unready_models(tmp_path):
    write_double(tmp_path)
    broken = write_broken(tmp_path)
    with Server(tmp_path, wait_ready=False) as server:
        wait_until(lambda: "models loaded" in server.log, tell=lambda: server.log)
        wait_until(lambda: b"the weights are gone" in server.get("/v2/health/ready")[1])
        address = server.http.split(":")
        with socket.create_connection(address, timeout=30) as kept:
            closing = socket.create_connection(address, timeout=30)
            with closing:
                answers = [probe(kept), probe(kept), probe(closing, "Connection: close")]
            for answer in answers:
                assert (answer.status, answer.headers["retry-after"]) == (503, "1")
                document = json.loads(answer.body)
                assert (document["ready"], document["live"]) == (False, True)
                assert "broken" in document["error"]
                assert "the weights are gone" in document["error"]
                assert "double" not in document["error"]
            model = requests.get(f"{server.url}/v2/models/broken/ready", timeout=30)
            assert model.status_code == 503 and model.json()["ready"] is False
            assert "the weights are gone" in model.json()["error"]
            (broken / "handler.py").write_text(ADDS.replace("NUMBER", "1"))
            assert post(server, "/v2/repository/models/broken/load").status_code == 200
            wait_until(lambda: probe(kept).status == 200)
            assert json.loads(probe(kept).body) == {"ready": True, "live": True}


def test_readiness_hides_model_names_without_a_token(tmp_path):
    write_broken(tmp_path)
    token = tmp_path / "tokens"
    token.write_text("secret\n")
    with Server(tmp_path / "broken", wait_ready=False, token_file=str(token)) as server:
        wait_until(lambda: b'not ready: 1"}' in server.get("/v2/health/ready")[1])
        error = json.loads(server.get("/v2/health/ready")[1])["error"]
        assert "broken" not in error and "weights" not in error
        headers = {"Authorization": "Bearer secret"}
        url = f"{server.url}/v2/models/broken/ready"

        def told():  # the model may still be loading
            answer = requests.get(url, headers=headers, timeout=30)
            return "the weights are gone" in answer.json()["error"]

        wait_until(told)
