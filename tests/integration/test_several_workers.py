"""Several workers behind one address: whichever is asked answers for all."""

import os
import re
import signal
import time

import pytest
import requests
from integration_models import write_model
from tritonclient import grpc as triton

from ksrv.testing import Server

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
        yield running


def infer(server, value=1.0, asks=requests):
    """Answer one row, on a connection of its own so that it may reach any worker; its process."""
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    url = f"{server.url}/v2/models/m/infer"
    answer = asks.post(url, json={"inputs": [entry]}, timeout=30)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["outputs"][0]["data"][0])


def until_both_answered(server):
    """Send requests until two processes have answered; by process, how many each did."""
    answered = {}
    give_up = time.monotonic() + 60
    while len(answered) < 2 or min(answered.values()) < 3:
        assert time.monotonic() < give_up, answered
        pid = infer(server)
        answered[pid] = answered.get(pid, 0) + 1
    return answered


def page(server, asks=requests):
    return asks.get(f"{server.url}/metrics", timeout=30).text


def wait_for(server, pattern, value, asks=requests):
    """Wait until ten pages in a row, of whichever worker, say so; each tells of the last second."""
    give_up = time.monotonic() + 60
    in_a_row = 0
    while in_a_row < 10:
        found = re.search(rf"^{pattern}$", text := page(server, asks), re.M)
        in_a_row = in_a_row + 1 if found and float(found[1]) == value else 0
        assert time.monotonic() < give_up, text
        time.sleep(0.05)


def test_counts_are_those_of_all_workers(server):
    sent = sum(until_both_answered(server).values())
    infer(server, 7.0)
    sent += 1
    wait_for(server, SUCCESSES, sent)
    wait_for(server, r'ksrv_stage_duration_seconds_count\{model="m",stage="queue",version=""\} (\S+)',
             sent)  # fmt: skip
    wait_for(server, r"seen\{[^}]*\} (\S+)", sent)
    wait_for(server, r"sizes_count\{[^}]*\} (\S+)", sent)
    wait_for(server, r"last\{[^}]*\} (\S+)", 7.0)
    wait_for(server, r'ksrv_model_ready\{model="m",version=""\} (\S+)', 1)
    for _ in range(10):
        found = requests.get(f"{server.url}/v2/models/m/stats", timeout=30).json()["model_stats"][0]
        assert found["inference_count"] == sent
        assert found["inference_stats"]["success"]["count"] == sent
        assert [batch["compute_infer"]["count"] for batch in found["batch_stats"]] == [sent]


def test_an_unknown_model_is_counted_once_wherever_it_came(server):
    for _ in range(12):
        url = f"{server.url}/v2/models/none/infer"
        assert requests.post(url, json={"inputs": []}, timeout=30).status_code == 404
    wait_for(server, r"ksrv_unknown_model_requests_total (\S+)", 12)


def test_the_counts_of_a_worker_outlive_it(server):
    answered = until_both_answered(server)
    sent = sum(answered.values())
    killed = next(iter(answered))
    while True:  # a connection stays with its worker: this one tells what the other one knows
        with requests.Session() as other:
            sent += 1
            if infer(server, asks=other) != killed:
                wait_for(server, SUCCESSES, sent, asks=other)
                break
    os.kill(killed, signal.SIGKILL)
    seen = set()
    give_up = time.monotonic() + 60
    while len(seen) < 2:  # the other one, and the one that replaced it
        assert time.monotonic() < give_up, seen
        try:
            seen.add(infer(server))
            sent += 1
        except requests.ConnectionError:
            time.sleep(0.05)
    assert killed not in seen
    wait_for(server, SUCCESSES, sent)


def answers(server, expected):
    """Send requests until two processes have answered; every answer is as expected.

    A refusal tells no process: where those are expected, two requests are sent.
    """
    seen = set()
    give_up = time.monotonic() + 60
    while len(seen) < 2:
        assert time.monotonic() < give_up, seen
        entry = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.0]}
        url = f"{server.url}/v2/models/m/infer"
        answer = requests.post(url, json={"inputs": [entry]}, timeout=30)
        assert answer.status_code == (200 if expected is not None else 503), answer.text
        if expected is None:
            seen.add(len(seen))
            continue
        version, pid = divmod(int(answer.json()["outputs"][0]["data"][0]), 10**8)
        assert version == expected
        seen.add(pid)


def write_version(folder, number):
    text = HANDLER.replace("os.getpid()", f"os.getpid() + {number} * 10.0 ** 8")
    (folder / "handler.py").write_text(text)


@pytest.mark.parametrize("front", ["rest", "grpc"])
def test_loads_and_unloads_are_made_by_all_workers(tmp_path, front):
    folder = write_model(tmp_path, "m", HANDLER, YAML)
    write_version(folder, 1)
    with Server(tmp_path, workers=2) as server, triton.InferenceServerClient(server.grpc) as client:

        def call(action):
            if front == "grpc":
                (client.load_model if action == "load" else client.unload_model)("m")
                return
            url = f"{server.url}/v2/repository/models/m/{action}"
            assert requests.post(url, timeout=60).status_code == 200

        answers(server, 1)
        for version in (2, 3):
            write_version(folder, version)
            call("load")
            answers(server, version)
        call("unload")
        for _ in range(20):
            answers(server, None)
        call("load")
        answers(server, 3)


def test_what_changed_on_disk_is_loaded_by_all_workers(tmp_path):
    folder = write_model(tmp_path, "m", HANDLER, YAML)
    write_version(folder, 1)
    with Server(tmp_path, workers=2) as server:
        answers(server, 1)
        write_version(folder, 2)
        assert requests.post(f"{server.url}/v1/config/reload", timeout=60).status_code == 201
        answers(server, 2)
        os.kill(infer(server) % 10**8, signal.SIGKILL)  # the next one takes its place
        time.sleep(0.5)
        until_loaded(server)
        write_version(folder, 3)
        assert requests.post(f"{server.url}/v1/config/reload", timeout=60).status_code == 201
        answers(server, 3)


def until_loaded(server):
    give_up = time.monotonic() + 60
    seen = set()
    while len(seen) < 2:
        assert time.monotonic() < give_up, seen
        try:
            seen.add(infer(server))
        except requests.ConnectionError:
            time.sleep(0.05)
