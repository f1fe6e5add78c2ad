"""Credentials: which address needs them, and which calls."""

import subprocess
import sys

import pytest
import requests

from ksrv.request import FORWARDED
from ksrv.server.workers.banner import OPEN_TO_PROXIES
from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.wire.http_reader import double_body

TOKEN = {"Authorization": "Bearer good-token"}
CONTROL = {"Authorization": "Bearer control-token"}


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


ROUTES = [
    ("GET", "/v2"),
    ("GET", "/v2/models"),
    ("GET", "/v2/models/stats"),
    ("GET", "/v2/models/double"),
    ("GET", "/v2/models/double/ready"),
    ("GET", "/v2/models/double/config"),
    ("GET", "/v2/models/double/stats"),
    ("GET", "/v2/models/double/versions/1"),
    ("POST", "/v2/models/double/infer"),
    ("POST", "/v2/models/double/explain"),
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/repository/models/double/load"),
    ("POST", "/v2/repository/models/double/unload"),
    ("GET", "/v1/config"),
    ("POST", "/v1/config/reload"),
    ("GET", "/metrics"),
    ("GET", "/no/such/route"),
    ("OPTIONS", "/v2"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
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
def test_everything_but_health_needs_a_token(guarded, method, path, sent, challenge, says):
    answer = requests.request(method, guarded.url + path, headers=sent)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == challenge
    error = answer.json()["error"]
    assert " needs 'Authorization: Bearer TOKEN' with " in error and error.endswith(says)
    assert "bad" not in error and "good" not in error


def test_a_control_call_says_as_much_of_a_users_token_as_of_a_strangers(guarded):
    load = f"{guarded.url}/v2/repository/models/double/load"
    answers = [
        requests.post(load, headers={"Authorization": f"Bearer {token}"})
        for token in ("good-token", "a-guess")
    ]
    assert answers[0].text == answers[1].text
    assert answers[0].headers["WWW-Authenticate"] == answers[1].headers["WWW-Authenticate"]


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready"])
def test_health_needs_none(guarded, path):
    assert requests.get(guarded.url + path).status_code == 200
    assert requests.get(guarded.url + path + "/").status_code == 200


def test_the_token_opens_what_does_not_change_things(guarded):
    url = f"{guarded.url}/v2/models/double"
    assert requests.get(url, headers=TOKEN).status_code == 200
    assert requests.post(f"{url}/infer", data=double_body(), headers=TOKEN).status_code == 200
    load = f"{guarded.url}/v2/repository/models/double/load"
    assert requests.post(load, headers=TOKEN).status_code == 401
    assert requests.post(load, headers=CONTROL).status_code == 200


@pytest.mark.differs_by("tls", why="a server with TLS of its own is behind no proxy")
def test_who_a_proxy_on_this_machine_speaks_for_is_told_at_the_start(repository, guarded, tmp_path):
    note = OPEN_TO_PROXIES
    assert note not in guarded.log  # it has a control token
    with Server(repository, grpc="off") as running:
        assert note in running.log
        load = f"{running.url}/v2/repository/models/double/load"
        assert requests.post(load).status_code == 200
        for name in FORWARDED:
            forwarded = {name: "198.51.100.7"}
            assert requests.post(load, headers=forwarded).status_code == 403, name
    key, cert = self_signed(tmp_path)
    with Server(repository, grpc="off", tls_cert=str(cert), tls_key=str(key)) as running:
        assert note not in running.log


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
