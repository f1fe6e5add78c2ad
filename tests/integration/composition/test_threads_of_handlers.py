"""Threads that a handler starts: they work for the batch that started them, and for no other."""

import concurrent.futures
import json

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wait_until import wait_until

HEAD = """
import asyncio, json, os, threading, time
from concurrent.futures import ThreadPoolExecutor
from ksrv import BaseHandler
from ksrv.errors import KsrvError

def wait(path):
    while not os.path.exists(path):
        time.sleep(0.005)

class Threads(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.pool = ThreadPoolExecutor(2)

    def start(self, x):
        \"\"\"Do what the text of the request says: a path for what is done, the way, and two files to wait for.\"\"\"
        written, way, go, until = bytes(x[0]).decode().split(" ")
        if way == "hold":
            open(written, "w").close()
            return go
        if way == "thread":
            made = threading.Thread(target=self.act, args=(written, go))
            made.start()
            joined = made.join
        else:
            joined = self.pool.submit(self.act, written, go).result
        open(until + ".began", "w").close()
        return joined if until.endswith("wait") else None

    def act(self, written, go):
        wait(go)
        done = {}
        for name, act in (("call", self.call), ("header", self.header), ("time", self.time)):
            try:
                done[name] = act()
            except KsrvError as error:
                done[name] = f"{type(error).__name__}: {error.message}"
        with open(written + ".new", "w") as file:
            json.dump(done, file)
        os.rename(written + ".new", written)

    def call(self):
        seen = self.context.models["seen"].infer({"x": ["x"]})["y"]
        return json.loads(seen[0])

    def header(self):
        self.context.batch.set_header(0, "x-of-thread", "set")

    def time(self):
        self.context.add_time("thread", 1_000_000)
"""
STAGES = {
    "plain": """
    def inference(self, x):
        found = self.start(x)
        if callable(found):
            found()
        elif found:
            wait(found)
        return {"y": x}
""",
    "generator": """
    def inference(self, x):
        found = self.start(x)
        yield {"y": x}
        if callable(found):
            found()
        elif found:
            wait(found)
        yield {"y": x}
""",
    "coroutine": """
    async def inference(self, x):
        found = self.start(x)
        if callable(found):
            await asyncio.to_thread(found)
        elif found:
            await asyncio.to_thread(wait, found)
        return {"y": x}
""",
}
SEEN = """
import json
from ksrv import BaseHandler

class Seen(BaseHandler):
    def inference(self, x):
        [request] = self.context.batch.requests
        seen = {"id": request.headers.get("x-request-id"), "has_deadline": request.deadline_ns is not None}
        return {"y": [json.dumps(seen)]}
"""
TEXTS = """
inputs: [{name: x, datatype: BYTES, shape: [-1]}]
outputs: [{name: y, datatype: BYTES, shape: [-1]}]
warmup: false
"""
NOBODYS = {"id": None, "has_deadline": False}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_model(root, "seen", SEEN, TEXTS)
    for stage, code in STAGES.items():
        for executor in ("inline", "process"):
            settings = f"{TEXTS}executor: {executor}\n"
            write_model(root, f"{stage}_{executor}", HEAD + code, settings)
    with Server(root) as running:
        yield running


@pytest.fixture(
    params=[f"{stage}_{executor}" for stage in STAGES for executor in ("inline", "process")]
)
def ask(request, server):
    """A function that asks one model."""

    def ask_model(name, text, **parameters):
        tensor = {"name": "x", "datatype": "BYTES", "shape": [1], "data": [text]}
        body = {"inputs": [tensor], "parameters": parameters}
        url = f"{server.url}/v2/models/{request.param}/infer"
        is_stream = "generator" in request.param
        headers = {"x-request-id": name} | ({"accept": "text/event-stream"} if is_stream else {})
        return requests.post(url, json=body, headers=headers)

    ask_model.model = request.param
    return ask_model


@pytest.mark.parametrize("way", ["thread", "pool"])
def test_thread_that_outlives_its_batch_cannot_touch_the_next_batch(ask, tmp_path, way):
    written, held, go, until = (tmp_path / one for one in ("written", "held", "go", "until"))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = ask("client-A", f"{written} {way} {go} {until}")
        assert first.status_code == 200, first.text
        second = pool.submit(ask, "client-B", f"{held} hold {until} -", timeout=30_000_000)
        wait_until(held.exists)
        go.touch()
        wait_until(written.exists)
        until.touch()
        second = second.result()
    done = json.loads(written.read_text())
    assert second.status_code == 200, second.text
    assert "x-of-thread" not in second.headers
    assert "thread;dur" not in second.headers.get("server-timing", "")
    assert "works for none" in done["header"]
    serial_process = ask.model in ("plain_process", "generator_process")
    assert "outside of a batch" in done["call"] if serial_process else done["call"] == NOBODYS


@pytest.mark.parametrize("way", ["thread", "pool"])
def test_a_thread_works_for_the_batch_that_started_it(ask, tmp_path, way):
    written, go, until = (tmp_path / one for one in ("written", "go", "wait"))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, "client-A", f"{written} {way} {go} {until}", timeout=30_000_000)
        wait_until((tmp_path / "wait.began").exists)
        go.touch()
        answer = answer.result()
    assert answer.status_code == 200, answer.text
    done = json.loads(written.read_text())
    assert done == {"call": {"id": "client-A", "has_deadline": True}, "header": None, "time": None}
    if "generator" not in ask.model:  # whose headers are sent with the first chunk
        assert answer.headers["x-of-thread"] == "set"
