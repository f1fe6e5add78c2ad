"""Models for Triton's Python backend: the thread that runs them, and the clients of calls that their threads make."""

import concurrent.futures
import json
import queue

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http

from ksrv.testing import Server
from tests.support.model_files.triton_repository import infer, write_folder
from tests.support.models import write_model
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.long

CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "y" data_type: TYPE_STRING dims: [ 1 ] }
"""
DECOUPLED = "model_transaction_policy { decoupled: True }"

STATE_OF_A_THREAD = """
import asyncio, decimal, json, os, signal, sqlite3, threading
import numpy as np
import torch
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.decoupled = json.loads(args["model_config"]).get("model_transaction_policy", {}).get("decoupled")
        self.folder = args["model_repository"]
        self.thread = threading.get_ident()
        self.local = threading.local()
        self.local.value = "set"
        self.database = sqlite3.connect(":memory:")
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        torch.set_grad_enabled(False)
        torch.set_default_device("meta")
        np.seterr(divide="raise")
        decimal.getcontext().prec = 5
        self.signals = []
        signal.signal(signal.SIGUSR1, lambda number, frame: self.signals.append(number))

    def facts(self):
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # which only the main thread may do
        os.kill(os.getpid(), signal.SIGUSR1)
        async def later():
            return "ran"
        return {
            "thread": threading.get_ident() == self.thread,
            "main": threading.current_thread() is threading.main_thread(),
            "local": self.local.value,
            "database": self.database.execute("select 7").fetchone()[0],
            "loop": asyncio.get_event_loop_policy().get_event_loop() is self.loop,
            "coroutine": self.loop.run_until_complete(later()),
            "grad": torch.is_grad_enabled(),
            "device": torch.empty(1).device.type,
            "divide": np.geterr()["divide"],
            "precision": decimal.getcontext().prec,
            "signals": [int(one) for one in self.signals],
        }

    def execute(self, requests):
        y = pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([json.dumps(self.facts())], object))])
        if not self.decoupled:
            return [y]
        requests[0].get_response_sender().send(y, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        with open(os.path.join(self.folder, "finalized"), "w") as file:
            json.dump(self.facts(), file)
"""

SEEN = """
import json, os, time

def inference(x, batch):
    [request] = batch.requests
    until = bytes(x[0]).decode()
    while until and not os.path.exists(until):
        time.sleep(0.005)
    seen = {"id": request.headers.get("x-request-id"), "has_deadline": request.deadline_ns is not None}
    return {"y": [json.dumps(seen)]}
"""
SEEN_YAML = """
inputs: [{name: x, datatype: BYTES, shape: [-1]}]
outputs: [{name: y, datatype: BYTES, shape: [-1]}]
batching: {max_batch_size: 1}
timeout_ms: 600000
instances: 4
warmup: false
"""

CALLER = """
import asyncio, json, multiprocessing.pool, os, queue, threading, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.executor = ThreadPoolExecutor(4)
        self.tasks = queue.SimpleQueue()
        for _ in range(2):
            threading.Thread(target=self.work, daemon=True).start()
        self.pool = None

    def work(self):
        while True:
            self.tasks.get()()

    async def execute(self, requests):
        [request] = requests
        way, began, go, until = request.inputs()[0].as_numpy()[0].decode().split(" ")
        call = self.call(until)
        def answer():
            while not os.path.exists(go):
                time.sleep(0.005)
            self.send(request, (call if way == "queue-made-before" else self.call(until)).exec())
        open(began, "w").close()
        if way == "thread":
            threading.Thread(target=answer).start()
        elif way == "thread-of-a-thread":
            threading.Thread(target=lambda: threading.Thread(target=answer).start()).start()
        elif way == "timer":
            threading.Timer(0, answer).start()
        elif way == "executor":
            self.executor.submit(answer)
        elif way == "pool":
            self.pool = self.pool or multiprocessing.pool.ThreadPool(4)
            self.pool.apply_async(answer)
        elif way.startswith("queue"):
            self.tasks.put(answer)
        elif way == "coroutine":
            while not os.path.exists(go):
                await asyncio.sleep(0.005)
            self.send(request, await self.call(until).async_exec())
        elif way == "to-thread":
            await asyncio.to_thread(answer)

    def call(self, until):
        x = pb_utils.Tensor("x", np.array([until], object))
        return pb_utils.InferenceRequest(model_name="seen", inputs=[x], requested_output_names=["y"])

    def send(self, request, found):
        if found.has_error():
            y = found.error().message()
        else:
            y = found.output_tensors()[0].as_numpy()[0]
        y = pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([y], object))])
        request.get_response_sender().send(y, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.parametrize("extra", ["", DECOUPLED], ids=["one answer", "decoupled"])
def test_initialize_execute_and_finalize_share_the_state_of_a_thread(tmp_path, extra):
    folder = write_folder(tmp_path, "model", CONFIG + extra)
    (folder / "1/model.py").write_text(STATE_OF_A_THREAD)
    state = {"thread": True, "main": True, "local": "set", "database": 7, "loop": True}
    settings = {"grad": False, "device": "meta", "divide": "raise", "precision": 5}
    wanted = {**state, **settings, "coroutine": "ran"}
    with Server(tmp_path, start_timeout=240) as server:
        for calls in (1, 2):
            x = np.array([b"x"], object)
            answer = infer(tritonclient.http, server, "model", {"x": x})
            facts = json.loads(answer.as_numpy("y")[0])
            assert facts.pop("signals") == [10] * calls
            assert facts == wanted
        requests.post(f"{server.url}/v2/repository/models/model/unload").raise_for_status()
        wait_until((folder / "finalized").exists)
        wait_until(lambda: (folder / "finalized").read_text().endswith("}"))
    facts = json.loads((folder / "finalized").read_text())
    assert (facts.pop("signals"), facts) == ([10] * 3, wanted)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    write_model(root, "seen", SEEN, SEEN_YAML)
    write_folder(root, "caller", CONFIG + DECOUPLED)
    (root / "caller/1/model.py").write_text(CALLER)
    with Server(root, start_timeout=240) as running:
        yield running


OWN = {"id": "client-A", "has_deadline": False}
NOBODYS = {"id": None, "has_deadline": False}


@pytest.mark.parametrize(
    ("way", "wanted"),
    [
        *((way, OWN) for way in ("thread", "thread-of-a-thread", "timer", "executor")),
        *((way, OWN) for way in ("coroutine", "to-thread", "queue-made-before")),
        *((way, NOBODYS) for way in ("queue", "pool")),
    ],
)
def test_a_call_from_a_thread_is_never_in_the_name_of_another_client(server, tmp_path, way, wanted):
    began_a, began_b, go_a, never, until = (tmp_path / one for one in ("a", "b", "go", "no", "end"))
    body = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1]}]}
    url = f"{server.url}/v2/models/caller/infer"

    def ask(name, began, go, **parameters):
        tensor = dict(body["inputs"][0], data=[f"{way} {began} {go} {until}"])
        headers = {"x-request-id": name}
        sent = {"inputs": [tensor], "parameters": parameters}
        return requests.post(url, json=sent, headers=headers)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, "client-A", began_a, go_a)
        wait_until(began_a.exists)
        second = pool.submit(ask, "client-B", began_b, never, timeout=1_000_000)
        wait_until(began_b.exists)
        go_a.touch()  # A calls while B is the newest batch, and waits until B's deadline has passed
        assert second.result().status_code == 504
        until.touch()
        answer = first.result()
    never.touch()
    assert answer.status_code == 200, answer.text
    assert json.loads(answer.json()["outputs"][0]["data"][0]) == wanted


def test_a_client_that_leaves_ends_the_calls_of_its_own_threads_alone(server, tmp_path):
    answers = queue.Queue()
    held = tmp_path / "held"
    with tritonclient.grpc.InferenceServerClient(server.grpc) as staying:
        leaving = tritonclient.grpc.InferenceServerClient(server.grpc)
        for client, name in ((staying, "stays"), (leaving, "leaves")):
            client.start_stream(lambda result, error, name=name: answers.put((name, result, error)))
            x = tritonclient.grpc.InferInput("x", [1], "BYTES")
            began = tmp_path / name
            text = f"thread {began} {tmp_path} {held}"
            x.set_data_from_numpy(np.array([text], object))
            client.async_stream_infer("caller", [x], request_id=name)
            wait_until(began.exists)
        leaving.stop_stream(cancel_requests=True)
        leaving.close()
        held.touch()
        name, result, error = answers.get(timeout=60)
        while name == "leaves":
            name, result, error = answers.get(timeout=60)
    assert error is None
    assert json.loads(result.as_numpy("y")[0])["id"] is not None
