"""Handlers in separate processes, in a real server: deaths, hangs, and bytes of other clients."""

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wait_until import wait_until

HEADER_LENGTH = "Inference-Header-Content-Length"
TENSORS = """
inputs: [{name: x, datatype: FP32, shape: [-1, -1]}]
outputs: [{name: y, datatype: FP32, shape: [-1, -1]}]
executor: process
timeout_ms: 60000
"""

WAYS = """
import ctypes, os, signal, time
import numpy as np
from ksrv import BaseHandler

class Ways(BaseHandler):
    def inference(self, x):
        way = int(x[0, 0])
        if way == -1: os._exit(3)
        if way == -2: ctypes.string_at(0)
        if way == -3: os.kill(os.getpid(), signal.SIGKILL)
        if way == -4: raise MemoryError
        if way == -5: time.sleep(600)
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

IDENTITY = """
from ksrv import BaseHandler

class Identity(BaseHandler):
    def inference(self, x):
        return {"y": x}
"""

KEEPER = """
from ksrv import BaseHandler

class Keeper(BaseHandler):
    def initialize(self, context):
        self.kept = []

    def inference(self, x):
        self.kept = [*self.kept[-20:], x]
        return {"y": x}
"""

SAME_ARRAY = """
import numpy as np
from ksrv import BaseHandler

class Same(BaseHandler):
    def initialize(self, context):
        self.y = {}

    def inference(self, x):
        y = self.y.setdefault(x.shape, np.empty(x.shape, "f4"))
        y[...] = x
        return {"y": y}
"""

BATCHING = "batching: {max_batch_size: 4, max_delay_ms: 1}\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("processes")
    write_model(root, "ways", WAYS, TENSORS)
    # Slow enough that four clients keep both processes busy.
    slowly = WAYS.replace("        return", "        time.sleep(0.005)\n        return")
    write_model(root, "pair", slowly, TENSORS + "instances: 2\n")
    write_model(root, "slow", SLOW_START, TENSORS)
    for name, handler in (("identity", IDENTITY), ("keeper", KEEPER), ("same", SAME_ARRAY)):
        write_model(root, name, handler, TENSORS + "instances: 2\n")
        write_model(root, f"{name}-batched", handler, TENSORS + BATCHING)
    with Server(root) as running:
        running.folder = root
        yield running


def body_of(values: np.ndarray, **parameters) -> tuple[bytes, dict[str, str]]:
    entry = {
        "name": "x",
        "datatype": "FP32",
        "shape": list(values.shape),
        "parameters": {"binary_data_size": values.nbytes},
    }
    header = {"inputs": [entry], "parameters": {"binary_data_output": True, **parameters}}
    text = json.dumps(header).encode()
    return text + values.tobytes(), {HEADER_LENGTH: str(len(text))}


def infer(server: Server, model: str, values: np.ndarray, session=requests, **parameters):
    body, headers = body_of(values, **parameters)
    url = f"{server.url}/v2/models/{model}/infer"
    return session.post(url, data=body, headers=headers, timeout=120)


def values_of(answer: requests.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    length = int(answer.headers[HEADER_LENGTH])
    (output,) = json.loads(answer.content[:length])["outputs"]
    return np.frombuffer(answer.content[length:], "<f4").reshape(output["shape"])


def pid_of(server: Server, model: str) -> int:
    return int(values_of(infer(server, model, np.ones((1, 1), "f4")))[0, 0])


def ready(server: Server, model: str) -> bool:
    return requests.get(f"{server.url}/v2/models/{model}/ready", timeout=30).status_code == 200


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between open and read
        return False


@pytest.mark.parametrize(
    ("way", "reason"), [(-1, "exit status 3"), (-2, "SIGSEGV"), (-3, "SIGKILL")]
)
def test_a_request_that_ends_its_process_is_tried_twice_and_then_refused(served, way, reason):
    answer = infer(served, "ways", np.full((1, 1), way, "f4"))
    assert answer.status_code == 500
    assert reason in answer.json()["error"]
    assert "/" not in answer.json()["error"]
    pid = pid_of(served, "ways")  # waits in the queue until the process is replaced
    assert lives(pid)
    wait_until(lambda: ready(served, "ways"))


def test_a_lack_of_memory_is_an_error_and_no_death(served):
    pid = pid_of(served, "ways")
    answer = infer(served, "ways", np.full((1, 1), -4, "f4"))
    assert answer.status_code == 500
    assert "MemoryError" in answer.json()["error"]
    assert pid_of(served, "ways") == pid


def test_a_hang_is_answered_at_its_deadline_and_its_process_replaced(served):
    text = ""
    while "while the handler ran" not in text:  # the deadline may pass before it does
        pid = pid_of(served, "ways")
        answer = infer(served, "ways", np.full((1, 1), -5, "f4"), timeout=500_000)
        assert answer.status_code == 504, answer.text
        text = answer.json()["error"]
    assert pid_of(served, "ways") != pid
    assert not lives(pid)


def test_readiness_shows_a_death_between_requests_and_the_recovery(served):
    pid = pid_of(served, "slow")
    (served.folder / "slow" / "wait").touch()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not ready(served, "slow"))
    (served.folder / "slow" / "wait").unlink()
    wait_until(lambda: ready(served, "slow"))
    assert pid_of(served, "slow") != pid


class Load:
    """Four clients of the model `pair`; `seen` is which processes answered them since it was emptied."""

    def __init__(self, server: Server) -> None:
        self.seen: set[int] = set()
        self.failures: list[str] = []
        self.answered = 0
        self._server = server
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(n,)) for n in range(4)]

    def _client(self, number: int) -> None:
        with requests.Session() as session:
            while not self._stop.is_set():
                answer = infer(self._server, "pair", np.full((2, 50), number, "f4"), session)
                if answer.status_code != 200:
                    self.failures.append(answer.text)
                    return
                self.seen.add(int(values_of(answer)[0, 0]))
                self.answered += 1

    def wait_for_two(self) -> list[int]:
        """Return the processes once two that live have answered."""
        self.seen.clear()
        found: list[int] = []

        def two_answered() -> bool:
            found[:] = [pid for pid in tuple(self.seen) if lives(pid)]
            return len(found) >= 2 or bool(self.failures)

        wait_until(two_answered)
        return found

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_both_instances_of_a_model_serve(served):
    with Load(served) as load:
        first, second = load.wait_for_two()
    assert first != second
    assert not load.failures


def test_killed_processes_lose_no_request_when_there_is_a_second(served):
    with Load(served) as load:
        for _ in range(4):
            os.kill(load.wait_for_two()[0], signal.SIGKILL)
        load.wait_for_two()
        wait_until(lambda: load.answered > 20 or load.failures)
    assert not load.failures


@pytest.mark.parametrize("kind", ["", "-batched"])
@pytest.mark.parametrize("name", ["identity", "keeper", "same"])
def test_no_answer_carries_anothers_bytes(served, name, kind):
    """Each client sends another pattern and reads slowly, so that answers overlap."""
    model = name + kind
    wrong: list[str] = []

    def client(number: int) -> None:
        size = 40_000 if kind else 20_000 * (number % 3 + 1)
        for turn in range(6):
            values = np.full((1, size), number * 100 + turn, "f4")
            values[0, ::7] = number
            body, headers = body_of(values)
            answer = read_slowly(served, f"/v2/models/{model}/infer", body, headers)
            if answer != values.tobytes():
                wrong.append(f"client {number}, turn {turn}")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def read_slowly(server: Server, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """Return the tensor bytes of an answer that is read in pieces with pauses."""
    host, port = server.http.rsplit(":", 1)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Content-Length: {len(body)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    received = bytearray()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.settimeout(60)
        connection.sendall(head.encode() + b"\r\n" + body)
        while piece := connection.recv(16_384):
            received += piece
            time.sleep(0.001)
    answer_head, _, content = bytes(received).partition(b"\r\n\r\n")
    assert answer_head.startswith(b"HTTP/1.1 200"), answer_head
    for line in answer_head.split(b"\r\n"):
        if line.lower().startswith(HEADER_LENGTH.lower().encode() + b":"):
            return content[int(line.split(b":")[1]) :]
    raise AssertionError("the answer has no binary tensors")


def test_the_processes_end_with_the_server(tmp_path):
    write_model(tmp_path, "ways", WAYS, TENSORS)
    with Server(tmp_path) as server:
        stopped = pid_of(server, "ways")
    assert not lives(stopped)
    server = Server(tmp_path)
    server.start()
    try:
        server.wait_ready()
        orphan = pid_of(server, "ways")
        worker = int(Path(f"/proc/{orphan}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not lives(orphan))
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
        answer = infer(server, "runs", np.full((1, 1), -5, "f4"))
        assert answer.status_code == 504  # long before the 60 s that its request may take
        assert "while the handler ran" in answer.json()["error"]
        wait_until(lambda: ready(server, "runs"))
