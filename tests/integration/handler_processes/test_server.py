"""Handlers in separate processes, in a real server: readiness after a death, the end of the server, bounds on time."""

import os
import signal
from pathlib import Path

import requests

from ksrv.testing import Server
from tests.integration.handler_processes.test_ring import asked, pid_of
from tests.support.models import write_model
from tests.support.native.fast_path import row
from tests.support.processes import is_alive
from tests.support.wait_until import wait_until

TENSORS = """
inputs: [{name: x, datatype: FP32, shape: [-1, -1]}]
outputs: [{name: y, datatype: FP32, shape: [-1, -1]}]
executor: process
timeout_ms: 60000
"""

WAYS = """
import os, time
import numpy as np


def inference(x):
    if x[0, 0] == -5: time.sleep(600)
    return {"y": np.full(x.shape, os.getpid(), "f4")}
"""

SLOW_START = """
import os, time
import numpy as np
from ksrv import BaseHandler

class Slow(BaseHandler):
    def initialize(self, context):
        while os.path.exists(os.path.join(os.path.dirname(__file__), "wait")):
            time.sleep(0.01)

    def inference(self, x):
        return {"y": np.full(x.shape, os.getpid(), "f4")}
"""


def ready(server: Server, model: str) -> bool:
    return requests.get(f"{server.url}/v2/models/{model}/ready", timeout=30).status_code == 200


def test_the_processes_end_with_the_server(tmp_path):
    write_model(tmp_path, "ways", WAYS, TENSORS)
    with Server(tmp_path) as server:
        stopped = pid_of(server, "ways")
    assert not is_alive(stopped)
    server = Server(tmp_path)
    server.start()
    try:
        server.wait_ready()
        orphan = pid_of(server, "ways")
        worker = int(Path(f"/proc/{orphan}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not is_alive(orphan))
    finally:
        server.kill()


def test_a_model_yaml_bounds_the_start_of_a_process_and_each_batch(tmp_path):
    forever = SLOW_START.replace(
        'os.path.exists(os.path.join(os.path.dirname(__file__), "wait"))', "True"
    )
    write_model(tmp_path, "starts", forever, TENSORS + "start_timeout_ms: 1500\n")
    write_model(tmp_path, "runs", WAYS, TENSORS + "run_timeout_ms: 500\nstart_timeout_ms: 60000\n")
    with Server(tmp_path, wait_ready=False) as server:
        wait_until(lambda: "models loaded" in server.log)
        answer = requests.get(f"{server.url}/v2/models/starts/ready", timeout=30)
        assert "did not get ready within 1.5 s" in answer.json()["error"]
        answer = asked(server, "runs", row(-5))
        assert answer.status_code == 504  # long before the 60 s that its request may take
        assert "while the handler ran" in answer.json()["error"]
        wait_until(lambda: ready(server, "runs"))
