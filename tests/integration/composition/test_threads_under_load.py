"""Handlers whose threads call models, among streams, loads, deadlines and clients that leave: nothing of another client.

Each request has its token, id and deadline, and each of them is looked for in its answer.
"""

import http.client
import json
import os
import random
import threading
import time
from collections import Counter

import numpy as np
import pytest
import requests
import tritonclient.grpc

from ksrv.testing import Server
from tests.support.model_files.triton_repository import write_folder
from tests.support.models import write_model

pytestmark = pytest.mark.slow

REQUESTS = int(os.environ.get("SOAK_REQUESTS", "100000"))
CLIENTS = 16
OWN_S, MODELS_S = 300, 900
"""The deadline that half of the requests have, and the one of the models."""

TEXTS = """
inputs: [{name: x, datatype: BYTES, shape: [-1]}]
outputs: [{name: y, datatype: BYTES, shape: [-1]}]
warmup: false
timeout_ms: 900000
queue_size: 1000
"""
SEEN = """
import json, time
from ksrv import BaseHandler

class Seen(BaseHandler):
    def inference(self, x):
        found = []
        for request in self.context.batch.requests:
            left = request.deadline_ns and (request.deadline_ns - time.monotonic_ns()) / 1e9
            for text in x[request.slice]:
                found.append(json.dumps([bytes(text).decode(), request.headers.get("x-request-id"), left]))
        return {"y": found}
"""
THREADS = """
import json, threading, time
from concurrent.futures import Future, ThreadPoolExecutor
from ksrv import BaseHandler

class Threads(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.pool = ThreadPoolExecutor(4)
        self.late = []

    def seen(self, text):
        return json.loads(self.context.models["seen"].infer({"x": [text]})["y"][0])

    def act(self, text):
        self.context.batch.set_header(0, "x-token", text)
        return self.seen(text)

    def act_late(self, text):
        time.sleep(0.02)
        try:
            self.context.batch.set_header(0, "x-token", text)
            refused = False
        except Exception as error:
            refused = "works for none" in str(error)
        try:
            self.late.append([refused, self.seen(text)])
        except Exception as error:
            self.late.append([refused, str(error)])

    def inference(self, x):
        text, way = bytes(x[0]).decode().split(" ")
        if way == "executor":
            [found] = self.pool.map(self.act, [text])
        elif way == "late":
            found = self.act(text)
            start = self.pool.submit if len(text) % 2 else self.start
            start(self.act_late, text)
        else:
            found = self.start(self.act, text).result()
        late, self.late = self.late, []
        return {"y": [json.dumps([found, late])]}

    def start(self, act, text):
        ended = Future()

        def run():
            try:
                ended.set_result(act(text))
            except BaseException as error:
                ended.set_exception(error)

        threading.Thread(target=run).start()
        return ended
"""
STREAMS = """
import time
from ksrv import BaseHandler

class Streams(BaseHandler):
    def inference(self, x):
        return [self.row(bytes(text).decode()) for text in x]

    def row(self, text):
        for number in range(3):
            yield f"{text} {number}"
"""
CALLER_CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_STRING dims: [ 1 ] } output { name: "y" data_type: TYPE_STRING dims: [ 1 ] }
model_transaction_policy { decoupled: True }
"""
CALLER = """
import asyncio, queue, threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.pool = ThreadPoolExecutor(8)
        self.tasks = queue.SimpleQueue()
        for _ in range(4):
            threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while True:
            self.tasks.get()()

    async def execute(self, requests):
        [request] = requests
        text, way = request.inputs()[0].as_numpy()[0].decode().split(" ")
        if way == "thread":
            threading.Thread(target=self.answer, args=(request, text)).start()
        elif way == "executor":
            self.pool.submit(self.answer, request, text)
        elif way == "queue":
            self.tasks.put(lambda: self.answer(request, text))
        elif way == "made":
            call = self.call(text)
            self.tasks.put(lambda: self.send(request, call.exec()))
        else:
            self.send(request, await self.call(text).async_exec())

    def answer(self, request, text):
        self.send(request, self.call(text).exec())

    def call(self, text):
        x = pb_utils.Tensor("x", np.array([text], object))
        return pb_utils.InferenceRequest(model_name="seen", inputs=[x], requested_output_names=["y"])

    def send(self, request, found):
        sender = request.get_response_sender()
        if found.has_error():
            response = pb_utils.InferenceResponse(error=pb_utils.TritonError(found.error().message()))
        else:
            response = pb_utils.InferenceResponse([pb_utils.Tensor("y", found.output_tensors()[0].as_numpy())])
        try:
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except pb_utils.TritonModelException:
            pass  # its client has left
"""


@pytest.fixture
def server(tmp_path):
    joined = TEXTS + "batching: {max_batch_size: 8}\n"
    write_model(tmp_path, "seen", SEEN, joined + "instances: 2\n")
    for executor in ("inline", "process"):
        settings = f"{TEXTS}executor: {executor}\nbatching: {{max_batch_size: 1}}\ninstances: 2\n"
        write_model(tmp_path, f"threads_{executor}", THREADS, settings)
        settings = f"{joined}executor: {executor}\n"
        write_model(tmp_path, f"streams_{executor}", STREAMS, settings)
    (write_folder(tmp_path, "caller", CALLER_CONFIG) / "1/model.py").write_text(CALLER)
    with Server(tmp_path, start_timeout=240) as running:
        yield running


def id_of(token):
    """Return the id of a request, which is shorter than its token."""
    return token[: token.index("x")]


class Client:
    """Makes requests of all kinds, and checks their answers.

    Args:
        number: Distinguishes the client's tokens from the tokens of other clients.
        counts: The outcomes of the requests; `faults` has wrong answers.
    """

    def __init__(self, server, number, counts, faults):
        self._server = server
        self._number = number
        self._random = random.Random(number)
        self._counts = counts
        self._faults = faults
        self._asked = 0
        self._connection = http.client.HTTPConnection(*server.http.split(":"), timeout=120)
        self._grpc = tritonclient.grpc.InferenceServerClient(server.grpc)

    def ask(self):
        self._asked += 1
        token = f"c{self._number}-{self._asked}-" + "x" * self._random.randrange(1, 200)
        kind = self._random.choices(
            ["caller", "threads", "streams", "seen", "leave", "expire"], [35, 25, 15, 15, 5, 5]
        )[0]
        self._counts[kind] += 1
        getattr(self, f"ask_{kind}")(token)

    def ask_caller(self, token):
        way = self._random.choice(["thread", "executor", "queue", "made", "coroutine"])
        own = self._random.random() < 0.5
        if self._random.random() < 0.3:
            found = self._over_grpc(f"{token} {way}", token, own)
        else:
            found = self._json("caller", f"{token} {way}", token, own)
        if found is not None:
            id_, most = (None, None) if way == "queue" else (id_of(token), OWN_S if own else None)
            self._check(f"caller {way}", json.loads(found), token, id_, most)

    def ask_threads(self, token):
        way = self._random.choice(["executor", "late", "thread"])
        own = self._random.random() < 0.5
        model = self._random.choice(["threads_inline", "threads_process"])
        found = self._json(model, f"{token} {way}", token, own, header="x-token")
        if found is None:
            return
        seen, late = json.loads(found)
        self._check(f"{model} {way}", seen, token, id_of(token), OWN_S if own else MODELS_S)
        for refused, call in late:
            self._counts["late threads"] += 1
            self._counts["late threads, refused"] += refused
            # A thread that is quicker than the answer still works for its batch.
            if isinstance(call, str):
                self._counts[f"late threads, {call[:40]}"] += 1
            elif call[1:] != [None, None] and (refused or call[1] != id_of(call[0])):
                self._faults.append(("late thread", model, refused, call))

    def ask_seen(self, token):
        own = self._random.random() < 0.5
        found = self._json("seen", token, token, own)
        if found is not None:
            # a client's request has the deadline that it asks for; the model's deadline is not shown
            self._check("seen", json.loads(found), token, id_of(token), OWN_S if own else None)

    def ask_streams(self, token):
        model = self._random.choice(["streams_inline", "streams_process"])
        status, _, body = self._post(model, token, token, False, accept="text/event-stream")
        if status != 200:
            self._note(status, body)
            return
        events = [
            json.loads(line[6:])
            for line in body.decode().splitlines()
            if line.startswith("data: {")
        ]
        found = [event["outputs"][0]["data"] for event in events if event.get("outputs")]
        if found != [[f"{token} {number}"] for number in range(3)]:
            self._faults.append(("stream", model, token, body[:2000]))

    def ask_leave(self, token):
        model = self._random.choice(["caller", "threads_inline", "threads_process"])
        connection = http.client.HTTPConnection(*self._server.http.split(":"), timeout=120)
        connection.request(
            "POST", f"/v2/models/{model}/infer", *self._request(f"{token} thread", token, False)
        )
        time.sleep(self._random.random() * 0.01)
        connection.close()

    def ask_expire(self, token):
        model = self._random.choice(["caller", "threads_inline", "threads_process"])
        body, headers = self._request(f"{token} thread", token, False)
        document = json.loads(body) | {
            "parameters": {"timeout": self._random.randrange(500, 30_000)}
        }
        self._connection.request("POST", f"/v2/models/{model}/infer", json.dumps(document), headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status == 200:
            seen = json.loads(json.loads(text)["outputs"][0]["data"][0])
            self._check("expire", seen[0] if "threads" in model else seen, token, id_of(token), 1)
        else:
            self._note(answer.status, text, 504)

    # ---- on the wire ------------------------------------------------------------------------

    def _request(self, text, token, own):
        tensor = {"name": "x", "datatype": "BYTES", "shape": [1], "data": [text]}
        body = {"inputs": [tensor]} | (
            {"parameters": {"timeout": OWN_S * 1_000_000}} if own else {}
        )
        return json.dumps(body), {"x-request-id": id_of(token)}

    def _post(self, model, text, token, own, **headers):
        body, own_headers = self._request(text, token, own)
        self._connection.request("POST", f"/v2/models/{model}/infer", body, own_headers | headers)
        answer = self._connection.getresponse()
        return answer.status, answer.headers, answer.read()

    def _json(self, model, text, token, own, header=""):
        status, headers, body = self._post(model, text, token, own)
        if status != 200:
            return self._note(status, body)
        if headers["x-request-id"] != id_of(token) or headers["x-token"] != (
            token if header else None
        ):
            self._faults.append(("headers", model, token, dict(headers)))
        return json.loads(body)["outputs"][0]["data"][0]

    def _over_grpc(self, text, token, own):
        x = tritonclient.grpc.InferInput("x", [1], "BYTES")
        x.set_data_from_numpy(np.array([text], object))
        try:
            answer = self._grpc.infer(
                "caller",
                [x],
                headers={"x-request-id": id_of(token)},
                timeout=OWN_S * 1_000_000 if own else None,
            )
        except tritonclient.utils.InferenceServerException as error:
            return self._note(
                503 if "UNAVAILABLE" in str(error.status()) else 500, str(error).encode()
            )
        return answer.as_numpy("y")[0].decode()

    # ---- checks -----------------------------------------------------------------------------

    def _check(self, what, seen, token, id_, most):
        text, seen_id, left = seen
        right = text == token and seen_id == id_
        if most is None:
            right = right and left is None
        else:
            least = {OWN_S: 0, MODELS_S: OWN_S, 1: -1}[most]
            right = right and left is not None and least < left <= most
        if not right:
            self._faults.append((what, {"token": token, "id": id_, "most": most}, seen))
        self._counts["right"] += right

    def _note(self, status, body, *more):
        """Count an answer without outputs: of a model that is being loaded, or of a deadline."""
        self._counts[f"status {status}"] += 1
        if status not in (503, *more):
            self._faults.append(("status", status, body[:500]))


def test_no_answer_has_anything_of_another_client(server):
    counts = [Counter() for _ in range(CLIENTS)]
    faults, ended = [], threading.Event()
    asked = iter(range(REQUESTS))
    taking = threading.Lock()

    def run(number):
        client = Client(server, number, counts[number], faults)
        while not faults:
            with taking:
                if next(asked, None) is None:
                    return
            try:
                client.ask()
            except Exception as error:
                faults.append(("client", repr(error)))
                raise

    def load():
        loads = Counter()
        while not ended.wait(1):
            model = ["threads_inline", "streams_inline", "caller", "threads_process", "seen"][
                loads["calls"] % 5
            ]
            answer = requests.post(f"{server.url}/v2/repository/models/{model}/load", timeout=120)
            loads["calls"] += 1
            loads[f"load {answer.status_code}"] += 1
        counts.append(loads)

    clients = [threading.Thread(target=run, args=(number,)) for number in range(CLIENTS)]
    loader = threading.Thread(target=load)
    for one in (loader, *clients):
        one.start()
    for one in clients:
        one.join()
    ended.set()
    loader.join()
    total = sum(counts, Counter())
    print(f"\n{REQUESTS} requests: {dict(sorted(total.items()))}")
    assert not faults, faults[:5]
    assert total["right"] > REQUESTS / 2
