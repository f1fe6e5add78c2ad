"""Handlers that raise what is no `Exception`, as extensions written in Rust do on input they did not expect.

On every way in, the request that did it gets its 500, and nobody else notices: no connection gets an
answer that belongs to another message, and the model serves on.
"""

import json
import re
import select
import struct
import time

import numpy as np
import pytest
import requests
from tritonclient import grpc as triton

from ksrv.testing import Server
from tests.integration.grpc.test_stream import stream
from tests.support.models import VECTOR, write_model
from tests.support.native.fast_path import message, row
from tests.support.native.gunicorn_server import infer_head
from tests.support.sequences import SHAPES, SUMS, Refused, over_grpc, over_rest
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import connect, infer_request
from tests.support.wire.http_reader import open_connection, read_message

pytestmark = pytest.mark.long

HANDLER = """
import asyncio, os, threading
from ksrv import BaseHandler

class Panic(BaseException):
    pass

KINDS = {1: Panic, 2: asyncio.CancelledError}
STAGES = {"preprocess": 0, "inference": 1, "postprocess": 2, "outputs": 3, "generator": 4}

def panics(x, stage):
    if x[0, 0] and x[0, 1] == STAGES[stage]:
        raise KINDS[int(x[0, 0])]("odd input")

class Odd(dict):
    def __iter__(self):
        raise KINDS[int(self["y"][0, 0])]("odd output")

def tokens(x):
    yield x
    panics(x, "generator")

class Handler(BaseHandler):
    def handle(self, batch, context):
        x = self.preprocess(batch)
        if x[0, 1] == STAGES["generator"]:
            for token in tokens(x):
                batch.send({"y": token})
        return self.postprocess(self.inference(x))

    def preprocess(self, batch):
        panics(batch["x"], "preprocess")
        return batch["x"]

    def inference(self, x):
        panics(x, "inference")
        y = x.copy()
        y[:, 2] = threading.current_thread().name.startswith(("ksrv-io", "ksrv-grpc-poll"))
        y[:, 3] = os.getpid()
        return y

    def postprocess(self, y):
        panics(y, "postprocess")
        if y[0, 0] and y[0, 1] == STAGES["outputs"]:
            return Odd(y=y)
        return {"y": y}
"""
SETTINGS = VECTOR + "timeout_ms: 400\nwarmup: false\n"
BATCHED = "batching: {max_batch_size: 8, max_delay_ms: 0}\n"
MODELS = {
    "quick": SETTINGS
    + "executor: inline\n",  # runs on the threads of the front ends once it is trusted
    "joined": SETTINGS + BATCHED,
    "cold": SETTINGS + "instances: 2\n",  # runs on its instances' threads
    "separate": SETTINGS.replace("400", "20000") + "executor: process\n",
    # Waits for a full batch that does not come, so that each request ends at its deadline.
    "late": SETTINGS + "batching: {max_batch_size: 8, max_delay_ms: 50000}\n",
}
STAGES = ["preprocess", "inference", "postprocess", "outputs", "generator"]
KINDS = {"Panic": 1, "CancelledError": 2}


def plain(model, *values):
    """A request that the HTTP server queues by itself."""
    return message(model, {"x": row(*values)})


def general(model, *values, fields=()):
    """A request that the HTTP server has Python read."""
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": values}
    more = {"parameters": {"binary_data_output": True}}
    text = json.dumps({"inputs": [entry], **more}).encode()
    return infer_head(None, len(text), *fields, model=model) + text


def handed(model, *values):
    """A request that the HTTP server hands to gunicorn."""
    return general(model, *values, fields=("TE: trailers",))


def asked(client, sent):
    """The status of an answer and, of one that is good, its four numbers, else the error."""
    client.sendall(sent)
    head, body, _ = read_message(client)
    status = int(head.split()[1])
    return (status, struct.unpack("<4f", body[-16:]) if status == 200 else json.loads(body))


class Served:
    """A server with a client."""

    def __init__(self, server):
        self.server = server
        self.client = open_connection(server.http)

    def metric(self, name):
        page = requests.get(f"{self.server.url}/metrics", timeout=30).text
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.M))

    def make_trusted(self, model):
        """Send requests until the front end's own threads run the handler."""
        give_up = time.monotonic() + 60
        while True:
            status, found = asked(self.client, plain(model, 0, 0, 0, 0))
            assert status in (200, 504), found  # a busy machine may be late
            if status == 200 and found[2] == 1:
                return
            assert time.monotonic() < give_up, "no slot was claimed"

    def outlive_deadlines(self):
        """Return when deadlines as long as all earlier deadlines have passed, and were enforced."""
        for _ in range(2):
            assert asked(self.client, plain("late", 0, 0, 0, 0))[0] == 504

    def assert_nothing_is_held(self):
        for name in ("ksrv_pending_requests", "ksrv_bytes_in_flight"):
            wait_until(lambda name=name: self.metric(name) == 0)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("panics")
    for name, settings in MODELS.items():
        write_model(root, name, HANDLER, settings)
    with Server(root) as server:
        running = Served(server)
        yield running
        running.client.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [plain, general, handed])
@pytest.mark.parametrize("model", ["quick", "joined", "cold"])
def test_only_the_request_itself_fails(served, model, form, kind):
    if model != "cold":
        served.make_trusted(model)
    addresses = [served.server.http] * 3
    client, idle, leaver = [open_connection(address) for address in addresses]
    for each in (client, idle, leaver):
        assert asked(each, form(model, 0, 0, 0, 0))[0] == 200
    for _ in range(3):  # more than there are instances
        for each in (client, leaver):
            status, told = asked(each, form(model, KINDS[kind], 1, 0, 0))
            assert (status, kind in told["error"]) == (500, True), told
    leaver.close()
    newcomers = [open_connection(served.server.http) for _ in range(2)]
    served.outlive_deadlines()
    assert select.select([client, idle, *newcomers], [], [], 0)[0] == []
    for number, each in enumerate((client, idle, *newcomers)):
        status, found = asked(each, form(model, 0, number, 0, 0))
        assert (status, found[1]) == (200, number)
        each.close()
    served.assert_nothing_is_held()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("model", ["quick", "separate"])
def test_panic_in_any_stage_fails_only_its_request(served, model, stage):
    if model == "quick":
        served.make_trusted(model)
    process = asked(served.client, plain(model, 0, 0, 0, 0))[1][3]
    for kind, number in KINDS.items():
        for form in (plain, general):
            status, told = asked(served.client, form(model, number, STAGES.index(stage), 0, 0))
            assert (status, kind in told["error"]) == (500, True), told
    assert asked(served.client, plain(model, 0, 0, 0, 0))[1][3] == process  # it was not replaced
    served.assert_nothing_is_held()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["quick", "cold", "separate"])
def test_grpc(served, model, kind):
    if model == "quick":
        served.make_trusted(model)
    values = triton.InferInput("x", [1, 4], "FP32")
    with triton.InferenceServerClient(served.server.grpc) as client:
        for number in range(5):
            values.set_data_from_numpy(np.array([[KINDS[kind], 1, 0, 0]], "f4"))
            with pytest.raises(triton.InferenceServerException, match=kind) as failure:
                client.infer(model, [values], client_timeout=50)
            assert failure.value.status() == "StatusCode.INTERNAL"
            values.set_data_from_numpy(np.array([[0, number, 0, 0]], "f4"))
            answer = client.infer(model, [values], client_timeout=50).as_numpy("y")
            assert answer[0, 1] == number
    served.assert_nothing_is_held()


@pytest.mark.parametrize("model", ["quick", "cold", "separate"])
def test_generator_that_panics_after_its_first_chunk_ends_its_stream(served, model):
    def request(id, *values):
        raw = [struct.pack("<4f", *values)]
        return infer_request(model, ("x", "FP32", [1, 4]), raw=raw, id=id).SerializeToString()

    for kind, number in KINDS.items():
        messages = [
            request("bad", number, STAGES.index("generator"), 0, 0),
            request("good", 0, 0, 0, 0),
        ]
        with connect(served.server.grpc) as channel:
            chunk, failed, good = stream(channel, iter(messages))
        assert chunk.infer_response.id == "bad" and not chunk.error_message
        assert kind in failed.error_message
        assert good.infer_response.id == "good" and not good.error_message


SERVICE = """
import asyncio, os
from ts.context import Context

class Handler:
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        class Panic(BaseException):  # the file may hold one class only
            pass

        texts = [bytes(row.get("body") or row.get("data")).decode() for row in data]
        for text in texts:
            if text in ("1", "2"):
                raise {"1": Panic, "2": asyncio.CancelledError}[text]("odd input")
        return [str(os.getpid()) for text in texts]
"""


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_torchserve_handlers(tmp_path, executor):
    write_model(tmp_path, "m", SERVICE, f"executor: {executor}\ntimeout_ms: 20000\n")
    with Server(tmp_path, torchserve_api=True) as server:

        def predict(text):
            return requests.post(f"{server.url}/predictions/m", data=text, timeout=50)

        def infer(text):
            entry = {"name": "data", "datatype": "BYTES", "shape": [1], "data": [text]}
            url = f"{server.url}/v2/models/m/infer"
            return requests.post(url, json={"inputs": [entry]}, timeout=50)

        process = predict("good").text
        for kind, text in (("Panic", "1"), ("CancelledError", "2")):
            answer = predict(text)
            assert (answer.status_code, answer.json()["message"]) == (503, "Prediction failed")
            answer = infer(text)
            assert (answer.status_code, kind in answer.json()["error"]) == (500, True)
            assert infer("good").json()["outputs"][0]["data"] == [process]  # it was not replaced


ENDS = """
            if value <= -5:
                raise {-5: SystemExit, -6: KeyboardInterrupt, -7: GeneratorExit}[int(value)]("odd input")
"""


@pytest.mark.parametrize("executor", ["inline", "process"])
@pytest.mark.parametrize("ask", [over_rest, over_grpc])
def test_a_sequence_keeps_its_state(tmp_path, executor, ask):
    handler = SUMS.replace("            if value == -4:", ENDS + "            if value == -4:")
    settings = f"{SHAPES}executor: {executor}\nwarmup: false\nsequences: {{}}\n"
    write_model(tmp_path, "sums", handler, settings)
    with Server(tmp_path) as server:
        for value, kind in ((-5, "SystemExit"), (-6, "KeyboardInterrupt"), (-7, "GeneratorExit")):
            ask(server, "sums", 2, sequence_id=kind, sequence_start=True)
            with pytest.raises(Refused, match=kind):
                ask(server, "sums", value, sequence_id=kind)
            assert ask(server, "sums", 3, sequence_id=kind, sequence_end=True)[0] == 5


AT_IMPORT = "class Panic(BaseException):\n    pass\nraise Panic('at the import')\n"
AT = """
from ksrv import BaseHandler

class Panic(BaseException):
    pass

class Handler(BaseHandler):
    def WHERE(self, *_):
        raise Panic("odd input")
"""


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_a_panic_while_loading_is_that_model_s_error(tmp_path, executor):
    more = f"{VECTOR}executor: {executor}\n"
    write_model(tmp_path, "a-import", AT_IMPORT, more)
    write_model(tmp_path, "b-initialize", AT.replace("WHERE", "initialize"), more)
    folder = write_model(
        tmp_path, "c-sample", AT.replace("WHERE", "inference"), more + "warmup: [x.npy]\n"
    )
    np.save(folder / "x.npy", np.zeros((1, 4), "f4"))
    write_model(tmp_path, "d-zeros", AT.replace("WHERE", "inference"), more)
    write_model(tmp_path, "e-good", HANDLER, SETTINGS)
    with Server(tmp_path, wait_ready=False) as server:
        wait_until(lambda: "models loaded" in server.log)
        index = requests.post(f"{server.url}/v2/repository/index", timeout=30).json()
        found = {line["name"]: (line["state"], "Panic" in line["reason"]) for line in index}
        failed = dict.fromkeys(("a-import", "b-initialize", "c-sample"), ("UNAVAILABLE", True))
        # An error with generated zeros is only logged.
        assert found == {**failed, "d-zeros": ("READY", True), "e-good": ("READY", False)}
        with open_connection(server.http) as client:
            assert asked(client, plain("d-zeros", 0, 0, 0, 0))[0] == 500
            assert asked(client, plain("e-good", 0, 0, 0, 0))[0] == 200
