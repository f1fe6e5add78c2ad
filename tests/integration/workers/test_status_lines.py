"""`status_fd`: what a server tells the program that started it, in lines of JSON."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
import requests

from ksrv.server.launch.status_lines import StatusReader
from ksrv.testing import Server, ServerFailed
from tests.support.models import BROKEN, VECTOR, write_double, write_model
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.long


@pytest.fixture
def models(tmp_path):
    write_double(tmp_path / "models")
    return tmp_path / "models"


def serve(models, status_fd, *flags, **popen):
    """Start `ksrv serve` as a shell or a supervisor does, with flags alone."""
    command = [sys.executable, "-m", "ksrv", "serve", str(models), "--status-fd", str(status_fd)]
    return subprocess.Popen(
        [*command, "--drain-delay", "0", *flags], stderr=subprocess.STDOUT, text=True, **popen
    )


@contextmanager
def told(models, *flags):
    """Serve, and yield the file of the lines once the models are loaded."""
    folder = models.parent
    with (folder / "status").open("wb") as file, (folder / "log").open("wb") as log:
        descriptor = file.fileno()
        server = serve(models, descriptor, *flags, stdout=log, pass_fds=[descriptor])
    try:
        wait_until(lambda: b'"loaded"' in (folder / "status").read_bytes())
        yield folder / "status", server.pid
    finally:
        server.terminate()
        assert server.wait(60) == 0, (folder / "log").read_text()


HTTP_ALONE = ("--http", "127.0.0.1:0", "--grpc", "off")


@pytest.mark.parametrize(
    ("http", "grpc", "schemes"),
    [
        ("127.0.0.1:0", "127.0.0.1:0", ("http://127.0.0.1:", "127.0.0.1:")),
        ("127.0.0.1:0", "off", ("http://127.0.0.1:", None)),
        ("off", "127.0.0.1:0", (None, "127.0.0.1:")),
        ("[::1]:0", "unix:{folder}/grpc.sock", ("http://[::1]:", "unix:{folder}/grpc.sock")),
    ],
)
def test_status_file_gets_addresses_then_loaded(models, tmp_path, http, grpc, schemes):
    with told(models, "--http", http, "--grpc", grpc.format(folder=tmp_path)) as (status, pid):
        listening, loaded = map(json.loads, status.read_text().splitlines())
    assert (listening["event"], listening["pid"]) == ("listening", pid)
    for found, begin in zip((listening["http"], listening["grpc"]), schemes, strict=True):
        assert len(found) == (begin is not None)
        assert begin is None or found[0].startswith(begin.format(folder=tmp_path))
        assert not found or not found[0].endswith(":0")
    assert loaded == {"event": "loaded", "ready": True}


SLOW_TO_START = """
from time import sleep

from ksrv import BaseHandler, Float32


class Handler(BaseHandler):
    def initialize(self, context):
        sleep(1.5)  # longer than what starts the HTTP server

    def inference(self, x: Float32[4]) -> Float32[4]:
        return x
"""


def test_first_call_after_the_load_finds_the_server_ready(tmp_path):
    write_model(tmp_path / "models", "slow", SLOW_TO_START, "")
    with told(tmp_path / "models", *HTTP_ALONE) as (status, _):
        address = json.loads(status.read_text().splitlines()[0])["http"][0]
        assert requests.get(f"{address}/v2/health/ready", timeout=10).json()["ready"] is True


SAYS_THAT_IT_LOADED = """
from pathlib import Path
from time import sleep

from ksrv import BaseHandler


class Says(BaseHandler):
    def initialize(self, context):
        print("models loaded in 0.1 s, ready: True", flush=True)
        sleep(0.5)
        (Path(__file__).parent / "loaded").touch()

    def inference(self, x):
        return {"y": x}
"""


def test_a_server_without_http_is_ready_when_it_says_so_itself(tmp_path):
    folder = write_model(tmp_path, "says", SAYS_THAT_IT_LOADED, VECTOR)
    with Server(tmp_path, http="off"):
        assert (folder / "loaded").exists()


def test_models_that_fail_are_loaded_and_not_ready(models):
    write_model(models, "broken", BROKEN, VECTOR)
    with told(models, *HTTP_ALONE) as (status, _):
        assert json.loads(status.read_text().splitlines()[1])["ready"] is False


@pytest.mark.parametrize("descriptor", ["7", "-1", "99999999999"])
def test_a_descriptor_that_was_not_inherited_ends_the_start(models, descriptor):
    server = serve(models, descriptor, stdout=subprocess.PIPE)
    shown, _ = server.communicate(timeout=60)
    assert server.returncode == 1
    assert "the process was started without that descriptor" in shown


def test_a_reader_that_is_gone_costs_a_warning(models, tmp_path):
    status = StatusReader()
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = serve(
            models,
            status.descriptor,
            *HTTP_ALONE,
            stdout=output,
            pass_fds=[status.descriptor],
        )
    status.inherited()
    status.close()
    try:
        wait_until(lambda: "models loaded" in log.read_text())
    finally:
        server.terminate()
        assert server.wait(60) == 0, log.read_text()
    assert "of 'status_fd' cannot be written" in log.read_text()


def test_lines_may_come_in_pieces():
    status = StatusReader()
    status.update()
    assert not status.listens
    line = b'{"event":"listening","pid":1,"http":["http://h:1"],"grpc":[]}\n{"event":"loaded","ready":true}\n'
    for place in range(len(line)):
        os.write(status.descriptor, line[place : place + 1])
        status.update()
        assert status.listens == (place >= line.index(b"\n"))
    assert (status.http, status.grpc, status.loaded) == ("h:1", "", True)
    status.inherited()
    status.update()  # at the end
    status.close()


def test_a_server_of_a_test_does_not_wait_for_a_model_that_cannot_be_loaded(tmp_path):
    (tmp_path / "broken.py").write_text("def broken(x): return 1 / 0\n\n1 / 0\n")
    with pytest.raises(
        ServerFailed, match="a model cannot be loaded, so the server is not ready"
    ) as raised:
        Server(tmp_path / "broken.py", start_timeout=3600).start()
    assert "ZeroDivisionError" in str(raised.value)
