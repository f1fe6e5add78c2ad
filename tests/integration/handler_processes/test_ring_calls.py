"""Calls to other models from handler processes whose batches are in the ring: the batch stays there.

Even if a call fails, the client is answered, and the process serves the next request.
"""

import os
import signal
import socket
import threading
import time

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool
from ksrv.engine.processes.process import ProcessExecutor
from ksrv.engine.processes.runs import ProcessRuns
from ksrv.testing import Server
from tests.integration.handler_processes.test_ring import (
    JOINED,
    PROCESS,
    SETTINGS,
    asked,
    pid_of,
    values_of,
)
from tests.support.engine.engine_models import engine_of
from tests.support.models import write_model
from tests.support.native.fast_path import Hold, ask, message, opened, row, status
from tests.support.processes import is_alive
from tests.support.wait_until import wait_until

DOUBLE = """
from ksrv import BaseHandler, InferenceError

class Double(BaseHandler):
    def inference(self, x):
        if (x < 0).any(): raise InferenceError("negative rows are refused", 422)
        return {"y": x * 2}
"""
HELD = """
import time
from pathlib import Path


def inference(x):
    here, turn = Path(__file__).parent, int(x[0, 1])
    (here / f"began-{turn}").touch()
    while not (here / f"go-{turn}").exists():
        time.sleep(0.002)
    return {"y": x}
"""
CALLER = """
import asyncio, os, threading, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from ksrv import BaseHandler
import msgspec
from ksrv.engine.processes.link import Packed
from ksrv.engine.processes.messages import MessageType
from ksrv.errors import KsrvError

class Caller(BaseHandler):
    def inference(self, x):
        way = int(x[0, 0])
        if way == -20: return {"y": np.full_like(x, os.getpid(), "f4")}
        return {"y": getattr(self, f"way_{way}")(x, self.context.models)}

    def way_1(self, x, models):
        return models["double"].infer({"x": models["double"].infer({"x": x})["y"]})["y"]

    def way_3(self, x, models):
        try: models["double"].infer({"x": -x})
        except KsrvError as error: return x + error.http_status

    def way_4(self, x, models):
        for _ in range(5): models["double"].submit({"x": x})
        return x

    def way_5(self, x, models):
        called = models["double"].submit({"x": x})
        while not called.done(): pass
        return called.result()["y"]

    def way_6(self, x, models):
        async def both():
            return await asyncio.gather(*[models["double"].submit({"x": x}) for _ in range(3)])
        return sum(one["y"] for one in asyncio.run(both()))

    def way_7(self, x, models):
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda _: models["double"].infer({"x": x})["y"], range(8))
            return sum(found)

    def way_10(self, x, models):
        return models["held"].infer({"x": x})["y"]

    def way_40(self, x, models):
        models["held"].submit({"x": x})
        raise SystemExit(3)

    def way_41(self, x, models):
        return models["leaver"].infer({"x": x})["y"]

    def way_11(self, x, models):
        # The thread waits on beyond the batch, for a call that ends with the batch.
        call = models["held"].submit({"x": x})
        threading.Thread(target=lambda: call.done() or call.result(), daemon=True).start()
        models["double"].infer({"x": x})
        return x

    def way_12(self, x, models):
        call = models["held"].submit({"x": x})
        call.done()  # received on a thread from here on
        return x

    def way_13(self, x, models):
        for _ in range(20): models["double"].submit({"x": x})
        time.sleep(0.1)  # at work: the results come meanwhile, and are not received
        return x

    def way_14(self, x, models):
        while True: models["double"].submit({"x": x})

    def way_15(self, x, models):
        calls = []
        while len(calls) < 3000: calls.append(models["deep"].submit({"x": x}))

    def way_16(self, x, models):
        began = threading.Barrier(32)
        def call():
            began.wait()
            while True: models["deep"].submit({"x": x})
        with ThreadPoolExecutor(32) as pool:
            [one.result() for one in [pool.submit(call) for _ in range(32)]]

    def way_18(self, x, models):
        y = models["double"].infer({"x": x})["y"]
        self.context.batch.set_header(0, "x-mine", str(int(x[0, 1])))
        return y

    def _say(self, kind, value, number):
        calls = self.context.models["double"]._submit
        calls._link.send(kind, Packed(msgspec.msgpack.encode(value)), batch_number=number)

    def way_30(self, x, models):
        self._say(MessageType.CALL, "nonsense", 1 << 63 | 1)
        return x

    def way_31(self, x, models):
        self._say(MessageType.CANCEL_CALL, {"call_ids": [1, 2, "x"]}, 77)
        return models["held"].infer({"x": x})["y"]

    def way_32(self, x, models):
        self._say(MessageType.ROOM, {"nbytes": 1}, 77)
        return models["held"].infer({"x": x})["y"]

    def way_33(self, x, models):
        calls = models["double"]._submit
        models["held"].submit({"x": x})
        calls._number -= 1
        return models["held"].infer({"x": x})["y"]

    def way_34(self, x, models):
        models["double"].submit({"x": x})
        (call,) = models["double"]._submit._open.values()
        while True: self._say(MessageType.CANCEL_CALL, {"call_ids": [1]}, call.batch_number)
"""


LEAVER = "def inference(x): raise SystemExit(3)\n"


def write(root):
    write_model(root, "double", DOUBLE, SETTINGS + JOINED)
    write_model(root, "leaver", LEAVER, SETTINGS + "warmup: false\n")
    write_model(root, "held", HELD, SETTINGS + "warmup: false\n")
    write_model(root, "deep", HELD, SETTINGS.replace("500", "5000") + "warmup: false\n")
    for name, more in (("separate", ""), ("joined", JOINED)):
        write_model(root, name, CALLER, PROCESS + more + "warmup: false\n")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("ring-calls")
    write(root)
    with Server(root) as running:
        running.folder = root
        yield running


def serves_on(server, model):
    assert np.array_equal(values_of(asked(server, model, row(1, 2))), row(4, 8))


def test_the_batch_of_a_handler_that_calls_needs_no_messages(tmp_path, monkeypatch):
    def run(self, batch, deadline_ns):
        raise AssertionError("the executor ran a batch")

    write(tmp_path)
    with engine_of(tmp_path) as engine:
        monkeypatch.setattr(ProcessExecutor, "run", run)
        with opened(engine) as (_, address):
            for number in range(20):
                head, body = ask(address, message("separate", {"x": row(1, number)}))
                assert status(head) == 200
                assert np.array_equal(np.frombuffer(body[-16:], "<f4"), row(4, 4 * number)[0])
        counts = engine.find("separate", "").statistics(), engine.find("double", "").statistics()
    assert [one.success.count for one in counts] == [20, 40]


@pytest.mark.parametrize(("way", "rows"), [(1, 8), (3, 500)], ids=["answered", "refused"])
def test_batch_with_calls_leaks_no_body(tmp_path, way, rows):
    write(tmp_path)

    def leased_bytes():
        return buffer_pool.statistics()["leased_bytes"]

    with engine_of(tmp_path) as engine, opened(engine) as (_, address):
        ask(address, message("separate", {"x": row(1, 1)}))
        leased = leased_bytes()
        head, _ = ask(address, message("separate", {"x": np.tile(row(way, 1), (rows, 1))}))
        assert status(head) == 200
        wait_until(lambda: leased_bytes() <= leased)


@pytest.mark.parametrize("model", ["separate", "joined"])
@pytest.mark.parametrize(("way", "factor"), [(5, 2), (6, 6), (7, 16)])
def test_calls_are_made_from_threads_and_event_loops(served, model, way, factor):
    for number in range(5):
        answer = values_of(asked(served, model, row(way, number)))
        assert np.array_equal(answer, row(way, number) * factor)
        serves_on(served, model)


def test_answer_over_the_channel_belongs_to_the_calling_batch(served):
    pid = pid_of(served, "separate")
    for number in range(20):
        answer = asked(served, "separate", row(18, number))
        assert np.array_equal(values_of(answer), row(36, 2 * number))
        assert answer.headers["x-mine"] == str(number)
    assert pid_of(served, "separate") == pid


@pytest.mark.parametrize("model", ["separate", "joined"])
def test_abandoned_calls_are_given_up_with_their_batch(served, model):
    for number in range(10):
        assert np.array_equal(values_of(asked(served, model, row(4, number))), row(4, number))
    for way in (11, 12):
        with Hold(served.folder / "held") as hold:
            assert values_of(asked(served, model, row(way, hold.x[0, 1])))[0, 0] == way
            serves_on(served, model)


@pytest.mark.parametrize("on_channel", [False, True])
def test_calls_that_are_given_up_when_they_have_ended_end_no_process(served, on_channel):
    """The batch may be answered before the worker has read that its calls are given up."""
    first = pid_of(served, "separate")
    for _ in range(10):
        assert np.array_equal(values_of(asked(served, "separate", row(13))), row(13))
        # Texts beyond a place of the ring go over the channel.
        next_one = asked(served, "separate", row(-20), id="x" * (100_000 if on_channel else 1))
        assert values_of(next_one)[0, 1] == first


def test_a_batch_that_calls_without_end_ends(served):
    answer = asked(served, "separate", row(14), parameters={"timeout": 1_000_000})
    # Its results may come as fast as it calls: then the deadline ends it.
    assert answer.status_code in (503, 504), answer.text
    wait_until(lambda: asked(served, "separate", row(1)).status_code == 200)
    serves_on(served, "separate")


@pytest.mark.parametrize("way", [15, 16], ids=["thread", "threads"])
def test_too_many_calls_under_way_raise_in_the_handler(served, way):
    pid = pid_of(served, "separate")
    with Hold(served.folder / "deep") as hold:
        answer = asked(served, "separate", row(way, hold.x[0, 1]))
    assert answer.status_code == 503, answer.text
    assert "at most 1024: wait for some of their results" in answer.json()["error"]
    serves_on(served, "separate")
    assert pid_of(served, "separate") == pid


def test_a_process_that_sends_without_end_is_ended_by_its_deadline(tmp_path, monkeypatch):
    def take(self, frame):
        time.sleep(0.01)  # longer than the process takes to send the next message

    write(tmp_path)
    with (
        engine_of(tmp_path) as engine,
        opened(engine) as (_, address),
        monkeypatch.context() as slow,
    ):
        slow.setattr(ProcessRuns, "_take", take)
        sent = message("separate", {"x": row(34)}, parameters={"timeout": 1_000_000})
        assert status(ask(address, sent)[0]) == 504
        after = message("separate", {"x": row(-20)})  # which makes no call
        wait_until(lambda: status(ask(address, after)[0]) == 200)


def test_a_process_that_dies_during_a_call_is_replaced_and_its_call_given_up(served):
    pid = pid_of(served, "separate")
    answers = []
    with Hold(served.folder / "held") as hold:
        x = row(10, hold.x[0, 1])
        client = threading.Thread(target=lambda: answers.append(asked(served, "separate", x)))
        client.start()
        wait_until(lambda: hold.began)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid))
    client.join()
    assert answers[0].status_code == 200  # the batch was run again
    assert pid_of(served, "separate") != pid
    serves_on(served, "separate")


def test_a_call_is_given_up_once_its_client_has_left(served):
    address = ("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
    with Hold(served.folder / "held") as hold:
        with socket.create_connection(address) as client:
            client.sendall(message("separate", {"x": row(10, hold.x[0, 1])}))
            wait_until(lambda: hold.began)
        serves_on(served, "separate")  # while the called model still has the first call


@pytest.mark.parametrize("way", [30, 31, 32, 33])
def test_messages_about_calls_that_do_not_add_up_end_the_process(served, way):
    with Hold(served.folder / "held") as hold:
        pid = pid_of(served, "separate")
        answer = asked(
            served, "separate", row(way, hold.x[0, 1]), parameters={"timeout": 20_000_000}
        )
        assert way == 30 or answer.status_code == 500, answer.text
        serves_on(
            served, "separate"
        )  # with way 30 this batch may be the batch that finds the message
        wait_until(lambda: not is_alive(pid))


@pytest.mark.parametrize("model", ["separate", "joined"])
@pytest.mark.parametrize("way", [40, 41], ids=["caller", "called"])
def test_a_handler_that_exits_beside_its_calls_fails_its_batch_alone(served, model, way):
    pid = pid_of(served, model)
    assert asked(served, model, row(way, 1)).status_code == 500
    assert pid_of(served, model) == pid
    serves_on(served, model)
