"""Requests above 8 MiB to handler processes: read where they were received, and never changed there."""

import json

import numpy as np
import pytest

import ksrv.client
from ksrv._native.memory import buffer_pool
from ksrv._native.memory.memory_budget import PROCESS
from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.native.fast_path import ask, chunked, message, opened, posted, serving, status
from tests.support.wait_until import wait_until

COLUMNS = 4096  # of FP32: 16 KiB a row
EIGHT_MIB = 512  # rows
HANDLER = """
import os
import signal
from pathlib import Path
import numpy as np
from ksrv import BaseHandler, InferenceError
from ksrv._native.memory import buffer_pool

class Modes(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.kept = []

    def inference(self, x, n=None):
        what = int(x[0, 0])
        if what == 1:
            x += 1
        if what == 2:
            self.kept.append(x)
        if what == 3:
            return {"y": self.kept.pop(0)}
        if what == 4:
            return {"y": x + 1}
        if what == 5:
            x[:] = 7
            marker = Path("died")
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        if what == 6:
            raise InferenceError("not today", 422)
        if what == 7:
            return {"y": x[::-1]}
        if what == 8:
            return {"y": x[:, ::2].copy(), "n": n}
        if what == 9:
            self.context.batch.fail(0, "row 0 is bad", 422)
        if what == 10:
            self.view = x[:1]
        if what == 11:
            raise InferenceError(f"copied {buffer_pool.copied_bytes()} bytes", 422)
        return {"y": x}
"""
COROUTINE = HANDLER.replace("def inference", "async def inference")
SETTINGS = f"""
handler: handler.py
inputs: [{{name: x, datatype: FP32, shape: [-1, {COLUMNS}]}}]
executor: process
warmup: false
timeout_ms: 60000
"""
PAIR = SETTINGS.replace("]}]", "]}, {name: n, datatype: INT64, shape: [-1, 2]}]")
JOINED = "batching: {max_batch_size: 2000, max_delay_ms: 20}\n"


def body(what: int, rows: int = EIGHT_MIB + 1, seed: int = 1) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((rows, COLUMNS), np.float32)
    x[0, 0] = what
    return x


def answered(head: bytes, text: bytes, rows: int, columns: int = COLUMNS) -> np.ndarray:
    assert status(head) == 200, text[:400]
    return np.frombuffer(text[-4 * rows * columns :], "<f4").reshape(rows, columns)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("lent")
    write_model(root, "separate", HANDLER, SETTINGS.replace("handler: handler.py\n", ""))
    write_model(root, "twice", HANDLER, SETTINGS.replace("handler: handler.py", "instances: 2"))
    write_model(root, "pair", HANDLER, PAIR.replace("handler: handler.py\n", ""))
    joined = SETTINGS.replace("handler: handler.py\n", "") + JOINED
    write_model(root, "joined", HANDLER, joined)
    with Server(root, grpc="127.0.0.1:0") as running:
        running.address = ("127.0.0.1", int(running.url.rsplit(":", 1)[1]))
        yield running


def exchanged(served, model: str, x: np.ndarray) -> np.ndarray:
    return answered(*ask(served.address, message(model, {"x": x})), len(x))


@pytest.mark.parametrize("executor", ["process", "inline"])
@pytest.mark.parametrize("handler", [HANDLER, COROUTINE], ids=["function", "coroutine"])
@pytest.mark.parametrize("form", ["binary", "json"])
def test_a_body_is_not_copied_on_the_way_to_its_handler(tmp_path, form, handler, executor):
    settings = SETTINGS.replace("process", executor)
    x = np.zeros((EIGHT_MIB + 1, COLUMNS), np.float32)
    sent = message("m", {"x": x}) if form == "binary" else in_json(x)
    with (
        serving(tmp_path / "m", handler, settings) as engine,
        opened(engine) as (_, address),
    ):
        ask(address, sent)
        copied = copied_in_process(address)
        before = buffer_pool.copied_bytes()
        leased = buffer_pool.statistics()["leased"]
        assert np.array_equal(answered(*ask(address, sent), len(x)), x)
        assert buffer_pool.copied_bytes() == before
        answered_bytes = 0 if executor == "inline" else x.nbytes
        assert copied_in_process(address) == copied + answered_bytes
        wait_until(lambda: buffer_pool.statistics()["leased"] <= leased)


def in_json(x: np.ndarray) -> bytes:
    """A request with the zeros of an array as JSON, whose answer is binary."""
    shown = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    return posted(
        "m", json.dumps({"inputs": [shown], "parameters": {"binary_data_output": True}}).encode()
    )


def copied_in_process(address: tuple[str, int]) -> int:
    """The bytes that the process of the handler has copied so far, as it says."""
    head, text = ask(address, message("m", {"x": body(11, 1)}))
    assert status(head) == 422 and b"copied" in text, text
    return int(json.loads(text)["error"].split()[1])


@pytest.mark.parametrize("model", ["separate", "twice", "joined"])
@pytest.mark.parametrize("rows", [1, EIGHT_MIB - 1, EIGHT_MIB, EIGHT_MIB + 1])
def test_bodies_of_every_size_come_back(served, model, rows):
    x = body(0, rows)
    assert np.array_equal(exchanged(served, model, x), x)
    assert np.array_equal(exchanged(served, model, body(4, rows)), body(4, rows) + 1)


def test_every_framing_comes_back(served):
    x = body(0)
    data = message("separate", {"x": x})
    to_the_app = data.replace(b"Host: x\r\n", b"Host: x\r\nTE: trailers\r\n", 1)
    for sent in (chunked(data, 70, 1_000_000, 300_000), to_the_app):
        assert np.array_equal(answered(*ask(served.address, sent), len(x)), x)
    with ksrv.client.Client(f"grpc://{served.grpc}") as client:
        for what in (0, 4):
            y = client.infer("separate", {"x": body(what)})["y"]
            assert np.array_equal(y, body(what) + (what == 4))


def test_in_place_changes_of_a_lent_body_are_answered(served):
    assert np.array_equal(exchanged(served, "separate", body(1)), body(1) + 1)
    assert np.array_equal(exchanged(served, "separate", body(7)), body(7)[::-1])


def test_a_death_has_the_body_run_again_as_it_was_sent(tmp_path):
    with (
        serving(tmp_path / "m", HANDLER, SETTINGS) as engine,
        opened(engine) as (_, address),
    ):
        x = body(5)
        found = answered(*ask(address, message("m", {"x": x})), len(x))
        assert (found == 7).all()  # by a process that found 5 in the first place
        wait_until(lambda: PROCESS.held == 0)


def test_handler_may_keep_a_lent_body(served):
    kept = [body(2, seed=number) for number in (2, 3, 4)]
    for x in kept:
        assert np.array_equal(exchanged(served, "separate", x), x)
        assert np.array_equal(exchanged(served, "separate", body(0)), body(0))
    x = body(10)
    assert np.array_equal(exchanged(served, "separate", x), x)
    for x in kept:  # whose block was lent with an earlier batch
        assert np.array_equal(exchanged(served, "separate", body(3)), x)


def test_large_input_with_failures_and_other_inputs(served):
    head, text = ask(served.address, message("separate", {"x": body(6)}))
    assert status(head) == 422 and b"not today" in text
    head, text = ask(served.address, message("joined", {"x": body(9)}))
    assert status(head) == 422 and b"row 0 is bad" in text
    x, n = body(8), np.arange(2 * (EIGHT_MIB + 1)).reshape(-1, 2)
    head, text = ask(served.address, message("pair", {"x": x, "n": n}))
    assert status(head) == 200, text[:400]
    half = x[:, ::2]
    assert text.endswith(half.tobytes() + n.tobytes())
