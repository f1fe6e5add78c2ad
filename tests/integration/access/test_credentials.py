"""Credentials: which address needs them, and which calls."""

import http.client
import subprocess
import sys

import grpc
import pytest
import requests

from ksrv.testing import Server
from tests.support.clients.forwarded_headers import NO_PROXY_HEADERS, PROXY_HEADERS
from tests.support.models import VECTOR, write_model
from tests.support.wire.grpc_calls import row_request, stub_infer

SEEN = """
from ksrv import BaseHandler


class Seen(BaseHandler):
    def preprocess(self, batch):
        self.seen = any("authorization" in request.headers for request in batch.requests)
        return super().preprocess(batch)

    def inference(self, x):
        return {"y": x * 0 + self.seen}
"""
TOKEN = {"Authorization": "Bearer good-token"}


@pytest.fixture(scope="module")
def guarded(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "tokens").write_text("good-token\n")
    (folder / "control").write_text("control-token\n")
    files = {
        "token_file": str(folder / "tokens"),
        "control_token_file": str(folder / "control"),
    }
    with Server(repository, http="0.0.0.0:0", grpc="off", **files) as running:
        running.http = running.http.replace("0.0.0.0", "127.0.0.1")
        yield running


@pytest.mark.parametrize(
    ("sent", "challenge", "says"),
    [
        ({}, "Bearer", ", but the request has no 'Authorization'"),
        ({"Authorization": "x"}, "Bearer", ", but the header 'Authorization' has another form"),
        (
            {"Authorization": "Bearer"},
            "Bearer",
            ", but the header 'Authorization' has another form",
        ),
        (
            {"Authorization": "Basic good-token"},
            "Bearer",
            ", but the header 'Authorization' has another form",
        ),
        (
            {"Authorization": "Bearer bad"},
            'Bearer error="invalid_token"',  # RFC 6750 3.1
            ", but the token is wrong",
        ),
    ],
)
def test_refusal_without_a_token_names_the_cause(guarded, sent, challenge, says):
    answer = requests.get(f"{guarded.url}/v2", headers=sent)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == challenge
    error = answer.json()["error"]
    assert " needs 'Authorization: Bearer TOKEN' with " in error and error.endswith(says)
    assert "bad" not in error and "good" not in error


def test_control_call_refuses_a_users_token_like_a_strangers(guarded):
    load = f"{guarded.url}/v2/repository/models/double/load"
    answers = [
        requests.post(load, headers={"Authorization": f"Bearer {token}"})
        for token in ("good-token", "a-guess")
    ]
    assert answers[0].text == answers[1].text
    assert answers[0].headers["WWW-Authenticate"] == answers[1].headers["WWW-Authenticate"]


@pytest.mark.parametrize("worker_class", [None, "gthread"])
def test_a_call_through_a_proxy_changes_nothing(repository, worker_class):
    settings = {} if worker_class is None else {"worker_class": worker_class}
    with Server(repository, grpc="off", **settings) as running:
        load = f"{running.url}/v2/repository/models/double/load"
        assert requests.post(load).status_code == 200
        for name in PROXY_HEADERS:
            assert requests.post(load, headers={name: "198.51.100.7"}).status_code == 403, name
        for name in NO_PROXY_HEADERS:
            assert requests.post(load, headers={name: "a"}).status_code == 200, name


def test_a_mesh_calls_from_another_address_of_loopback(repository):
    """Istio's proxy connects to the app from 127.0.0.6."""
    with Server(repository, grpc="off") as running:
        host, port = running.http.split(":")
        for source, status in (("127.0.0.1", 200), ("127.0.0.6", 403)):
            connection = http.client.HTTPConnection(host, int(port), source_address=(source, 0))
            connection.request("POST", "/v2/repository/models/double/load")
            assert connection.getresponse().status == status
            connection.close()


@pytest.mark.parametrize(
    ("carrier", "executor"), [("native", "inline"), ("native", "process"), ("grpcio", "inline")]
)
def test_no_handler_sees_a_token_that_the_server_checks(tmp_path, carrier, executor):
    """Over every route to a handler, with each of the two files alone."""
    write_model(tmp_path / "models", "seen", SEEN, VECTOR + f"executor: {executor}\n")
    (tmp_path / "tokens").write_text("secret\n")
    token = {"Authorization": "Bearer secret"}
    for setting in ("control_token_file", "token_file"):
        files = {setting: str(tmp_path / "tokens")}
        with Server(tmp_path / "models", grpc_server=carrier, **files) as running:
            url = f"{running.url}/v2/models/seen"
            entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}
            for sent in ({"inputs": [entry]}, {"inputs": [entry], "parameters": {"custom": "a"}}):
                answer = requests.post(f"{url}/infer", json=sent, headers=token, timeout=30)
                assert answer.json()["outputs"][0]["data"] == [0, 0, 0, 0], (setting, sent)
            with grpc.insecure_channel(running.grpc) as channel:
                metadata = [("authorization", "Bearer secret")]
                for fields in ({}, {"parameters": {"custom": "a"}}):
                    request = row_request("seen", **fields)
                    answer = stub_infer(channel)(request, metadata=metadata, timeout=30)
                    assert answer.raw_output_contents[0] == bytes(16), (setting, fields)


@pytest.mark.parametrize("flag", ["--http", "--grpc"])
def test_a_wide_address_without_credentials_is_refused(repository, flag):
    command = [sys.executable, "-m", "ksrv", "serve", str(repository), flag, "0.0.0.0:0"]
    other = "--grpc" if flag == "--http" else "--http"
    done = subprocess.run(
        [*command, other, "127.0.0.1:0"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "--insecure" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wide_address_is_served_with_the_explicit_word(repository):
    with Server(repository, http="0.0.0.0:0", grpc="off", insecure=True) as running:
        running.http = running.http.replace("0.0.0.0", "127.0.0.1")
        assert running.get("/v2")[0] == 200
