"""A process that ends is replaced by the files that were loaded, even if the disk has changed since."""

import contextlib
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.processes import children
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.long

HANDLER = """
import os
from pathlib import Path
import numpy as np
import net
from ksrv import BaseHandler

class Handler(BaseHandler):
    def initialize(self, context):
        self.weight = float(Path(__file__).with_name("weights.txt").read_text())

    def inference(self, x):
        rows = np.array([net.VALUE, self.weight, self.context.parameters["added"], os.getpid()])
        return {"y": np.repeat(rows[None], len(x), 0)}
"""
SETTINGS = """
inputs: [{name: x, datatype: FP32, shape: [-1, 1]}]
outputs: [{name: y, datatype: FP64, shape: [-1, 4]}]
parameters: {added: 3}
"""
SERVERS = {
    "handler processes": (1, SETTINGS + "executor: process\ninstances: 3\n"),
    "workers": (2, SETTINGS),
}
LOADED = (1.0, 2.0, 3.0)


class Served:
    """A server with one model whose processes can be killed."""

    def __init__(self, server, folder, workers):
        self.server = server
        self.folder = folder
        self.workers = workers

    def url(self, path):
        return f"{self.server.url}/v2/{path}"

    def ask(self, _=None):
        """Return the model's numbers and the process that answered; a text where it failed."""
        with requests.Session() as session:  # whichever worker accepts
            document = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0]}]}
            answer = session.post(self.url("models/m/infer"), json=document, timeout=60)
        if answer.status_code != 200:
            return answer.json()["error"], 0
        *numbers, pid = answer.json()["outputs"][0]["data"]
        return tuple(numbers), int(pid)

    def answers(self):
        with ThreadPoolExecutor(6) as pool:
            return set(pool.map(self.ask, range(60)))

    def numbers(self):
        return {numbers for numbers, _ in self.answers()}

    def kill(self):
        """Kill one of the processes that run the handler, and return its number."""
        pid = self.ask()[1]
        os.kill(pid, signal.SIGKILL)
        return pid

    def metric(self, name):
        page = requests.get(f"{self.server.url}/metrics", timeout=60).text
        found = re.findall(rf'^{name}{{model="m",version=""}} (\S+)$', page, re.M)
        return sum(map(float, found))

    def wait_until_replaced(self):
        def is_replaced():
            loads = self.server.log.count("models loaded in")
            return self.metric("ksrv_instance_restarts_total") >= 1 or loads > self.workers

        wait_until(is_replaced)

    def reload(self):
        return requests.post(f"{self.server.url}/v1/config/reload", timeout=60)

    def load(self):
        return requests.post(self.url("repository/models/m/load"), json={}, timeout=60)


@contextlib.contextmanager
def serving(root, workers, settings=SETTINGS):
    folder = write_model(root, "m", HANDLER, settings)
    new_code(folder, 1.0)
    (folder / "weights.txt").write_text("2.0")
    with Server(root, workers=workers, grpc="off") as server:
        wait_until(lambda: server.log.count("ready: True") >= workers)
        yield Served(server, folder, workers)


@pytest.fixture(params=SERVERS)
def served(request, tmp_path):
    with serving(tmp_path, *SERVERS[request.param]) as made:
        yield made


def new_code(folder, value=11.0):
    (folder / "net.py").write_text(f"VALUE = {value}\n")


def broken_code(folder):
    (folder / "net.py").write_text("raise RuntimeError('no deployment')\n")


def removed(folder):
    (folder / "net.py").unlink()
    (folder / "handler.py").unlink()


def new_settings(folder):
    path = folder / "model.yaml"
    path.write_text(path.read_text().replace("added: 3", "added: 33"))


@pytest.mark.parametrize("change", [broken_code, removed, new_settings])
def test_replacement_serves_the_loaded_files(served, change):
    assert served.numbers() == {LOADED}
    change(served.folder)
    killed = served.kill()
    served.wait_until_replaced()
    answers = served.answers()
    assert {numbers for numbers, _ in answers} == {LOADED}
    assert killed not in {pid for _, pid in answers}
    assert requests.get(served.url("health/ready"), timeout=60).status_code == 200


def test_a_load_heals_all_of_them(served):
    new_code(served.folder)
    new_settings(served.folder)
    served.kill()
    served.wait_until_replaced()
    assert served.load().status_code == 200
    assert served.numbers() == {(11.0, 2.0, 33.0)}
    served.kill()
    wait_until(lambda: served.ask()[1] != 0)
    assert served.numbers() == {(11.0, 2.0, 33.0)}


def test_a_changed_model_file_is_not_served(served):
    (served.folder / "weights.txt").write_text("22.0")
    served.kill()
    wait_until(lambda: served.metric("ksrv_replacements_refused_total") == 1)
    assert served.numbers() == {LOADED}
    assert (
        "its file weights.txt changed since it was loaded; load the model again"
        in served.server.log
    )
    assert served.load().status_code == 200
    assert served.numbers() == {(1.0, 22.0, 3.0)}
    assert "reason" not in requests.get(served.url("models/m/ready"), timeout=60).json()


def test_nothing_is_left_that_was_loaded(served):
    (served.folder / "weights.txt").write_text("22.0")
    for _ in range(3 if served.workers == 1 else 2):
        served.kill()
        wait_until(lambda: served.ask() is not None)
    sentence = "its file weights.txt changed since it was loaded; load the model again"

    def refused(path):
        with contextlib.suppress(requests.ConnectionError):
            answer = requests.get(served.url(path), timeout=60)
            return answer.status_code == 503 and sentence in answer.text

    wait_until(lambda: refused("models/m/ready"))
    # Its answer is made ahead, behind the change of the model's state.
    wait_until(lambda: refused("health/ready"))
    assert served.load().status_code == 200
    # The replacement of the killed worker may still load.
    wait_until(lambda: served.numbers() == {(1.0, 22.0, 3.0)})
    assert requests.get(served.url("health/ready"), timeout=60).status_code == 200


def test_new_worker_skips_a_version_that_failed_to_load(tmp_path):
    with serving(tmp_path, 2) as served:
        server, folder = served.server, served.folder
        broken_code(folder)
        assert served.reload().status_code == 201  # which waits for both workers
        assert "RuntimeError: no deployment" in server.log
        assert served.numbers() == {LOADED}
        served.kill()
        wait_until(lambda: server.log.count("ready: True") >= 3)
        assert served.numbers() == {LOADED}
        new_code(folder)
        assert served.reload().status_code == 201
        assert served.numbers() == {(11.0, 2.0, 3.0)}


def test_replacing_worker_begins_with_the_versions_loaded_since_the_start(tmp_path):
    with serving(tmp_path, 2) as served:
        server, folder = served.server, served.folder
        new_code(folder)
        assert served.load().status_code == 200
        new_code(folder, 111.0)
        for killed in range(2):
            served.kill()
            wait_until(lambda least=3 + killed: server.log.count("ready: True") >= least)
            assert served.numbers() == {(11.0, 2.0, 3.0)}


GROWING = """
import time
from pathlib import Path
from ksrv import BaseHandler

HERE = Path(__file__).parent

class Handler(BaseHandler):
    def initialize(self, context):
        (HERE / ".began").touch()
        while not (HERE / ".go").exists():
            time.sleep(0.01)

    def inference(self, x):
        return {"y": x}
"""


@pytest.mark.parametrize("executor", ["inline", "process"])
@pytest.mark.parametrize("file", ["weights.bin", "handler.py"])
def test_a_deployment_that_is_half_copied_does_not_serve(tmp_path, executor, file):
    settings = f"""
inputs: [{{name: x, datatype: FP32, shape: [-1, 1]}}]
outputs: [{{name: y, datatype: FP32, shape: [-1, 1]}}]
executor: {executor}
"""
    folder = write_model(tmp_path, "m", GROWING, settings)
    (folder / "weights.bin").write_bytes(b"half")
    with Server(tmp_path, grpc="off", wait_ready=False) as server:
        wait_until((folder / ".began").exists)
        with (folder / file).open("a") as copied:
            copied.write("# more\n")
        (folder / ".go").touch()
        url = f"{server.url}/v2/models/m/ready"
        text = f"its file {file} changed while it was loaded"
        wait_until(lambda: text in requests.get(url, timeout=60).text)
        assert requests.get(url, timeout=60).status_code == 503
        loaded = requests.post(f"{server.url}/v2/repository/models/m/load", json={}, timeout=60)
        assert loaded.status_code == 200
        assert requests.get(url, timeout=60).status_code == 200


WRITING = """
import os
from pathlib import Path
import numpy as np
from ksrv import BaseHandler

HERE = Path(__file__).parent

class Handler(BaseHandler):
    def initialize(self, context):
        with (HERE / "starts.txt").open("a") as file:
            file.write(f"{os.getpid()}\\n")

    def inference(self, x):
        with (HERE / "requests.txt").open("a") as file:
            file.write("one\\n")
        return {"y": np.full((len(x), 4), [1, 2, 3, os.getpid()], np.float64)}
"""


@pytest.mark.parametrize("kind", SERVERS)
def test_files_that_the_handler_writes_are_no_deployment(tmp_path, kind):
    workers, settings = SERVERS[kind]
    folder = write_model(tmp_path, "m", WRITING, settings)
    for name in ("starts.txt", "requests.txt"):
        (folder / name).write_text("before\n")
    with Server(tmp_path, workers=workers, grpc="off") as server:
        wait_until(lambda: server.log.count("ready: True") >= workers)
        served = Served(server, folder, workers)
        assert served.numbers() == {LOADED}
        served.kill()
        served.wait_until_replaced()
        assert served.numbers() == {LOADED}
        assert served.load().status_code == 200
        assert "changed" not in server.log


ONE_FILE = """
import os
import numpy as np
import net
from ksrv import settings

@settings(
    executor="process",
    inputs=[{"name": "x", "datatype": "FP32", "shape": [-1, 1]}],
    outputs=[{"name": "y", "datatype": "FP64", "shape": [-1, 4]}],
)
async def inference(x):
    return {"y": np.array([[net.VALUE, 2, 3, os.getpid()]], np.float64)}
"""


def test_one_file_with_coroutines(tmp_path):
    (tmp_path / "m.py").write_text(ONE_FILE)
    (tmp_path / "net.py").write_text("VALUE = 1\n")
    with Server(tmp_path / "m.py", grpc="off") as server:
        served = Served(server, tmp_path, 1)
        assert served.numbers() == {LOADED}
        (tmp_path / "net.py").unlink()
        (tmp_path / "m.py").write_text("raise RuntimeError\n")
        killed = served.kill()
        wait_until(lambda: served.ask()[1] not in (0, killed))
        assert served.numbers() == {LOADED}


VERSION = """
import numpy as np
from ksrv import BaseHandler

class Handler(BaseHandler):
    def inference(self, x):
        return {"y": np.full((len(x), 1), VALUE)}
"""
ONE_NUMBER = """
handler: handler.py
inputs: [{name: x, datatype: FP32, shape: [-1, 1]}]
outputs: [{name: y, datatype: FP64, shape: [-1, 1]}]
version_policy: all
"""


def test_partly_failed_load_is_replaced_by_its_loaded_versions(tmp_path):
    folder = tmp_path / "m"

    def write(version, code):
        (folder / version).mkdir(parents=True, exist_ok=True)
        (folder / version / "handler.py").write_text(f"{code}\n{VERSION}")

    def answer_of(version):
        document = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0]}]}
        url = f"{server.url}/v2/models/m/versions/{version}/infer"
        answer = requests.post(url, json=document, timeout=60)
        return answer.json()["outputs"][0]["data"][0] if answer.ok else answer.status_code

    def answers():
        return [answer_of(version) for version in (1, 2, 3)]

    write("1", "VALUE = 1.0")
    write("2", "VALUE = 2.0")
    write("3", "raise RuntimeError('no version 3')")
    (folder / "model.yaml").write_text(ONE_NUMBER)
    with Server(tmp_path, grpc="off") as server:
        wait_until(lambda: "models loaded in" in server.log)
        assert answers() == [1, 2, 503]
        write("1", "VALUE = 10.0")
        write("2", "raise RuntimeError('no deployment')")
        load = requests.post(f"{server.url}/v2/repository/models/m/load", json={}, timeout=60)
        assert load.status_code == 500 and "no deployment" in load.json()["error"]
        assert answers() == [10, 2, 503]
        os.kill(children(server.pid)[0], signal.SIGKILL)
        wait_until(lambda: server.log.count("models loaded in") >= 2)
        assert answers() == [10, 2, 503]


LIFECYCLE = "ksrv.server.workers.lifecycle"
KILLING = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"


@pytest.mark.parametrize("workers", [1, 3])
def test_killing_deployment_spares_the_replacements(tmp_path, workers):
    with serving(tmp_path, workers) as served:
        server, folder = served.server, served.folder
        served = Served(server, folder, workers)
        (folder / "net.py").write_text(KILLING)
        with contextlib.suppress(requests.ConnectionError):
            served.load()
        wait_until(lambda: "the load of 'm' was not carried out, because the workers" in server.log)

        def all_have_loaded():
            found = children(server.pid)
            loaded = [
                pid for pid in found if f"[{pid}] INFO {LIFECYCLE}: models loaded" in server.log
            ]
            return len(loaded) == len(found) == workers

        wait_until(all_have_loaded, tell=lambda: server.log)
        assert served.numbers() == {LOADED}
        new_code(folder)
        assert served.load().status_code == 200
        assert served.numbers() == {(11.0, 2.0, 3.0)}
