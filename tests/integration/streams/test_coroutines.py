"""Handlers with coroutines: many requests under way at a time, each with a separate batch, failures and end."""

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ksrv.testing import Server
from tests.support.models import HELD as HELD_CALL
from tests.support.models import VECTOR, write_model
from tests.support.streams import TEXT, StreamedResponse, pieces, text_request, write_later
from tests.support.wait_until import wait_until

MEETING = """
import asyncio

from ksrv import BaseHandler


class Meeting(BaseHandler):
    waiting = 0

    async def inference(self, x):
        wanted = int(self.context.batch.requests[0].parameters["people"])
        self.waiting += 1
        try:
            while self.waiting < wanted:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
        finally:
            self.waiting -= 1
        if self.context.batch["x"][0, 0] < 0:
            raise SystemExit("secret")
        return {"y": x + len(self.context.batch.requests[0].id)}
"""

BAD = """
import asyncio
import os
import time
from pathlib import Path

from ksrv import BaseHandler


class Bad(BaseHandler):
    async def inference(self, x):
        batch = self.context.batch
        parameters = batch.requests[0].parameters
        came = Path(self.context.parameters["came"])
        way = parameters["way"]
        if way == "blocks":
            time.sleep(600)
        await asyncio.sleep(0.2)
        if way == "ends":
            os._exit(3)
        try:
            if way == "waits" or (way == "waits once" and not came.exists()):
                came.touch()
                await asyncio.sleep(600)
            if way == "clings":
                while True:
                    try:
                        await asyncio.sleep(600)
                    except asyncio.CancelledError:
                        pass
        finally:
            if "closed" in parameters:
                Path(parameters["closed"]).touch()
        return {"y": x + len(self.context.batch.requests[0].id)}
"""
HELD = """
import asyncio
import time
from pathlib import Path

from ksrv import BaseHandler


class Held(BaseHandler):
    waiting = 0

    async def inference(self, x):
        parameters = self.context.batch.requests[0].parameters
        if "hold" in parameters:
            Path(parameters["came"]).touch()
            while not Path(parameters["hold"]).exists():
                time.sleep(0.01)
        if "leaves" in parameters:
            await asyncio.gather(self.leave(), asyncio.sleep(0))
        self.waiting += 1
        while self.waiting < int(parameters["people"]):
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        self.waiting -= 1
        return {"y": x}

    async def leave(self):
        await asyncio.sleep(0)
        raise SystemExit("secret")
"""
CALLS = """
from ksrv import BaseHandler


class Calls(BaseHandler):
    async def inference(self, x):
        parameters = self.context.batch.requests[0].parameters
        for _ in range(parameters["times"]):
            await self.context.models["called"].submit({"x": x})
        return {"y": x}
"""
MANY = "concurrent_batches: 40\n"
ROWS = """
import asyncio

from ksrv import BaseHandler


class Rows(BaseHandler):
    async def preprocess(self, batch):
        return [bytes(one).decode() for one in batch["text"]]

    async def inference(self, texts):
        return [self.spell(text) for text in texts]

    async def spell(self, text):
        for letter in text:
            await asyncio.sleep(0)
            if letter == "!":
                raise ValueError("secret")
            yield letter
"""

LARGE = """
import asyncio
from pathlib import Path

import numpy as np

from ksrv import BaseHandler


class Large(BaseHandler):
    async def inference(self, x):
        batch = self.context.batch
        parameters = batch.requests[0].parameters
        if "count" not in parameters:
            yield {"y": x}
            return
        made = 0
        try:
            for _ in range(int(parameters["count"])):
                made += 1
                chunk = {"y": np.full((1, int(parameters["floats"])), 1.5, "f4")}
                if parameters["way"] == "yields":
                    yield chunk
                elif parameters["way"] == "sends":
                    batch.send(chunk)
                    await asyncio.sleep(0)
                else:
                    await asyncio.to_thread(batch.send, chunk)
        finally:
            if "made" in parameters:
                Path(parameters["made"] + ".new").write_text(str(made))
                Path(parameters["made"] + ".new").rename(parameters["made"])
"""


@pytest.fixture(scope="module", params=["inline", "process"])
def server(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    many = f"executor: {request.param}\nwarmup: false\n{MANY}"
    joined = "batching: {max_batch_size: 4, max_delay_ms: 300}\n"
    write_model(root, "meeting", MEETING, VECTOR + many)
    write_model(root, "narrow", MEETING, VECTOR + many.replace("40", "2"))
    write_model(root, "alone", MEETING, VECTOR + many.replace("40", "1"))
    write_model(root, "rows", ROWS, TEXT + joined + f"executor: {request.param}\n")
    write_model(root, "held", HELD, VECTOR + many.replace("40", "4"))
    write_model(root, "calls", CALLS, VECTOR + many)
    called = write_model(root, "called", HELD_CALL, VECTOR + "executor: inline\nwarmup: false\n")
    write_model(
        root,
        "large",
        LARGE,
        VECTOR.replace(
            "outputs: [{name: y, datatype: FP32, shape: [-1, 4]}]",
            "outputs: [{name: y, datatype: FP32, shape: [-1, -1]}]",
        )
        + many,
    )
    write_later(root, "later", many.replace("warmup: false\n", ""))
    with Server(root) as made:
        made.called = called
        yield made


@pytest.fixture
def bad(tmp_path):
    """A server whose handler, in a process, ends it, blocks it, or clings to what is cancelled."""
    came = f"parameters: {{came: {tmp_path / 'came'}}}\n"
    root = tmp_path / "models"
    root.mkdir()
    write_model(root, "bad", BAD, VECTOR + "executor: process\nwarmup: false\n" + came)
    with Server(root) as made:
        yield made


def meet(server, model, value, people, id="", **parameters):
    return ask(server, model, value, id, people=people, **parameters)


def document(value=1, id="", **parameters):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [value] * 4}
    return {"id": id, "inputs": [tensor], "parameters": parameters}


def ask(server, model, value, id="", **parameters):
    asked = document(value, id, **parameters)
    with StreamedResponse(server, f"/v2/models/{model}/infer", asked, None) as found:
        return found.status, next(found.lines())


def together(call, values):
    """Return what calls of a function with each of some values return, made at the same time."""
    with ThreadPoolExecutor(len(values)) as pool:
        return dict(zip(values, pool.map(call, values), strict=True))


def test_requests_are_under_way_together_and_keep_apart(server):
    found = together(lambda n: meet(server, "meeting", n, 12, "i" * n), range(1, 13))
    assert {n: answer["outputs"][0]["data"][0] for n, (_, answer) in found.items()} == {
        n: 2 * n for n in range(1, 13)
    }


def test_what_a_coroutine_raises_fails_its_request_alone(server):
    found = together(lambda value: meet(server, "meeting", value, 3), (-1, 1, 2))
    assert {value: status for value, (status, _) in found.items()} == {-1: 500, 1: 200, 2: 200}
    assert "secret" not in found[-1][1]["error"]


def test_concurrency_is_bounded_and_deadlines_end_what_waits(server):
    """Three meet where two have room: they end at their deadlines, and free the instance."""
    found = together(lambda _: meet(server, "narrow", 1, 3, timeout=700_000)[0], range(3))
    assert found == dict.fromkeys(range(3), 504)
    assert meet(server, "narrow", 1, 1)[0] == 200


def test_a_slow_client_blocks_no_other_stream_of_the_same_instance(server, tmp_path):
    closed = tmp_path / "closed"
    asked = text_request("x" * 400_000, closed=str(closed))
    with StreamedResponse(server, "/v2/models/later/infer", asked, receive_buffer=4096) as slow:
        for _ in range(5):
            with StreamedResponse(server, "/v2/models/later/infer", text_request("abc")) as found:
                assert pieces(one for _, one in found.events()) == ["a", "b", "c"]
        assert slow.status == 200
        assert not closed.exists()
    wait_until(closed.exists)


def test_coroutine_sending_to_a_stalled_client_delays_no_other(server, tmp_path):
    made = tmp_path / "made"
    asked = document(way="sends", count=200, floats=1 << 18, made=str(made))
    with StreamedResponse(server, "/v2/models/large/infer", asked, receive_buffer=4096) as slow:
        assert ask(server, "large", 1)[0] == 200
        wait_until(made.exists)
        assert int(made.read_text()) < 200
        [*_, (name, last)] = slow.events()
    assert name == "error"
    assert "did not wait" in last["error"]


@pytest.mark.parametrize(("way", "count"), [("yields", 700), ("sends", 60), ("threads", 700)])
def test_a_client_that_reads_gets_every_chunk_however_it_is_sent(server, way, count):
    asked = document(way=way, count=count, floats=4)
    with StreamedResponse(server, "/v2/models/large/infer", asked) as found:
        chunks = [one for name, one in found.events() if not name]
    assert sum(chunk["outputs"] != [] for chunk in chunks) == count


def test_one_batch_at_a_time_where_that_is_asked_for(server):
    found = together(lambda value: meet(server, "alone", value, 1)[0], [1, 2, 3])
    assert found == {1: 200, 2: 200, 3: 200}
    assert meet(server, "alone", 1, 2, timeout=300_000)[0] == 504
    wait_until(lambda: meet(server, "alone", 1, 1)[0] == 200)


def send_infer(server, model, **parameters):
    """Send a request and return the connection, on which nothing is read yet."""
    host, _, port = server.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("POST", f"/v2/models/{model}/infer", json.dumps(document(**parameters)))
    return connection


def test_requests_that_are_cancelled_before_they_begin_keep_no_place(server, tmp_path):
    """Their clients leave while another coroutine has the event loop."""
    hold, came = tmp_path / "hold", tmp_path / "came"
    holds = send_infer(server, "held", people=1, hold=str(hold), came=str(came))
    wait_until(came.exists)
    leaving = [send_infer(server, "held", people=1) for _ in range(3)]
    time.sleep(0.3)  # they are taken, and wait for the loop
    for connection in leaving:
        connection.close()
    time.sleep(0.3)
    hold.touch()
    assert holds.getresponse().status == 200
    found = together(lambda value: meet(server, "held", value, 4)[0], range(4))
    assert found == dict.fromkeys(range(4), 200)


def test_a_task_of_the_handler_that_exits_fails_its_request_alone(server):
    status, answer = ask(server, "held", 1, people=1, leaves=1)
    assert status == 500
    assert "SystemExit" in answer["error"] and "secret" not in answer["error"]
    assert [meet(server, "held", value, 1)[0] for value in (1, 2)] == [200, 200]


def test_a_slow_called_model_holds_up_no_other_request(server):
    """Quick runs earn a model that the caller's thread runs it, which the others share here."""
    go, began = server.called / "go", server.called / "began"
    go.touch()
    for _ in range(3):
        assert ask(server, "calls", 1, times=400)[0] == 200
    go.unlink()
    began.unlink()
    calling = send_infer(server, "calls", times=1)
    wait_until(began.exists)
    assert ask(server, "calls", 1, times=0)[0] == 200
    go.touch()
    assert calling.getresponse().status == 200


def test_a_process_that_ends_ends_no_other_request(bad):
    """All that were in it are run again; the request that ends a second process fails alone."""

    def call(value):
        return ask(bad, "bad", value, way="ends" if value == 3 else "")

    found = together(call, range(8))
    assert {value: status for value, (status, _) in found.items() if status != 200} == {3: 500}
    assert "two handler processes" in found[3][1]["error"]
    assert [found[value][1]["outputs"][0]["data"][0] for value in (0, 7)] == [0, 7]


def test_a_process_whose_coroutine_blocks_the_others_is_replaced(bad):
    found = together(
        lambda way: ask(bad, "bad", 1, way=way, **({"timeout": 500_000} if way else {}))[0],
        ["", "blocks"],
    )
    assert found == {"": 200, "blocks": 504}


def test_a_coroutine_that_clings_to_its_batch_is_ended_with_its_process(bad):
    assert ask(bad, "bad", 1, way="clings", timeout=500_000)[0] == 504
    wait_until(lambda: ask(bad, "bad", 1, way="")[0] == 200)


def test_a_client_that_leaves_cancels_the_coroutine(bad, tmp_path):
    closed = tmp_path / "closed"
    connection = send_infer(bad, "bad", way="waits once", closed=str(closed))
    wait_until((tmp_path / "came").exists)
    connection.close()
    wait_until(closed.exists)
    assert ask(bad, "bad", 1, way="")[0] == 200
