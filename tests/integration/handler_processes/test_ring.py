"""Handler processes that are served without Python: the same answers, deaths and deadlines as with it.

The requests take the fast path, whose batches reach the process through its ring.
"""

import json
import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests

from ksrv.engine.processes.process import ProcessExecutor
from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.native.fast_path import Hold, ask, message, opened, row, serving, status
from tests.support.processes import is_alive
from tests.support.wait_until import wait_until

HANDLER = """
import ctypes, os, signal, sys, time
from pathlib import Path
import numpy as np
from ksrv import BaseHandler, InferenceError, timed

class Ways(BaseHandler):
    @timed(name="second half")
    def second_half(self): pass

    def initialize(self, context):
        super().initialize(context)
        self.kept = []

    def inference(self, x):
        batch = self.context.batch
        way = int(x[0, 0])
        if (x[:, 0] == -1).any(): os._exit(3)
        if way == -2: ctypes.string_at(0)
        if way == -3:
            here, turn = Path(__file__).parent, int(x[0, 1])
            (here / f"began-{turn}").touch()
            while not (here / f"go-{turn}").exists():
                time.sleep(0.002)
        if way == -4: raise MemoryError
        if way == -5: time.sleep(600)
        if way == -6: raise KeyboardInterrupt
        if way == -7: sys.exit(5)
        if way == -8: batch.set_header(0, "x-extra", "yes")
        if way == -9: batch.set_parameter(0, "extra", 7)
        if way == -10: raise InferenceError("not today", 422)
        if way == -11:
            self.kept.append(x)
            x[0, 1] = sum(float(one[0, 2]) for one in self.kept)
        if way == -12:
            shown = [
                [one.id, sorted(one.headers.items()), dict(one.parameters), one.slice.start, one.slice.stop]
                for one in batch.requests
            ]
            x[0, 1:4] = [len(repr(shown)), len(shown), "secret" in repr(shown)]
        if way == -14: self.second_half()
        if way == -15: self.context.timings["gro\\u00df\\r\\nx-evil: 1"] = 5
        for place in range(len(x)):
            if x[place, 0] == -13: batch.fail(place, f"row {place} is bad")
        y = x.copy()
        y[x[:, 0] == -20, 1] = os.getpid()
        return {"y": y}
"""
SETTINGS = """
inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 4]}]
timeout_ms: 60000
queue_size: 500
"""
PROCESS = SETTINGS + "executor: process\n"
JOINED = "batching: {max_batch_size: 8, max_delay_ms: 0}\n"


WIDE = """
from pathlib import Path
import numpy as np
from ksrv import BaseHandler

class Wide(BaseHandler):
    def inference(self, x):
        columns = int(x[0, 0])
        if x[0, 1] == 77: self.context.timings["lie"] = 2**62
        y = np.arange(len(x) * columns, dtype="f4").reshape(len(x), columns)
        if x[0, 1] == 78: y[0, 0] = Path("/proc/self/maps").read_text().count("memfd:ksrv-block")
        if x[0, 1] == 79: y = np.zeros((1,) * 47 + (columns,), "f4")
        if x[0, 1] == 80: y = np.zeros((columns, 3) + (1,) * 46, "f4").T
        return {"y": y, "n": x[:, :1].astype(np.int64), "b": x[:, 1:] > 0}
"""
WIDE_SETTINGS = """
inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]
timeout_ms: 60000
executor: process
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("rings")
    write_model(root, "wide", WIDE, WIDE_SETTINGS)
    write_model(root, "wide-joined", WIDE, WIDE_SETTINGS + JOINED)
    write_model(root, "separate", HANDLER, PROCESS)
    write_model(root, "joined", HANDLER, PROCESS + JOINED)
    write_model(root, "here", HANDLER, SETTINGS)
    write_model(root, "two", HANDLER, PROCESS + "instances: 2\n")
    with Server(root) as running:
        running.folder = root
        yield running


def asked(server: Server, model: str, values: np.ndarray, session=requests, **more):
    header = {
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": list(values.shape),
                "parameters": {"binary_data_size": values.nbytes},
            }
        ],
        "parameters": {"binary_data_output": True, **more.pop("parameters", {})},
        **more,
    }
    text = json.dumps(header).encode()
    return session.post(
        f"{server.url}/v2/models/{model}/infer",
        data=text + values.astype("<f4").tobytes(),
        headers={"Inference-Header-Content-Length": str(len(text))},
        timeout=120,
    )


def values_of(answer: requests.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    length = int(answer.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(answer.content[:length])["outputs"]
    return np.frombuffer(answer.content[length:], "<f4").reshape(output["shape"])


def pid_of(server: Server, model: str) -> int:
    return int(values_of(asked(server, model, row(-20)))[0, 1])


def test_plain_requests_need_no_python(tmp_path, monkeypatch):
    def run(self, batch, deadline_ns):
        raise AssertionError("the executor ran a batch")

    with serving(
        tmp_path / "m", HANDLER, "handler: handler.py" + PROCESS + "warmup: false\n" + JOINED
    ) as engine:
        monkeypatch.setattr(ProcessExecutor, "run", run)
        with opened(engine) as (_, address):
            for number in range(20):
                head, body = ask(address, message("m", {"x": row(1, number, rows=3)}))
                assert status(head) == 200
                assert np.array_equal(
                    np.frombuffer(body[-48:], "<f4").reshape(3, 4), row(1, number, rows=3)
                )
            stats = engine.find("m", "").statistics()
    assert (stats.success.count, stats.inference_count, stats.execution_count) == (20, 60, 20)
    assert stats.compute_infer.ns > 0 and stats.queue.count == 20


@pytest.mark.parametrize(("way", "shown"), [(-14, "second_half"), (-15, "gro___x_evil__1")])
def test_a_stage_of_any_name_is_shown_by_a_word_and_costs_no_process(served, way, shown):
    pid = pid_of(served, "separate")
    answer = asked(served, "separate", row(way))
    assert f"{shown};dur=" in answer.headers["Server-Timing"]
    assert "x-evil" not in answer.headers
    assert pid_of(served, "separate") == pid


@pytest.mark.parametrize("columns", [4, 15_000], ids=["without Python", "by Python"])
def test_no_stage_takes_longer_than_the_process_had_the_batch(served, columns):
    began = time.monotonic()
    answer = asked(served, "wide", row(columns, 77))
    assert answer.status_code == 200
    (told,) = re.findall(r"lie;dur=([\d.]+)", answer.headers["Server-Timing"])
    assert 0 < float(told) <= 1000 * (time.monotonic() - began)


@pytest.mark.parametrize("layout", [79, 80], ids=["in C order", "transposed"])
def test_output_of_48_dimensions_is_refused_by_a_process_that_serves_on(served, layout):
    asked(served, "wide", row(2, 1))
    before = served.log.count("was started")
    answer = asked(served, "wide", row(2, layout))
    assert answer.status_code == 500
    assert asked(served, "wide", row(2, 1)).status_code == 200
    assert "tensor 'y' has 48 dimensions, and at most 32 are allowed" in served.log
    assert served.log.count("was started") == before


def test_answers_that_do_not_fit_the_ring_need_no_further_memory(served):
    for _ in range(24):
        answer = asked(served, "wide", row(100_000, 78))
        assert answer.status_code == 200
    length = int(answer.headers["Inference-Header-Content-Length"])
    (blocks,) = np.frombuffer(answer.content, "<f4", 1, length)
    assert blocks == 0


@pytest.mark.parametrize("model", ["separate", "joined"])
def test_handler_sees_the_same_requests_through_the_ring(served, model):
    for parameters in ({}, {"timeout": 5_000_000}, {"priority": 3}):
        x = row(-12)
        far, here = (
            values_of(asked(served, name, x, id="an-id", parameters=parameters))
            for name in (model, "here")
        )
        assert np.array_equal(far, here)


@pytest.mark.parametrize("model", ["separate", "joined"])
@pytest.mark.parametrize("way", [-4, -6, -8, -9, -10, -13])
def test_unusual_answers_equal_an_inline_handlers(served, model, way):
    with requests.Session() as session:
        far, here = (asked(served, name, row(way, 3), session) for name in (model, "here"))
        assert far.status_code == here.status_code
        assert far.headers.get("x-extra") == here.headers.get("x-extra")
        assert far.content.replace(model.encode(), b"here") == here.content
        # The next plain request meets a process that serves on.
        assert np.array_equal(values_of(asked(served, model, row(1, 2), session)), row(1, 2))


@pytest.mark.parametrize("model", ["wide", "wide-joined"])
def test_answers_of_every_size(served, model):
    """In one piece from the ring, from the ring through Python, and over the channel."""
    for columns in (0, 1, 1000, 2040, 2056, 5000, 16_000, 16_400, 300_000):
        for rows in (1, 2):
            answer = asked(served, model, row(columns, rows=rows))
            assert answer.status_code == 200, answer.text
            length = int(answer.headers["Inference-Header-Content-Length"])
            y, n, b = json.loads(answer.content[:length])["outputs"]
            assert (y["shape"], n["datatype"], b["datatype"]) == ([rows, columns], "INT64", "BOOL")
            values = np.frombuffer(answer.content[length:], "<f4", rows * columns)
            assert np.array_equal(values, np.arange(rows * columns, dtype="f4"))


def test_requests_that_do_not_fit_the_ring_are_run_as_well(served):
    for rows in (1, 100, 4000, 4096, 5000, 50_000):
        x = np.arange(rows * 4, dtype="f4").reshape(rows, 4) + 100
        assert np.array_equal(values_of(asked(served, "separate", x)), x)


def test_a_handler_may_keep_its_inputs(served):
    expected = 0.0
    for number in range(1, 30):
        expected += number
        assert values_of(asked(served, "separate", row(-11, 0, number)))[0, 1] == expected


@pytest.mark.parametrize(("way", "reason"), [(-1, "exit status 3"), (-2, "SIGSEGV")])
def test_a_request_that_ends_its_process_is_tried_twice_and_then_refused(served, way, reason):
    answer = asked(served, "separate", row(way))
    assert answer.status_code == 500
    assert reason in answer.json()["error"]
    assert is_alive(pid_of(served, "separate"))


@pytest.mark.parametrize("model", ["separate", "joined", "two"])
def test_requests_queued_after_a_death_are_answered(served, model):
    """Quick answers first, so that batches are dispatched ahead of the batch that ends its process."""
    failed: list[str] = []
    endings: list[requests.Response] = []

    def client(number: int) -> None:
        with requests.Session() as session:
            for turn in range(100):
                if number == 0 and turn == 49:
                    endings.append(asked(served, model, row(-1), session))
                    continue
                answer = asked(served, model, row(number, turn), session)
                if answer.status_code != 200 or values_of(answer)[0, 1] != turn:
                    failed.append(answer.text)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))
    assert [answer.status_code for answer in endings] == [500]
    # Requests that shared both batches of a request that ends its process twice are refused too; no others are.
    assert all("ended two handler processes" in text for text in failed), failed
    assert len(failed) <= 7


def test_a_process_killed_while_it_runs_a_batch_is_replaced_and_the_batch_run_again(served):
    pid = pid_of(served, "separate")
    with (
        Hold(served.folder / "separate") as hold,
        socket.create_connection(("127.0.0.1", int(served.url.rsplit(":", 1)[1]))) as client,
    ):
        client.sendall(message("separate", {"x": hold.x}))
        wait_until(lambda: hold.began)
        os.kill(pid, signal.SIGKILL)
        hold.__exit__()
        assert client.recv(16) == b"HTTP/1.1 200 OK\r"
    assert pid_of(served, "separate") != pid


def test_requests_queued_after_a_running_batch_expire_as_waiting(served):
    for _ in range(30):  # quick runs, so that batches would be dispatched ahead
        values_of(asked(served, "separate", row(1)))
    with Hold(served.folder / "separate") as hold:
        first = threading.Thread(target=asked, args=(served, "separate", hold.x))
        first.start()
        wait_until(lambda: hold.began)
        late = asked(served, "separate", row(1), parameters={"timeout": 100_000})
        assert late.status_code == 504
        assert "before a handler could start it" in late.json()["error"]
    first.join()


def test_requests_after_a_hang_run_in_the_other_process(served):
    """Also requests that were dispatched ahead: the answers arrive while the first process hangs."""
    with Hold(served.folder / "two") as hold:
        first = threading.Thread(target=asked, args=(served, "two", hold.x))
        done: list[bool] = []

        def client(number: int) -> None:
            with requests.Session() as session:
                for turn in range(100):
                    if number == 0 and turn == 50:
                        first.start()
                    answer = values_of(asked(served, "two", row(1, turn), session))
                    done.append(answer[0, 1] == turn)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(client, range(8)))
        wait_until(lambda: hold.began)
        assert done == [True] * 800
        assert first.is_alive()
    first.join()
