"""TorchServe's routes with a token: 401 rather than TorchServe's 400, and health without one."""

import pytest
import requests

from ksrv.testing import Server
from tests.support.torchserve.archives import archive

TOKEN = {"Authorization": "Bearer good-token"}
ROUTES = [
    ("POST", "/predictions/echo"),
    ("GET", "/predictions/echo/1.0"),
    ("PUT", "/predictions/echo/1.0/any/path"),
    ("POST", "/explanations/echo"),
    ("POST", "/invocations?model_name=echo"),
    ("POST", "/models/echo/invoke"),
    ("POST", "/echo/predict"),
    ("GET", "/models/echo"),
    ("GET", "/models/echo/all?customized=true"),
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    store = tmp_path_factory.mktemp("guarded") / "store"
    store.mkdir()
    archive(store, "echo", "seen_handler.py", settings={"deviceType": "cpu"})
    (store.parent / "tokens").write_text("good-token\n")
    tokens = str(store.parent / "tokens")
    with Server(store, http="0.0.0.0:0", grpc="off", token_file=tokens, torchserve_api=True) as one:
        one.http = one.http.replace("0.0.0.0", "127.0.0.1")
        yield one


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_needs_the_token(guarded, method, path):
    for wrong, challenge in (
        ({}, "Bearer"),
        ({"Authorization": "Bearer other"}, 'Bearer error="invalid_token"'),
        ({"Authorization": "good-token"}, "Bearer"),
    ):
        answer = requests.request(method, guarded.url + path, headers=wrong, timeout=30)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == challenge
        document = answer.json()
        assert (document["code"], document["type"]) == (401, "InvalidKeyException")
        assert "token" in document["message"]
    assert requests.request(method, guarded.url + path, headers=TOKEN, timeout=30).ok


@pytest.mark.parametrize("path", sorted({path for _, path in ROUTES}))
def test_a_head_runs_no_prediction(guarded, path):
    answer = requests.head(guarded.url + path, headers=TOKEN, timeout=30)
    if path.startswith("/models/echo") and not path.endswith("/invoke"):
        assert answer.status_code == 200
    else:
        assert answer.status_code == 405
        assert answer.headers["Allow"] == "GET, POST, PUT, OPTIONS"
    assert answer.content == b""


def test_ping_needs_none(guarded):
    assert requests.get(f"{guarded.url}/ping", timeout=30).json() == {"status": "Healthy"}


def test_handler_does_not_see_the_token(guarded):
    answer = requests.post(f"{guarded.url}/predictions/echo", headers=TOKEN, timeout=30)
    assert "Authorization" not in answer.json()["headers"]
