"""All routes except infer: health, metadata, configuration, statistics, repository calls."""

import json
import shutil

import httpx
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_broken, write_double, write_echo
from tests.support.wait_until import wait_until


@pytest.fixture
def changing(tmp_path):
    """A server whose repository the test may modify."""
    write_double(tmp_path)
    write_broken(tmp_path)
    with Server(tmp_path, wait_ready=False, grpc="off") as running:
        wait_until(lambda: "models loaded" in running.log, tell=lambda: running.log)
        yield running, tmp_path


def get(server, path):
    return requests.get(server.url + path)


def post(server, path, document=None):
    data = b"" if document is None else json.dumps(document)
    return requests.post(server.url + path, data=data)


@pytest.mark.parametrize(
    "path", ["/v2/models/nope", "/v2/models/double/versions/9", "/v2/models/nope/ready",
             "/v2/models/nope/config", "/v2/models/nope/stats", "/v2/zzz", "/ui/", "/v3",
             "/v2/models/double/nope", "/v2/models/a/b/c", "/v2/models/..%2f..%2fetc"],
)  # fmt: skip
def test_unknown_path_is_404_with_a_json_error(server, path):
    answer = get(server, path)
    assert answer.status_code == 404
    assert answer.headers["Content-Type"].startswith("application/json")
    assert 0 < len(answer.json()["error"]) <= 1024


@pytest.mark.parametrize("path", ["/v2/models/double", "/v2/models/double/versions/1"])
def test_405_of_a_model_names_infer(server, path):
    answer = post(server, path, {})
    assert answer.status_code == 405
    assert answer.json()["error"].endswith("; to infer, add /infer to the path")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v2/model/double", "did you mean /v2/models/{name}?"),
        ("/v2/models/double/infr", "did you mean /v2/models/{name}/infer?"),
        ("/predict", "called at /v2/models/{name}/infer, or /v1/models/{name}:predict"),
        ("/v2/models/double/predict", "called at /v2/models/{name}/infer"),
        ("/infer", "did you mean /v2/models/{name}/infer?"),
        ("/health/live", "did you mean /v2/health/live?"),
        ("/v2/models/duoble/infer", "'duoble' is not found (did you mean double?)"),
        ("/predictions/double", "TorchServe's routes are served with --torchserve-api"),
    ],
)
def test_404_suggests_the_nearest_route(server, path, meant):
    answer = post(server, path, {})
    assert answer.status_code == 404
    assert meant in answer.json()["error"]


@pytest.mark.parametrize(
    "path", ["/nothing/like/it", "/v2/repository/models/double/laod", "/" + "v" * 3000]
)
def test_not_found_does_not_suggest_distant_or_operator_routes(server, path):
    answer = post(server, path, {})
    assert answer.status_code == 404
    assert "mean" not in answer.json()["error"]


def test_names_are_percent_decoded_once(server):
    assert get(server, "/v2/models/d%6Fuble").status_code == 200
    assert get(server, "/v2/models/d%256Fuble").status_code == 404
    error = get(server, "/v2/models/" + "%22%0a" * 500).json()["error"]
    assert "\n" not in error and len(error) < 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v2/health/live", "GET"),
        ("GET", "/v2/models/double/infer", "POST"),
        ("PUT", "/v2/repository/index", "POST"),
        ("DELETE", "/v1/config", "GET, HEAD"),
        ("HEAD", "/v2/models/double/infer", "POST"),
    ],
)
def test_wrong_method_is_405_with_allow_header(server, method, path, allowed):
    answer = requests.request(method, server.url + path)
    assert answer.status_code == 405
    assert allowed in answer.headers["Allow"]
    assert method == "HEAD" or allowed in answer.json()["error"]


@pytest.mark.parametrize(
    "path",
    ["/v2", "/v2/health/live", "/v2/health/ready", "/v2/models", "/v2/models/double",
     "/v2/models/double/ready", "/v2/models/double/config", "/v2/models/stats", "/v1/models",
     "/v1/models/double", "/v1/config", "/v2/logging", "/v2/trace/setting", "/openapi.json", "/",
     "/v2/models/nope", "/v2/zzz"],
)  # fmt: skip
def test_a_head_is_answered_like_a_get_without_its_body(server, path):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        whole, head = client.get(path), client.head(path)
    assert head.status_code == whole.status_code
    assert head.content == b"" and whole.content
    changing = {"date", "x-request-id"}
    assert head.headers.keys() == whole.headers.keys()
    for name in whole.headers.keys() - changing:
        assert head.headers[name] == whole.headers[name], name


def test_metrics_can_be_switched_off(repository):
    with Server(repository, metrics=False, grpc="off") as running:
        assert get(running, "/metrics").status_code == 404


def test_the_index_lists_states_and_reasons(changing):
    server, _ = changing
    states = {entry["name"]: entry for entry in post(server, "/v2/repository/index").json()}
    assert states == {e["name"]: e for e in post(server, "/v2/repository/index", {}).json()}
    assert states["double"]["state"] == "READY"
    assert states["broken"]["state"] == "UNAVAILABLE"
    assert "the weights are gone" in states["broken"]["reason"]
    ready = post(server, "/v2/repository/index", {"ready": True}).json()
    assert [entry["name"] for entry in ready] == ["double"]
    assert get(server, "/v2/models/broken/ready").status_code == 503
    infer = post(server, "/v2/models/broken/infer", {})
    assert infer.status_code == 503
    assert infer.headers["Retry-After"]
    health = get(server, "/v2/health/ready")
    assert (health.status_code, health.json()["ready"]) == (503, False)


@pytest.mark.parametrize(
    "document", [{"ready": "x"}, {"ready": 1}, [], "x", {"a": json.loads("[" * 80 + "]" * 80)}]
)
def test_a_bad_index_call_is_400(server, document):
    answer = post(server, "/v2/repository/index", document)
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_models_are_unloaded_and_loaded(changing):
    server, root = changing
    assert post(server, "/v2/repository/models/double/unload").status_code == 200
    assert get(server, "/v2/models/double/ready").status_code == 503
    assert post(server, "/v2/repository/models/double/load", {}).status_code == 200
    assert get(server, "/v2/models/double/ready").status_code == 200
    write_echo(root)
    assert post(server, "/v2/repository/models/echo/load", {"parameters": {}}).status_code == 200
    assert get(server, "/v2/models/echo").status_code == 200
    assert post(server, "/v2/repository/models/nope/load").status_code == 404
    failed = post(server, "/v2/repository/models/broken/load")
    assert failed.status_code >= 400
    assert "the weights are gone" in failed.json()["error"]


@pytest.mark.parametrize(
    "parameters", [{"config": "{}"}, {"file:1/model.onnx": "aGk="}, {"unload_dependents": 1}, [1]]
)
def test_load_call_accepts_no_files(server, parameters):
    answer = post(server, "/v2/repository/models/double/load", {"parameters": parameters})
    assert answer.status_code == 400
    assert get(server, "/v2/models/double/ready").status_code == 200


def test_ovms_configuration_calls(changing):
    server, root = changing
    status = get(server, "/v1/config").json()
    (entry,) = status["double"]["model_version_status"]
    assert entry == {
        "version": "1",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": "OK"},
    }
    assert "weights are gone" in json.dumps(status["broken"])
    shutil.rmtree(root / "broken")
    write_echo(root)
    changed = post(server, "/v1/config/reload")
    assert changed.status_code == 201
    assert set(changed.json()) >= {"double", "echo"}
    unchanged = post(server, "/v1/config/reload")
    assert unchanged.status_code == 200
    assert get(server, "/v2/models/echo").status_code == 200
