"""Ways to stop a server, and what a reload that cannot be leaves behind."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading

import pytest
import requests

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import HELD, VECTOR, write_broken, write_double, write_model
from tests.support.processes import children
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import double_body, infer_message, open_connection, read_answer

pytestmark = pytest.mark.long


EXITS = """
import os


def inference(x):
    if x[0, 0] == 7:
        os._exit(3)
    return {"y": x}
"""

INT, TERM, QUIT, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP


def ready(server):
    return server.get("/v2/health/ready")[0] == 200


def all_ready(server, count):
    wait_until(lambda: server.log.count("ready: True") >= count)


class Traffic:
    """Clients that ask for pages until the server is gone."""

    def __init__(self, server, count=16):
        self._server = server
        self.answered = itertools.count()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def _run(self):
        for path in itertools.cycle(("/metrics", "/v2/models", "/v2")):
            try:
                self._server.get(path)
            except OSError:
                if self._server.process.poll() is not None:
                    return
            else:
                next(self.answered)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        for thread in self._threads:
            thread.join()


def assert_ended_in_order(server, since=0):
    """The server ends, and its log tells of nothing but the way there from a place on."""
    assert server.process.wait(60) == 0, server.log
    for line in ("out of memory", "Traceback", "SIGKILL", "WORKER TIMEOUT"):
        assert line not in server.log[since:], server.log


ORDERS = [(INT,), (INT, INT, INT), (TERM, INT), (INT, TERM), (QUIT, INT), (TERM, TERM, QUIT)]
"""The signals that reach the whole process group; the first is a terminal's Ctrl-C."""


@pytest.mark.parametrize(
    "attempt",
    [pytest.param(n, marks=[pytest.mark.slow] if n >= len(ORDERS) else []) for n in range(20)],
)
def test_a_stop_ends_whatever_signals_come(tmp_path, attempt):
    write_double(tmp_path)
    order = ORDERS[attempt % len(ORDERS)]
    with (
        Server(
            tmp_path,
            workers=1 + (attempt + attempt // len(ORDERS)) % 2,
            grpc="off",
            drain_delay=0.2,
        ) as server,
        Traffic(server) as traffic,
    ):
        wait_until(lambda: next(traffic.answered) > 200)
        for number in order:
            os.killpg(server.pid, number)
        assert_ended_in_order(server)


@pytest.mark.parametrize(("carrier", "workers"), [("native", 2), ("grpcio", 1)])
def test_both_ports_refuse_connections_while_the_last_requests_run(tmp_path, carrier, workers):
    folder = write_model(tmp_path, "held", HELD, f"{VECTOR}warmup: false\n")
    with Server(tmp_path, workers=workers, grpc_server=carrier, stop_timeout=60) as server:
        all_ready(server, workers)
        client = open_connection(server.http)
        client.sendall(infer_message("held"))
        wait_until((folder / "began").exists)
        os.kill(server.pid, TERM)
        wait_until(lambda: refuses(server.http))
        wait_until(lambda: refuses(server.grpc))
        assert server.running
        (folder / "go").touch()
        assert read_answer(client).status == 200
        assert_ended_in_order(server)


@pytest.mark.parametrize("tls", [False, True], ids=["native", "tls"])
def test_ctrl_c_finishes_what_runs_and_a_second_one_does_not(tmp_path, tls):
    folder = write_model(tmp_path / "models", "held", HELD, f"{VECTOR}warmup: false\n")
    settings = {"grpc": "off", "drain_delay": 600, "stop_timeout": 600}
    trusted = None
    if tls:
        key, cert = self_signed(tmp_path / "certificates")
        settings |= {"tls_cert": str(cert), "tls_key": str(key)}
        trusted = str(cert)
    for patient in (True, False):
        (folder / "began").unlink(missing_ok=True)
        (folder / "go").unlink(missing_ok=True)
        with Server(tmp_path / "models", **settings) as server:
            answers = []

            def ask(server=server, answers=answers):
                with contextlib.suppress(requests.ConnectionError):
                    url = f"{server.url}/v2/models/held/infer"
                    answer = requests.post(url, data=double_body(), verify=trusted, timeout=60)
                    answers.append(answer.status_code)

            client = threading.Thread(target=ask)
            client.start()
            wait_until((folder / "began").exists)
            os.killpg(server.pid, INT)
            wait_until(
                lambda: refuses(server.http)
            )  # the worker has heeded it: two at once would be one
            if patient:
                (folder / "go").touch()
            else:
                os.killpg(server.pid, INT)
            assert_ended_in_order(server)
            assert "other workers" not in server.log
            client.join()
            assert answers == ([200] if patient else [])


def refuses(address):
    try:
        open_connection(address).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # the listener was closed while the connection was made
        return False
    return False


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_after_a_failed_reload_drains(tmp_path, workers):
    write_double(tmp_path)
    held = write_model(tmp_path, "held", HELD, f"{VECTOR}warmup: false\n")
    with Server(tmp_path, workers=workers, drain_delay=2) as server:
        all_ready(server, workers)
        write_broken(tmp_path)
        os.kill(server.pid, HUP)
        wait_until(lambda: server.log.count("ready: False") == workers)
        assert ready(server)
        with open_connection(server.http) as waits:
            waits.sendall(infer_message("held"))
            wait_until((held / "began").exists)
            since = len(server.log)
            os.kill(server.pid, TERM)
            wait_until(lambda: not ready(server))
            assert requests.post(
                f"{server.url}/v2/models/double/infer", data=double_body(), timeout=60
            ).status_code == 200  # fmt: skip
            (held / "go").touch()
            assert read_answer(waits).status == 200
        assert_ended_in_order(server, since)


# ---- files ----------------------------------------------------------------------------------------


def models_answer(server, token):
    headers = {"Authorization": f"Bearer {token}"}
    return requests.get(f"{server.url}/v2/models", headers=headers, timeout=60).status_code


def replace_workers(server):
    """Have every worker be replaced by another, as after a crash."""
    before = children(server.pid)
    count = server.log.count("ready: True")
    for worker in before:
        os.kill(worker, signal.SIGKILL)
    all_ready(server, count + len(before))
    server.wait_ready()
    assert not set(before) & set(children(server.pid))


@pytest.mark.parametrize(("workers", "broken"), [(1, "# none\n"), (2, None)])
def test_a_token_file_that_breaks_leaves_the_old_tokens(tmp_path, workers, broken):
    write_double(tmp_path / "models")
    tokens = tmp_path / "tokens"
    tokens.write_text("first\n")
    with Server(tmp_path / "models", workers=workers, token_file=str(tokens)) as server:
        all_ready(server, workers)
        before = children(server.pid)
        tokens.unlink()
        if broken is not None:
            tokens.write_text(broken)
        os.kill(server.pid, HUP)
        wait_until(lambda: "the reload is refused" in server.log)
        assert "setting 'token_file'" in server.log
        assert models_answer(server, "first") == 200
        assert children(server.pid) == before
        replace_workers(server)
        assert models_answer(server, "first") == 200
        tokens.write_text("second\n")
        os.kill(server.pid, HUP)
        wait_until(lambda: models_answer(server, "second") == 200)
        wait_until(lambda: models_answer(server, "first") == 401)


def test_a_config_properties_that_breaks_leaves_the_old_one(tmp_path):
    write_double(tmp_path / "models")
    properties = tmp_path / "config.properties"
    properties.write_text("default_response_timeout=7\n")
    with Server(tmp_path / "models", torchserve_config=str(properties)) as server:
        before = children(server.pid)
        properties.write_text("default_response_timeout=never\n")
        os.kill(server.pid, HUP)
        wait_until(lambda: "the reload is refused" in server.log)
        assert "default_response_timeout='never' is not accepted: expected a whole" in server.log
        assert children(server.pid) == before
        replace_workers(server)
        properties.unlink()
        replace_workers(server)


# ---- workers that die -----------------------------------------------------------------------------


def test_a_handler_that_ends_its_process_costs_one_worker(tmp_path):
    write_model(tmp_path, "exits", EXITS, VECTOR)
    with Server(tmp_path, workers=2) as server:
        all_ready(server, 2)
        before = set(children(server.pid))
        entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [7, 0, 0, 0]}
        url = f"{server.url}/v2/models/exits/infer"
        with contextlib.suppress(requests.ConnectionError):
            requests.post(url, json={"inputs": [entry]}, timeout=60)
        all_ready(server, 3)
        assert len(before & set(children(server.pid))) == 1
        assert len(children(server.pid)) == 2
        assert requests.post(url, data=double_body(), timeout=60).status_code == 200
        assert "exited with code 3" in server.log


def test_workers_that_cannot_start_end_the_server_that_never_served(tmp_path):
    """A gRPC extension that cannot be imported."""
    write_double(tmp_path / "models")
    (tmp_path / "grpc").mkdir()
    (tmp_path / "grpc" / "__init__.py").write_text("raise OSError('no such library')\n")
    done = subprocess.run(
        [sys.executable, "-m", "ksrv", "serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
         "--grpc-server", "grpcio", str(tmp_path / "models")],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3
    assert "Worker failed to boot" in done.stderr


def state_of(server, name):
    index = requests.post(f"{server.url}/v2/repository/index", timeout=60).json()
    return {
        (one["name"], one["state"], one.get("reason", "")) for one in index if one["name"] == name
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_what_was_unloaded_stays_so_in_workers_that_start_later(tmp_path, workers):
    write_double(tmp_path)
    write_model(tmp_path, "spare", HELD, f"{VECTOR}warmup: false\n")
    gone = {("spare", "UNAVAILABLE", "unloaded")}

    def call(action, name="spare"):
        url = f"{server.url}/v2/repository/models/{name}/{action}"
        assert requests.post(url, timeout=60).status_code == 200

    with Server(tmp_path, workers=workers) as server:
        all_ready(server, workers)
        call("unload", "double")
        call("load", "double")
        call("unload")
        replace_workers(server)
        for _ in range(8):
            assert state_of(server, "spare") == gone
            assert state_of(server, "double") == {("double", "READY", "")}
        before = set(children(server.pid))
        os.kill(server.pid, HUP)
        wait_until(lambda: not before & set(children(server.pid)))
        for _ in range(8):
            assert state_of(server, "spare") == gone
            assert ready(server)
        call("load")
        for _ in range(8):
            assert state_of(server, "spare") == {("spare", "READY", "")}
