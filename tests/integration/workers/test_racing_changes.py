"""Loads, unloads and changes of settings that several workers are asked for at once: all workers end alike."""

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import ECHO, VECTOR, write_model
from tests.support.processes import answers_of_each, children, resting
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.long

WORKERS = 3

SLOW_TO_CLOSE = """
import time
from pathlib import Path
from ksrv import BaseHandler

class Handler(BaseHandler):
    def inference(self, x):
        return {"y": x}

    def close(self):
        here = Path(__file__).parent
        (here / "closing").touch()
        while not (here / "go").exists():
            time.sleep(0.01)
"""


class RecyclingServer(Server):
    """Runs gunicorn's own command with the setting max_requests."""

    def command(self, settings_file):
        self._environment |= {
            "KSRV_CONFIG": str(settings_file),
            "KSRV_MODELS": ":".join(self.targets),
        }
        options = ["-c", "python:ksrv.server.gunicorn", "--max-requests", "20"]
        return [sys.executable, "-m", "gunicorn", *options]


@pytest.fixture
def models(tmp_path):
    for name in ("m", "other"):
        write_model(tmp_path, name, ECHO, VECTOR)
    return tmp_path


def serving(models, **settings):
    return Server(models, workers=WORKERS, grpc="off", **settings)


def wait_for_workers(server):
    wait_until(lambda: server.log.count("ready: True") >= WORKERS)


def of_each(server, ask):
    """Return each worker's answer while the others are paused."""
    answers = answers_of_each(server.pid, lambda: ask(server))
    assert len(answers) == WORKERS and all(len(one) == 1 for one in answers), answers
    return [one.pop() for one in answers]


def change(server, action, name="m"):
    url = f"{server.url}/v2/repository/models/{name}/{action}"
    return requests.post(url, json={}, timeout=120)


def is_ready(server, name="m"):
    return requests.get(f"{server.url}/v2/models/{name}/ready", timeout=30).status_code


def race(server, calls):
    """Ask for loads and unloads at once, over separate connections; all must be carried out."""
    actions = itertools.islice(itertools.cycle(("load", "unload")), calls)
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda action: change(server, action), actions))
    assert not [one.text for one in answers if one.status_code != 200]


@pytest.mark.parametrize(
    ("rounds", "calls"), [(6, 10), pytest.param(50, 20, marks=pytest.mark.slow)]
)
def test_workers_agree_after_racing_loads_and_unloads(models, rounds, calls):
    with serving(models) as server:
        wait_for_workers(server)
        for _ in range(rounds):
            race(server, calls)
            found = of_each(server, is_ready)
            assert len(set(found)) == 1, found
        assert change(server, "load").status_code == 200
        assert of_each(server, is_ready) == [200] * WORKERS


def test_workers_agree_after_racing_changes_of_the_log_level(models):
    def level(verbose):
        url = f"{server.url}/v2/logging"
        return requests.post(url, json={"log_verbose_level": verbose}, timeout=30).status_code

    def shown(server):
        return requests.get(f"{server.url}/v2/logging", timeout=30).json()["log_verbose_level"]

    with serving(models) as server:
        wait_for_workers(server)
        for _ in range(6):
            with ThreadPoolExecutor(8) as pool:
                assert set(pool.map(level, (0, 1) * 4)) == {200}
            found = of_each(server, shown)
            assert len(set(found)) == 1, found


def test_call_for_a_stopped_worker_times_out(models):
    with serving(models) as server, ThreadPoolExecutor(4) as pool:
        wait_for_workers(server)
        stopped = children(server.pid)[0]
        with resting([stopped]):
            # Several clients: the connection of one may wake the worker that rests, and no other.
            calls = [pool.submit(change, server, "unload") for _ in range(4)]
            first = next(as_completed(calls, timeout=60)).result()
        assert first.status_code == 504
        assert "1 of 3 workers" in first.text and f"process {stopped}" in first.text
        assert {call.result().status_code for call in calls} <= {200, 504}
        wait_until(lambda: of_each(server, is_ready) == [503] * WORKERS)  # it has caught up
        assert change(server, "load").status_code == 200
        assert of_each(server, is_ready) == [200] * WORKERS


def test_what_another_worker_could_not_load_is_told_to_the_caller(models):
    source = ECHO.replace(
        "class Echo(BaseHandler):",
        "import os\nif os.getpid() == 0:\n    raise RuntimeError('no memory left')\n\nclass Echo(BaseHandler):",
    )
    with serving(models) as server:
        wait_for_workers(server)
        failing = children(server.pid)[0]
        handler = models / "m" / "handler.py"
        handler.write_text(source.replace("== 0", f"== {failing}"))
        # Every worker tells the caller that the change was not made everywhere.
        text = "1 of the workers could not carry out the change"

        def told():
            answer = change(server, "load")
            assert answer.status_code == 500 and "no memory left" in answer.text
            return text in answer.text and f"process {failing}" in answer.text

        wait_until(told)
        handler.write_text(source)
        assert change(server, "load").status_code == 200


def test_load_succeeds_while_max_requests_ends_a_worker(models):
    slow = write_model(models, "slow", SLOW_TO_CLOSE, VECTOR)
    with RecyclingServer(models, workers=2, grpc="off") as server:
        wait_until(lambda: server.log.count("ready: True") == 2)
        with requests.Session() as session:
            for _ in range(20):
                session.get(f"{server.url}/v2/models/m/ready", timeout=30).raise_for_status()
        wait_until((slow / "closing").exists)
        answer = change(server, "load")
        (slow / "go").touch()
        assert answer.status_code == 200, answer.text
        wait_until(lambda: server.log.count("ready: True") == 3)
        assert change(server, "load").status_code == 200
