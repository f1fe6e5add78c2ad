"""`--model-control`: which models are loaded at the start, what calls may change, and the audit log of such calls."""

import http.client
import json
import os
import shutil

import grpc
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import ECHO, VECTOR, write_model
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import call
from tests.support.wire.http_reader import double_body

pytestmark = pytest.mark.long

CALLS = "/v2/repository/models"


@pytest.fixture
def models(tmp_path):
    for name in ("a", "b", "c"):
        write_model(tmp_path / "models", name, ECHO, VECTOR)
    return tmp_path / "models"


def states(server):
    answer = requests.post(server.url + "/v2/repository/index", timeout=30)
    return {entry["name"]: entry["state"] for entry in answer.json()}


def ready(server):
    return {name for name, state in states(server).items() if state == "READY"}


def test_explicit_control_loads_named_models_and_models_of_calls(models):
    with Server(models, model_control="explicit", load_model=["a"]) as server:
        assert ready(server) == {"a"}
        assert requests.get(f"{server.url}/v2/models/b/ready", timeout=30).status_code == 503
        assert requests.post(f"{server.url}{CALLS}/b/load", timeout=30).status_code == 200
        assert requests.post(f"{server.url}{CALLS}/a/unload", timeout=30).status_code == 200
        assert ready(server) == {"b"}
        write_model(models, "d", ECHO, VECTOR)
        answer = requests.post(f"{server.url}/v1/config/reload", timeout=30)
        assert answer.status_code == 403
        assert "--model-control is 'explicit'" in answer.json()["error"]
        assert requests.post(f"{server.url}{CALLS}/d/load", timeout=30).status_code == 200
        assert ready(server) == {"b", "d"}


def test_explicit_control_without_names_loads_nothing_and_a_star_all(models):
    with Server(models, model_control="explicit") as server:
        assert ready(server) == set()
    with Server(models, model_control="explicit", load_model=["*"]) as server:
        assert ready(server) == {"a", "b", "c"}


def test_unknown_model_to_load_is_reported(models):
    with Server(models, model_control="explicit", load_model=["a", "z"]) as server:
        assert ready(server) == {"a"}
        assert "setting 'load_model': the repository holds no model 'z'" in server.log


@pytest.mark.parametrize("control", ["none", "poll"])
def test_calls_are_refused(models, control):
    with Server(models, model_control=control) as server:
        assert ready(server) == {"a", "b", "c"}
        for path in (f"{CALLS}/a/load", f"{CALLS}/a/unload", "/v1/config/reload"):
            answer = requests.post(server.url + path, timeout=30)
            assert answer.status_code == 403
            assert f"--model-control is '{control}'" in answer.json()["error"]
        with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.RpcError) as refused:
            call(channel, "RepositoryModelUnload", model_name="a")
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert ready(server) == {"a", "b", "c"}


def answer(server):
    """Return the first number that the model answers; the server is ready meanwhile."""
    assert server.get("/v2/health/ready")[0] == 200
    found = requests.post(f"{server.url}/v2/models/m/infer", double_body(), timeout=30)
    assert found.status_code == 200
    return found.json()["outputs"][0]["data"][0]


def test_a_store_whose_folder_is_switched_atomically(tmp_path):
    for number in (1, 2):
        source = ECHO.replace('{"y": x}', f'{{"y": x * 0 + {number}}}')
        write_model(tmp_path / f"store-{number}", "m", source, VECTOR)
    for folder in tmp_path.glob("store-*"):
        for path in (*folder.rglob("*"), folder):
            path.chmod(0o555 if path.is_dir() else 0o444)
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "store-1")
    try:
        with Server(link, model_control="poll", poll_interval=0.1) as server:
            assert answer(server) == 1
            (tmp_path / "next").symlink_to(tmp_path / "store-2")
            os.replace(tmp_path / "next", link)
            wait_until(lambda: answer(server) == 2)
    finally:
        for path in tmp_path.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(tmp_path)


def test_a_version_that_is_still_being_copied_takes_nothing_away(tmp_path):
    """The version before serves, and the server is ready, until the folder is whole."""
    source = ECHO.replace('{"y": x}', '{"y": x * 0 + NUMBER}')
    folder = write_model(tmp_path, "m", "", VECTOR)
    (folder / "handler.py").unlink()
    (folder / "1").mkdir()
    (folder / "1" / "handler.py").write_text(source.replace("NUMBER", "1"))
    with Server(tmp_path, model_control="poll", poll_interval=0.1) as server:

        def told(count):
            assert answer(server) == 1
            return server.log.count("the model m version 2: ") >= count

        (folder / "2").mkdir()
        wait_until(lambda: told(1))
        (folder / "2" / "handler.py").write_text(source[: len(source) // 2])
        wait_until(lambda: told(2))
        (folder / "2" / "handler.py").write_text(source.replace("NUMBER", "2"))
        wait_until(lambda: answer(server) == 2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"model_control": "none", "poll_interval": 1},
            "nothing is polled with --model-control none",
        ),
        ({"model_control": "explicit", "poll_interval": 1}, "nothing is polled"),
        ({"load_model": ["a"]}, "with --model-control auto all models are loaded"),
        ({"model_control": "often"}, "expected auto, none, poll, explicit or lazy"),
    ],
)
def test_settings_that_contradict_each_other(models, settings, said):
    with pytest.raises(AssertionError, match=said):
        Server(models, **settings).start()


def audit(server, wanted):
    """The audit log's records, once there are so many."""
    found = []

    def look():
        lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
        found[:] = [line for line in lines if line["logger"] == "ksrv.audit"]
        return len(found) >= wanted

    wait_until(look)
    assert len(found) == wanted
    return found


@pytest.mark.parametrize("carrier", ["native", "grpcio"])
def test_the_audit_log(models, tmp_path, carrier):
    tokens = tmp_path / "control"
    tokens.write_text("secret-token\n")
    settings = {"control_token_file": str(tokens), "log_format": "json", "grpc_server": carrier}
    with Server(models, **settings) as server:
        good = {"Authorization": "Bearer secret-token", "X-Request-ID": "audited"}
        requests.post(f"{server.url}{CALLS}/a/unload", headers=good, timeout=30)
        requests.post(f"{server.url}{CALLS}/nope/load", headers=good, timeout=30)
        requests.post(
            f"{server.url}{CALLS}/a/load", headers={"Authorization": "Bearer no"}, timeout=30
        )
        requests.post(server.url + "/v1/config/reload", timeout=30)
        metadata = [("authorization", "Bearer secret-token")]
        with grpc.insecure_channel(server.grpc) as channel:
            call(channel, "RepositoryModelLoad", model_name="a", metadata=metadata)
            with pytest.raises(grpc.RpcError):
                call(channel, "RepositoryModelUnload", model_name="a")
        requests.post(server.url + "/v2/repository/index", timeout=30)  # which changes nothing
        found = audit(server, 6)
        shown = [(one["action"], one["subject"], one["outcome"], one["protocol"]) for one in found]
        assert shown[0] == ("unload", "a", "200", "HTTP")
        assert shown[1] == ("load", "nope", "404", "HTTP")
        assert shown[-2:] == [
            ("RepositoryModelLoad", "a", "OK", "gRPC"),
            ("RepositoryModelUnload", "", "UNAUTHENTICATED", "gRPC"),
        ]
        assert ("reload", "", "401", "HTTP") in shown
        assert (found[0]["request_id"], found[0]["peer"]) == ("audited", "127.0.0.1")
        assert found[0]["token_digest"] == found[1]["token_digest"] != ""
        assert "secret-token" not in server.log


@pytest.mark.parametrize("carrier", ["native", "grpcio"])
def test_a_call_with_two_authorizations_leaves_a_record(models, tmp_path, carrier):
    tokens = tmp_path / "control"
    tokens.write_text("secret-token\n")
    settings = {"control_token_file": str(tokens), "log_format": "json", "grpc_server": carrier}
    given = [("authorization", "Bearer secret-token"), ("authorization", "Bearer other")]
    with Server(models, **settings) as server:
        connection = http.client.HTTPConnection(*server.http.split(":"), timeout=30)
        connection.putrequest("POST", f"{CALLS}/a/unload")
        for name, value in [*given, ("Content-Length", "0")]:
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 401
        with (
            grpc.insecure_channel(server.grpc) as channel,
            pytest.raises(grpc.RpcError, match="more than one 'authorization'"),
        ):
            call(channel, "RepositoryModelUnload", model_name="a", metadata=given)
        shown = [(one["action"], one["outcome"], one["protocol"]) for one in audit(server, 2)]
        assert shown == [
            ("unload", "401", "HTTP"),
            ("RepositoryModelUnload", "UNAUTHENTICATED", "gRPC"),
        ]
