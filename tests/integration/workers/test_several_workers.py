"""Several workers behind one address: whichever is asked answers for all."""

import collections
import contextlib
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from tritonclient import grpc as triton

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.processes import children, resting
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import infer_head, open_connection

HANDLER = """
import os
import numpy as np
from ksrv import BaseHandler

class Handler(BaseHandler):
    def inference(self, x):
        self.context.metrics.counter("seen", 1)
        self.context.metrics.gauge("last", float(x[0, 0]))
        self.context.metrics.histogram("sizes", len(x))
        return {"y": np.full(x.shape, os.getpid(), "f8")}
"""

YAML = """
inputs: [{name: x, datatype: FP32, shape: [-1, 1]}]
outputs: [{name: y, datatype: FP64, shape: [-1, 1]}]
warmup: false
"""

SUCCESSES = r'ksrv_requests_total\{model="m",outcome="success",version=""\} (\S+)'


@pytest.fixture
def server(tmp_path):
    write_model(tmp_path, "m", HANDLER, YAML)
    with Server(tmp_path, workers=2) as running:
        wait_until(lambda: loaded(running) == 2)
        yield running


def loaded(server):
    """How many workers have loaded the models so far."""
    return server.log.count("ready: True")


def of_both(server, ask):
    """Return the answers of the two workers to four clients that ask at once."""
    answers = []
    for pid in children(server.pid):
        # Not one client alone: its connection may wake the worker that rests, and no other.
        with ThreadPoolExecutor(4) as pool, resting([pid]):
            answers += pool.map(lambda _: ask(server), range(4))
    return answers


def infer(server, value=1.0, asks=requests):
    """Answer one row; the process that did."""
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    url = f"{server.url}/v2/models/m/infer"
    answer = asks.post(url, json={"inputs": [entry]}, timeout=30)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["outputs"][0]["data"][0])


def page(server):
    return requests.get(f"{server.url}/metrics", timeout=30).text


def wait_for(server, pattern, value):
    """Wait until the pages of both workers show it; each shows the last second."""

    def shown():
        found = [re.search(rf"^{pattern}$", text, re.M) for text in of_both(server, page)]
        return all(one and float(one[1]) == value for one in found)

    wait_until(shown, tell=lambda: page(server))


def test_connections_go_to_the_workers_in_turn(server):
    first = infer(server)
    wait_until(lambda: infer(server) != first)  # one that has loaded its models accepts soon
    asked = collections.Counter(infer(server) for _ in range(40))
    assert len(asked) == 2 and min(asked.values()) >= 10
    with contextlib.ExitStack() as kept:
        sessions = [kept.enter_context(requests.Session()) for _ in range(20)]
        held = collections.Counter(infer(server, asks=session) for session in sessions)
        assert len(held) == 2 and min(held.values()) >= 5


def test_counts_are_those_of_all_workers(server):
    answered = collections.Counter(of_both(server, infer))
    assert list(answered.values()) == [4, 4]
    infer(server, 7.0)
    sent = 9
    wait_for(server, SUCCESSES, sent)
    wait_for(server, r'ksrv_stage_duration_seconds_count\{model="m",stage="queue",version=""\} (\S+)',
             sent)  # fmt: skip
    wait_for(server, r"seen\{[^}]*\} (\S+)", sent)
    wait_for(server, r"sizes_count\{[^}]*\} (\S+)", sent)
    wait_for(server, r"last\{[^}]*\} (\S+)", 7.0)
    wait_for(server, r'ksrv_model_ready\{model="m",version=""\} (\S+)', 1)

    def statistics(server):
        answer = requests.get(f"{server.url}/v2/models/m/stats", timeout=30)
        return answer.json()["model_stats"][0]

    for found in of_both(server, statistics):
        assert found["inference_count"] == sent
        assert found["inference_stats"]["success"]["count"] == sent
        assert [batch["compute_infer"]["count"] for batch in found["batch_stats"]] == [sent]


def test_refusals_and_errors_are_those_of_all_workers(server):
    def ask_unknown(server):
        url = f"{server.url}/v2/models/none/infer"
        return requests.post(url, json={"inputs": []}, timeout=30).status_code

    def send_too_much(server):
        with open_connection(server.http, 30) as client:
            client.sendall(infer_head("m", 1 << 50, "TE: trailers"))
            return client.recv(12)

    assert of_both(server, ask_unknown) == [404] * 8
    wait_for(server, r"ksrv_unknown_model_requests_total (\S+)", 8)
    assert of_both(server, send_too_much) == [b"HTTP/1.1 413"] * 8
    wait_for(server, r'ksrv_refused_requests_total\{protocol="http",reason="too_large"\} (\S+)', 8)
    wait_for(server, r'ksrv_error_answers_total\{protocol="http",status="413"\} (\S+)', 8)


def version_and_process(server):
    """The version of the handler that answered, and its process; or the status of a refusal."""
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.0]}
    url = f"{server.url}/v2/models/m/infer"
    answer = requests.post(url, json={"inputs": [entry]}, timeout=30)
    if answer.status_code != 200:
        return answer.status_code, 0
    return divmod(int(answer.json()["outputs"][0]["data"][0]), 10**8)


def assert_version(server, expected):
    found = set(of_both(server, version_and_process))
    assert len(found) == 2 and {version for version, _ in found} == {expected}


def write_version(folder, number):
    text = HANDLER.replace("os.getpid()", f"os.getpid() + {number} * 10.0 ** 8")
    (folder / "handler.py").write_text(text)


@pytest.mark.parametrize("front", ["rest", "grpc"])
def test_loads_and_unloads_are_made_by_all_workers(tmp_path, front):
    folder = write_model(tmp_path, "m", HANDLER, YAML)
    write_version(folder, 1)
    with Server(tmp_path, workers=2) as server, triton.InferenceServerClient(server.grpc) as client:
        wait_until(lambda: loaded(server) == 2)

        def call(action):
            if front == "grpc":
                (client.load_model if action == "load" else client.unload_model)("m")
                return
            url = f"{server.url}/v2/repository/models/m/{action}"
            assert requests.post(url, timeout=60).status_code == 200

        assert_version(server, 1)
        for version in (2, 3):
            write_version(folder, version)
            call("load")
            assert_version(server, version)
        call("unload")
        assert of_both(server, version_and_process) == [(503, 0)] * 8
        call("load")
        assert_version(server, 3)


def test_what_changed_on_disk_is_loaded_by_all_workers(tmp_path):
    folder = write_model(tmp_path, "m", HANDLER, YAML)
    write_version(folder, 1)
    with Server(tmp_path, workers=2) as server:
        wait_until(lambda: loaded(server) == 2)
        assert_version(server, 1)
        write_version(folder, 2)
        assert requests.post(f"{server.url}/v1/config/reload", timeout=60).status_code == 201
        assert_version(server, 2)
        os.kill(version_and_process(server)[1], signal.SIGKILL)  # another worker replaces it
        wait_until(lambda: loaded(server) == 3)
        write_version(folder, 3)
        assert requests.post(f"{server.url}/v1/config/reload", timeout=60).status_code == 201
        assert_version(server, 3)


def test_a_worker_that_is_one_too_many_leaves_to_the_others(tmp_path):
    """A server with fewer workers stays ready, but a server whose last worker is stopped drains."""
    write_model(tmp_path, "m", HANDLER, YAML)
    with Server(tmp_path, drain_delay=3) as server:
        (first,) = children(server.pid)
        os.kill(server.pid, signal.SIGTTIN)
        wait_until(lambda: len(children(server.pid)) == 2)
        os.kill(server.pid, signal.SIGTTOU)  # the first worker ends, once the second has loaded

        def left():
            assert server.get("/v2/health/ready")[0] == 200
            return len(children(server.pid)) == 1

        wait_until(left)
        (second,) = children(server.pid)
        assert second != first
        assert infer(server) == second
        assert "draining" not in server.log
        os.kill(second, signal.SIGTERM)
        wait_until(lambda: server.get("/v2/health/ready")[0] == 503)
        wait_until(lambda: loaded(server) == 3)
