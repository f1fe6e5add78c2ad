"""The server of a replica: start, requests, reload, stop, and death."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from ksrv.ray import server_process
from ksrv.ray.server_process import ServerEnded, ServerProcess
from tests.support.certificates import self_signed
from tests.support.models import BROKEN, ECHO, VECTOR, write_model
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.long

LOCAL = {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0", "drain_delay": 0}


@pytest.fixture
def models(tmp_path):
    write_model(tmp_path / "models", "echo", ECHO, VECTOR)
    return [str(tmp_path / "models")]


@pytest.fixture
def start():
    started = []

    def run(models, **settings):
        server = ServerProcess(models, LOCAL | settings)
        started.append(server)
        server.start(60)
        return server

    yield run
    for server in started:
        server.stop(30)


def test_server_starts_and_stops(start, models):
    server = start(models)
    assert server.http.startswith("127.0.0.1:")
    assert server.grpc.startswith("127.0.0.1:")
    assert json.loads(server.get("/v2/models/echo"))["name"] == "echo"
    server.check()
    server.stop(30)
    with pytest.raises(ServerEnded, match="status 0"):
        server.check()
    assert not server.ready()
    server.stop(30)


@pytest.mark.parametrize(
    ("settings", "http", "grpc"),
    [
        ({"grpc": "off"}, True, False),
        ({"http": "off"}, False, True),
    ],
)
def test_addresses_that_are_off_or_one(start, models, settings, http, grpc):
    server = start(models, **settings)
    assert (bool(server.http), bool(server.grpc)) == (http, grpc)
    assert server.ready()
    server.check()


def test_the_metrics_of_a_server_with_a_token(start, models, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("# a comment\n\nthe-token\n", encoding="utf-8-sig")
    server = start(models, token_file=str(tokens))
    assert b"ksrv_pending_requests" in server.get("/metrics")
    for text in ("", "# no token yet\n"):  # while the file is replaced
        tokens.write_text(text)
        server.check()
        with pytest.raises(OSError, match="401"):
            server.get("/metrics")
    tokens.unlink()
    server.check()
    with pytest.raises(OSError):
        server.get("/metrics")


def test_the_proxy_of_the_environment_is_not_asked(start, models, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    start(models).check()


def test_used_port_fails_the_start(models):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name in ("http", "grpc"):
            server = ServerProcess(models, LOCAL | {name: f"127.0.0.1:{port}"})
            with pytest.raises(ServerEnded, match=rf"status [1-9](.|\n)*{port}"):
                server.start(60)


HOLDS_OUTPUT = """
import subprocess

from ksrv import BaseHandler


class HoldsOutput(BaseHandler):
    def initialize(self, context):
        self.child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print("child", self.child.pid, flush=True)

    def inference(self, x):
        return {"y": x}
"""


def test_death_is_seen_with_open_output(tmp_path, start, capfd):
    write_model(tmp_path / "models", "echo", HOLDS_OUTPUT, VECTOR)
    server = start([str(tmp_path / "models")])
    child = int(re.search(r"child (\d+)", capfd.readouterr().err)[1])
    try:
        os.killpg(server.pid, signal.SIGKILL)
        wait_until(lambda: not alive(server.pid))
        with pytest.raises(ServerEnded, match="status -9"):
            server.check()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("for_clients", [False, True])
def test_server_with_tls_is_reached(start, models, tmp_path, for_clients):
    key, certificate = self_signed(tmp_path / "certificates")
    settings = {"tls_cert": str(certificate), "tls_key": str(key)}
    if for_clients:
        settings["tls_client_ca"] = str(certificate)
    server = start(models, **settings)
    assert server.url.startswith("https://")
    assert server.ready()
    server.check()
    if for_clients:
        with pytest.raises(OSError):
            server.get("/v2/health/live")
        return
    before = peer_certificate(server)
    self_signed(tmp_path / "certificates")  # renewed; not read yet by the server
    server.check()
    certificate.rename(tmp_path / "elsewhere")
    server.check()
    (tmp_path / "elsewhere").rename(certificate)
    server.reload()
    wait_until(lambda: peer_certificate(server) != before)
    server.check()
    certificate.write_text("no certificate")
    server.check()


def peer_certificate(server):
    host, _, port = server.http.rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


def test_refusal_of_metadata_without_token(start, models, tmp_path):
    (tmp_path / "tokens").write_text("the-token\n")
    server = start(models, token_file=str(tmp_path / "tokens"))
    status, body = server.refusal(None, "192.0.2.1")
    assert (status, "Authorization" in json.loads(body)["error"]) == (401, True)
    assert server.refusal("Bearer another", "192.0.2.1")[0] == 401
    assert server.refusal("Bearer the-token", "192.0.2.1") is None


def test_unreadable_certificate_fails_the_start(tmp_path):
    for path in (tmp_path / "missing", Path(__file__)):
        with pytest.raises(OSError):
            ServerProcess([], {"tls_cert": str(path)}).tls_context()


def test_unloadable_models_fail_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(server_process, "SETTLE_SECONDS", 0.2)
    write_model(tmp_path, "broken", BROKEN, VECTOR)
    server = ServerProcess([str(tmp_path)], LOCAL)
    with pytest.raises(ServerEnded, match=r"did not get ready(.|\n)*the weights are gone"):
        server.start(600)
    assert not server.ready()


PRINTS_A_TABLE = """
from pathlib import Path
from time import sleep

from ksrv import BaseHandler


class PrintsATable(BaseHandler):
    def initialize(self, context):
        print("HTTP  http://192.0.2.1:1", flush=True)
        print("model  version  handler", flush=True)
        sleep(0.5)
        (Path(__file__).parent / "loaded").touch()

    def inference(self, x):
        return {"y": x}
"""


def test_handler_output_is_not_parsed(tmp_path, start):
    folder = write_model(tmp_path / "models", "echo", PRINTS_A_TABLE, VECTOR)
    server = start([str(tmp_path / "models")], http="off")
    assert (folder / "loaded").exists()
    assert server.http == "" and server.ready()


def test_slow_models_fail_the_start(models):
    server = ServerProcess(models, LOCAL)
    with pytest.raises(ServerEnded, match=r"is not ready after 0 s"):
        server.start(0)
    assert not server.ready()


PARENT = """
import sys, time
from ksrv.ray.server_process import ServerProcess

server = ServerProcess([sys.argv[1]], {"http": "127.0.0.1:0", "grpc": "off", "drain_delay": 0})
server.start(60)
print(server.pid, flush=True)
time.sleep(600)
"""


def test_a_server_ends_with_the_process_that_started_it(models, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    command = [sys.executable, "-c", PARENT, models[0]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not alive(pid))
    assert list(temporary.iterdir()) == []


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it may end between open and read
        return False
    return state != "Z"
