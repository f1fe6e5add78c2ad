"""The environment in which a server starts, what a worker has imported when it serves, and what it runs when it ends."""

import json
from pathlib import Path

import requests

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wait_until import wait_until

MODULES = """
import json
import sys


def inference(x):
    return {"modules": [json.dumps(sorted(sys.modules))]}
"""
TEXT = """
inputs: [{name: x, datatype: FP32, shape: [-1, 1]}]
outputs: [{name: modules, datatype: BYTES, shape: [-1]}]
warmup: false
"""

ENDINGS = """
import atexit
import multiprocessing
import tempfile
import threading
import time
from pathlib import Path

from ksrv import BaseHandler

folder = Path(__file__).parent

class Left:
    def __del__(self, folder=folder):
        (folder / "finalized").touch()

left = Left()
atexit.register((folder / "at-exit").touch)

def wait_and_tell():
    threading.main_thread().join()
    (folder / "thread").touch()

class Handler(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        threading.Thread(target=wait_and_tell, daemon=False).start()
        self.scratch = tempfile.TemporaryDirectory(dir=folder)
        spawning = multiprocessing.get_context("spawn")
        self.process = spawning.Process(target=time.sleep, args=(1000,), daemon=True)
        self.process.start()
        (folder / "process").write_text(str(self.process.pid))

    def inference(self, x):
        return {"y": x}
"""


def test_a_worker_that_serves_tensors_has_imported_nothing_for_other_uses(tmp_path):
    write_model(tmp_path, "m", MODULES, TEXT)
    asked = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0]}]}
    with Server(tmp_path) as server:
        answer = requests.post(f"{server.url}/v2/models/m/infer", json=asked, timeout=30)
    [output] = answer.json()["outputs"]
    found = set(json.loads(output["data"][0]))
    assert "ksrv.server.grpc.native_server" in found
    assert found & {"cv2", "grpc", "torch", "google.protobuf.descriptor_pool"} == set()


def test_worker_end_joins_threads_and_runs_atexit_without_finalizers(tmp_path):
    folder = write_model(tmp_path, "m", ENDINGS, "warmup: false\n")
    with Server(tmp_path) as server:
        assert server.terminate() == 0
        assert "exited with code" not in server.log
    assert (folder / "at-exit").exists()
    assert (folder / "thread").exists()
    assert not (folder / "finalized").exists()
    assert [path for path in folder.iterdir() if path.name.startswith("tmp")] == []
    assert not Path("/proc", (folder / "process").read_text()).exists()


CLOSES_STDOUT = """
import sys
from pathlib import Path
from ksrv import BaseHandler

class Left:
    def __del__(self, mark=Path(__file__).with_name("finalized")):
        mark.touch()

sys.left = Left()  # outlives the model

class Handler(BaseHandler):
    def inference(self, x):
        sys.stdout.close()
        return {"y": x}
"""


def test_a_worker_whose_streams_take_nothing_ends_without_finalizers_too(tmp_path):
    folder = write_model(tmp_path, "m", CLOSES_STDOUT, "warmup: false\n")
    asked = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0]}]}
    with Server(tmp_path) as server:
        wait_until(lambda: "curl" in server.log)  # the last line that the start writes
        answer = requests.post(f"{server.url}/v2/models/m/infer", json=asked, timeout=30)
        assert answer.status_code == 200
        assert server.terminate() == 0
        assert "Traceback" not in server.log
    assert not (folder / "finalized").exists()


def test_a_service_called_ksrv_and_a_slip_keep_no_server_from_starting(repository):
    environment = {
        "KSRV_SERVICE_HOST": "10.0.0.5",
        "KSRV_SERVICE_PORT": "8080",
        "KSRV_PORT": "tcp://10.0.0.5:8080",
        "KSRV_PORT_8080_TCP_ADDR": "10.0.0.5",
        "KSRV_WROKERS": "2",
    }
    with Server(repository, grpc="off", environment=environment) as running:
        warnings = [line for line in running.log.splitlines() if line.startswith("Warning: ")]
    assert warnings == [
        "Warning: environment variable KSRV_WROKERS is not a setting and is not read (did you mean "
        "KSRV_WORKERS?)"
    ]
