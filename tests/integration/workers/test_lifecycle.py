"""Start, stop and reload of a real server, under load: nothing that was accepted is lost."""

import collections
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from ksrv.testing import Server, ServerFailed
from tests.support.images import files as image_files
from tests.support.models import (
    HOLD,
    VECTOR,
    write_all,
    write_broken,
    write_double,
    write_mean,
    write_model,
    write_slow,
)
from tests.support.processes import another_child, children
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import double_body, infer_message, open_connection, read_answer

pytestmark = pytest.mark.long

LOADING = """
import time

from ksrv import BaseHandler


class Loading(BaseHandler):
    def initialize(self, context):
        time.sleep(float(context.parameters["seconds"]))

    def inference(self, x):
        return {"y": x}
"""


HELD_LOADING = f"""{HOLD}

class Held(BaseHandler):
    def initialize(self, context):
        hold()

    def inference(self, x):
        return {{"y": x}}
"""


def write_held(root, handler):
    """Write a model that waits for a file `go` in its folder, and writes `began` when it begins to wait."""
    return write_model(root, "held", handler, f"{VECTOR}warmup: false\n")


def write_loading(root, seconds):
    return write_model(root, "loading", LOADING, f"{VECTOR}parameters: {{seconds: {seconds}}}\n")


class Load:
    """Threads that send requests until told to stop, and count what came of each."""

    def __init__(self, url, threads=4):
        self.outcomes = collections.Counter()
        self._url = url
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def _run(self):
        while not self._stop.is_set():
            try:
                answer = requests.post(self._url, data=double_body(), timeout=60)
                self.outcomes[answer.status_code] += 1
            except requests.RequestException as error:
                self.outcomes[type(error).__name__] += 1

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, count):
        goal = sum(self.outcomes.values()) + count
        wait_until(lambda: sum(self.outcomes.values()) >= goal)


class GrpcLoad(Load):
    """The same over one gRPC connection, whose client follows a GOAWAY."""

    def __init__(self, address):
        super().__init__(address, threads=1)

    def _run(self):
        with triton.InferenceServerClient(self._url) as client:
            x = triton.InferInput("x", [1, 4], "FP32")
            x.set_data_from_numpy(np.ones((1, 4), np.float32))
            while not self._stop.is_set():
                try:
                    client.infer("double", [x])
                    self.outcomes["OK"] += 1
                except InferenceServerException as error:
                    self.outcomes[str(error)] += 1


def wait_live(server):
    def answered():
        with contextlib.suppress(OSError):
            return server.get("/v2/health/live") == (200, b'{"live":true}')

    wait_until(answered)


def test_live_answers_while_models_load_and_ready_follows_them(tmp_path):
    folder = write_held(tmp_path, HELD_LOADING)
    with Server(tmp_path, wait_ready=False, worker_timeout=4) as server:
        wait_live(server)
        status, body = server.get("/v2/health/ready")
        assert status == 503
        assert json.loads(body).items() >= {"ready": False, "live": True}.items()
        refused = requests.post(f"{server.url}/v2/models/held/infer", data=double_body())
        assert refused.status_code == 503
        assert refused.headers["Retry-After"]
        time.sleep(5)  # longer than a worker may go without a sign of life
        (folder / "go").touch()
        server.wait_ready()
        assert requests.post(
            f"{server.url}/v2/models/held/infer", data=double_body()
        ).status_code == 200  # fmt: skip
        assert "WORKER TIMEOUT" not in server.log


def test_sigterm_under_load_loses_nothing_that_was_accepted(tmp_path):
    write_slow(tmp_path, 0.2)
    with Server(tmp_path, drain_delay=5.0) as server:
        connections = [open_connection(server.http, 60) for _ in range(8)]
        for connection in connections:
            connection.sendall(infer_message("slow"))
        os.kill(server.pid, signal.SIGTERM)
        while server.get("/v2/health/ready")[0] != 503:
            time.sleep(0.01)
        assert server.get("/v2/health/live")[0] == 200
        late = requests.post(f"{server.url}/v2/models/slow/infer", data=double_body())
        assert late.status_code == 200
        assert [read_answer(connection).status for connection in connections] == [200] * 8
        for connection in connections:
            connection.close()
        assert server.process.wait(60) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_hup_under_load_loses_nothing(tmp_path, workers):
    write_double(tmp_path)
    write_loading(tmp_path, 1)
    with Server(tmp_path, workers=workers) as server:
        before = set(children(server.pid))
        with Load(f"{server.url}/v2/models/double/infer") as load:
            load.wait_for(20)
            os.kill(server.pid, signal.SIGHUP)
            deadline = time.monotonic() + 60
            while before & set(children(server.pid)):
                assert time.monotonic() < deadline, server.log
                # A new worker tells its native server of its readiness up to 0.25 s later.
                wait_until(lambda: is_ready(server), seconds=5)
            load.wait_for(20)
        assert set(load.outcomes) == {200}, (load.outcomes, server.log)
        assert len(children(server.pid)) == workers


def test_workers_that_a_further_hup_overtakes_are_no_restarts(tmp_path):
    write_loading(tmp_path, 2)
    with Server(tmp_path, workers=2, grpc="off") as server:
        known = set(children(server.pid))
        for _ in range(3):
            os.kill(server.pid, signal.SIGHUP)
            # Each signal finds the workers of the previous signal still loading.
            for _ in range(2):
                known.add(another_child(server.pid, known))
        wait_until(lambda: set(children(server.pid)) < known and len(children(server.pid)) == 2)
        wait_until(lambda: is_ready(server), tell=lambda: server.log)
        page = server.get("/metrics")[1].decode()
        assert "\nksrv_server_worker_restarts_total 0.0\n" in page
        os.kill(children(server.pid)[0], signal.SIGKILL)
        wait_until(
            lambda: "worker_restarts_total 1.0\n" in server.get("/metrics")[1].decode(),
            tell=lambda: server.log,
        )


@pytest.mark.parametrize("grpc_server", ["native", "grpcio"])
def test_usr2_under_load_replaces_the_program_and_loses_nothing(tmp_path, grpc_server):
    write_double(tmp_path)
    write_loading(tmp_path, 1)
    with Server(tmp_path, grpc_server=grpc_server) as server:
        workers = set(children(server.pid))
        with (
            Load(f"{server.url}/v2/models/double/infer") as load,
            GrpcLoad(server.grpc) as calls,
        ):
            load.wait_for(20)
            calls.wait_for(20)
            os.kill(server.pid, signal.SIGUSR2)
            new = another_child(server.pid, workers)
            try:
                wait_until(lambda: children(new), tell=lambda: server.log)
                wait_until(lambda: server.log.count("ready: True") == 2, tell=lambda: server.log)
                os.kill(server.pid, signal.SIGTERM)
                server.process.wait(60)
                load.wait_for(20)
                calls.wait_for(20)
                load.stop()
                calls.stop()
                assert set(load.outcomes) == {200}, (load.outcomes, server.log)
                # grpcio, when it stops, ends a call that has just come; libnghttp2's server loses none.
                refused = set(calls.outcomes) - {"OK"}
                assert grpc_server == "grpcio" or not refused, (calls.outcomes, server.log)
                assert all("CANCELLED" in one or "UNAVAILABLE" in one for one in refused)
                assert is_ready(server)
            finally:
                load.stop()
                calls.stop()
                os.kill(new, signal.SIGTERM)
        wait_until(lambda: not Path(f"/proc/{new}").exists())
        with pytest.raises(ConnectionError):
            open_connection(server.http)


def test_usr2_with_settings_that_cannot_be_leaves_the_old_program_serving(tmp_path):
    write_double(tmp_path / "models")
    tokens = tmp_path / "tokens"
    tokens.write_text("a-secret-token\n")
    with Server(tmp_path / "models", token_file=str(tokens)) as server:
        workers = set(children(server.pid))
        tokens.unlink()
        told = server.log.count("token_file")
        os.kill(server.pid, signal.SIGUSR2)
        wait_until(
            lambda: server.log.count("token_file") > told and set(children(server.pid)) == workers
        )
        header = {"Authorization": "Bearer a-secret-token"}
        answer = requests.get(f"{server.url}/v2/models/double", headers=header, timeout=60)
        assert answer.status_code == 200
        tokens.write_text("a-secret-token\n")

        def replaced():
            """A signal that arrives before the master has seen the end of the first try is ignored."""
            os.kill(server.pid, signal.SIGUSR2)
            time.sleep(0.2)
            return set(children(server.pid)) - workers

        wait_until(replaced, tell=lambda: server.log)
        new = another_child(server.pid, workers)
        os.kill(new, signal.SIGTERM)
        wait_until(lambda: set(children(server.pid)) == workers)
        assert requests.get(f"{server.url}/v2/models/double", headers=header).status_code == 200


def is_ready(server):
    return server.get("/v2/health/ready")[0] == 200


def test_a_reload_whose_models_fail_leaves_the_old_worker_serving(tmp_path):
    write_double(tmp_path)
    with Server(tmp_path, stop_timeout=2) as server:
        (old,) = children(server.pid)
        assert b"\nksrv_last_reload_successful 1.0\n" in server.get("/metrics")[1]
        broken = write_broken(tmp_path)
        os.kill(server.pid, signal.SIGHUP)
        while "ready: False" not in server.log:
            assert is_ready(server)
            time.sleep(0.05)
        assert old in children(server.pid)
        assert is_ready(server)
        page = server.get("/metrics")[1]
        assert b"\nksrv_last_reload_successful 0.0\n" in page
        assert b"\nksrv_last_reload_timestamp_seconds " in page
        shutil.rmtree(broken)
        os.kill(server.pid, signal.SIGHUP)
        deadline = time.monotonic() + 60
        while old in children(server.pid):
            assert is_ready(server)
            assert time.monotonic() < deadline, server.log
            time.sleep(0.05)
        server.wait_ready()
        assert b"\nksrv_last_reload_successful 1.0\n" in server.get("/metrics")[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_still_loads_can_be_stopped(tmp_path, number):
    write_loading(tmp_path, 600)
    with Server(tmp_path, wait_ready=False, drain_delay=600, grpc="off") as server:
        while "Booting worker" not in server.log or not children(server.pid):
            time.sleep(0.01)
        wait_live(server)
        os.killpg(server.pid, number)
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.log


def test_the_port_can_be_taken_again_at_once(tmp_path):
    write_double(tmp_path)
    own = "127.0.0.2:0"  # nobody else takes a port of this address meanwhile
    with Server(tmp_path, http=own, grpc=own) as server:
        http, grpc = server.http, server.grpc
        requests.get(f"{server.url}/v2")
    with Server(tmp_path, http=http, grpc=grpc) as server:
        assert (server.http, server.grpc) == (http, grpc)


def test_the_curl_line_works_as_it_stands(tmp_path):
    write_all(tmp_path)
    write_mean(tmp_path)
    (tmp_path / "image.jpg").write_bytes(image_files.jpeg(20, 30))
    for name in ("double", "mean", "echo"):
        with Server(tmp_path / name) as server:
            while not (lines := re.findall(r"^.*curl -s.*\n", server.log, re.M)):
                time.sleep(0.02)
            (line,) = lines
            done = subprocess.run(
                line,
                shell=True,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
            )
            assert '"model_name"' in done.stdout, (line, done.stdout)


def test_a_server_that_dies_while_it_starts_fails_with_its_log(tmp_path):
    write_double(tmp_path)
    with pytest.raises(ServerFailed, match="nope"):
        Server(tmp_path, worker_class="nope:Nope").start()
