"""Handlers with coroutines: many requests under way at a time, each with its own batch, failures and end."""

import threading

import pytest

from ksrv.testing import Server
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

HANDLE = """
import asyncio


async def handle(batch, context):
    await asyncio.sleep(0)
    batch.set_parameter(0, "seen", context.batch is batch)
    return {"y": batch["x"]}
"""

# A handler process runs one batch at a time.
MANY = "executor: inline\nconcurrent_batches: 40\n"
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


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_model(root, "meeting", MEETING, VECTOR + "warmup: false\n" + MANY)
    write_model(root, "narrow", MEETING, VECTOR + "warmup: false\n" + MANY.replace("40", "2"))
    write_model(root, "handle", HANDLE, VECTOR)
    write_model(root, "rows", ROWS, TEXT + "batching: {max_batch_size: 4, max_delay_ms: 300}\n")
    write_later(root, "later", MANY)
    with Server(root) as made:
        yield made


def meet(server, model, value, people, id="", **parameters):
    document = {
        "id": id,
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [value] * 4}],
        "parameters": {"people": people} | parameters,
    }
    with StreamedResponse(server, f"/v2/models/{model}/infer", document, None) as found:
        return found.status, next(found.lines())


def test_requests_are_under_way_together_and_keep_apart(server):
    found = {}

    def go(n):
        found[n] = meet(server, "meeting", n, 12, "i" * n)

    threads = [threading.Thread(target=go, args=(n,)) for n in range(1, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {n: answer["outputs"][0]["data"][0] for n, (_, answer) in found.items()} == {
        n: 2 * n for n in range(1, 13)
    }


def test_what_a_coroutine_raises_fails_its_request_alone(server):
    found = {}

    def go(value):
        found[value] = meet(server, "meeting", value, 3)

    threads = [threading.Thread(target=go, args=(value,)) for value in (-1, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {value: status for value, (status, _) in found.items()} == {-1: 500, 1: 200, 2: 200}
    assert "secret" not in found[-1][1]["error"]


def test_concurrency_is_bounded_and_deadlines_end_what_waits(server):
    """Three meet where two have room: they end at their deadlines, and free the instance."""
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append(meet(server, "narrow", 1, 3, timeout=700_000)[0])
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [504] * 3
    assert meet(server, "narrow", 1, 1)[0] == 200


def test_a_function_that_is_a_coroutine(server):
    status, answer = meet(server, "handle", 5, 1)
    assert (status, answer["outputs"][0]["data"]) == (200, [5] * 4)
    assert answer["parameters"] == {"seen": True}


def test_rows_have_asynchronous_generators_of_their_own(server):
    found = {}

    def go(text):
        with StreamedResponse(server, "/v2/models/rows/infer", text_request(text)) as response:
            found[text] = list(response.events())

    threads = [threading.Thread(target=go, args=(text,)) for text in ("a", "bcd", "e!f")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert pieces(document for _, document in found["a"]) == ["a"]
    assert pieces(document for _, document in found["bcd"]) == ["b", "c", "d"]
    [(_, first), (name, _)] = found["e!f"]
    assert (pieces([first]), name) == (["e"], "error")


def test_a_slow_client_blocks_no_other_stream_of_the_same_instance(server, tmp_path):
    closed = tmp_path / "closed"
    asked = text_request("x" * 400_000, closed=str(closed))
    with StreamedResponse(server, "/v2/models/later/infer", asked, receive_buffer=4096) as slow:
        for _ in range(5):
            with StreamedResponse(server, "/v2/models/later/infer", text_request("abc")) as found:
                assert pieces(document for _, document in found.events()) == ["a", "b", "c"]
        assert slow.status == 200
        assert not closed.exists()
    wait_until(closed.exists)


def test_many_streams_at_a_time_of_one_instance(server):
    counted = []

    def go():
        asked = text_request("z" * 20, pause=0.02)
        with StreamedResponse(server, "/v2/models/later/infer", asked) as found:
            counted.append(len(list(found.events())))

    threads = [threading.Thread(target=go) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert counted == [20] * 30
