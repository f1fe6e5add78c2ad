"""TorchServe's management API: register, list, scale, set the default version, unregister."""

import re

import pytest
import requests

from ksrv.testing import Server
from tests.support.torchserve.archives import archive
from tests.support.wait_until import wait_until

CPU = {"deviceType": "cpu"}
CONTROL = {"Authorization": "Bearer control-token"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("management") / "store"
    folder.mkdir()
    archive(folder, "echo", "seen_handler.py", settings=CPU)
    archive(folder, "joined", "seen_handler.py", settings=CPU | {"batchSize": 3})
    archive(folder, "two", "seen_handler.py", settings=CPU)
    archive(folder, "two", "seen_handler.py", settings=CPU, version="2.0", file_name="two_second")
    return folder


EXPLICIT = {"model_control": "explicit", "load_model": ("echo",), "ready_when": "any"}


@pytest.fixture
def server(store):
    with Server(store, torchserve_api=True, **EXPLICIT) as one:
        yield one


def call(server, method, path, **options):
    answer = requests.request(method, server.url + path, timeout=120, **options)
    return answer.status_code, answer.json()


def versions(server, name):
    status, document = call(server, "GET", f"/models/{name}/all")
    return sorted(one["modelVersion"] for one in document) if status == 200 else []


def test_an_archive_is_registered_listed_asked_and_unregistered(server):
    status, document = call(server, "GET", "/models")
    assert (status, document) == (200, {"models": [{"modelName": "echo", "modelUrl": "echo.mar"}]})
    status, document = call(
        server, "POST", "/models?url=two.mar&initial_workers=1&synchronous=true"
    )
    text = 'Model "two" Version: 1.0 registered with 1 initial workers'
    assert (status, document) == (200, {"status": text})
    assert versions(server, "two") == ["1.0"]
    assert requests.post(f"{server.url}/predictions/two", data="x", timeout=60).ok
    status, document = call(server, "GET", "/models?limit=1")
    assert document["nextPageToken"] == "1" and len(document["models"]) == 1
    status, document = call(server, "GET", "/models?limit=1&next_page_token=1")
    assert document == {"models": [{"modelName": "two", "modelUrl": "two.mar"}]}
    status, document = call(server, "POST", "/models?url=two.mar")
    assert (status, document["type"]) == (409, "ConflictStatusException")
    assert call(server, "DELETE", "/models/two") == (200, {"status": 'Model "two" unregistered'})
    assert requests.post(f"{server.url}/predictions/two", data="x", timeout=60).status_code >= 400
    assert call(server, "POST", "/models", json={"url": "two.mar", "synchronous": True})[0] == 200


def test_versions_have_a_default_that_can_be_set(server):
    assert call(server, "POST", "/models?url=two.mar")[0] == 200
    assert call(server, "POST", "/models?url=two_second.mar")[0] == 200
    assert versions(server, "two") == ["1.0", "2.0"]
    default = call(server, "GET", "/models/two")[1][0]["modelVersion"]
    assert default == "1.0"  # as in TorchServe, the first version stays the default
    status, document = call(server, "PUT", "/models/two/2.0/set-default")
    text = 'Default version successfully updated for model "two" to "2.0"'
    assert (status, document) == (200, {"status": text})
    assert call(server, "GET", "/models/two")[1][0]["modelVersion"] == "2.0"
    status, document = call(server, "DELETE", "/models/two/2.0")
    assert (status, document["type"]) == (403, "InvalidModelVersionException")
    assert call(server, "DELETE", "/models/two/1.0")[0] == 200
    assert versions(server, "two") == ["2.0"]
    assert call(server, "DELETE", "/models/two/2.0")[0] == 200
    assert versions(server, "two") == []


def test_workers_are_scaled(server):
    status, document = call(server, "PUT", "/models/echo?min_worker=2&synchronous=true")
    assert (status, document) == (200, {"status": "Workers scaled to 2 for model: echo"})
    [described] = call(server, "GET", "/models/echo")[1]
    assert (described["minWorkers"], len(described["workers"])) == (2, 2)
    assert call(server, "PUT", "/models/echo/1.0?min_worker=1&max_worker=3")[0] == 202
    assert call(server, "GET", "/models/echo")[1][0]["minWorkers"] == 1


def described(server, name):
    """Return what the description of a model says of its batches and times."""
    [document] = call(server, "GET", f"/models/{name}")[1]
    keys = ("batchSize", "maxBatchDelay", "responseTimeout", "minWorkers")
    return tuple(document[key] for key in keys)


def test_a_call_to_register_sets_batches_and_times_which_last(server):
    query = "batch_size=4&max_batch_delay=50&response_timeout=7&initial_workers=1"
    assert call(server, "POST", f"/models?url=two.mar&{query}")[0] == 202
    assert described(server, "two") == (4, 50, 7, 1)
    assert call(server, "PUT", "/models/two?min_worker=2&synchronous=true")[0] == 200
    assert described(server, "two") == (4, 50, 7, 2)
    assert call(server, "POST", "/models?url=two_second.mar&synchronous=true")[0] == 200
    assert described(server, "two") == (4, 50, 7, 2)
    assert call(server, "PUT", "/models/two/2.0/set-default")[0] == 200
    assert described(server, "two")[0] == 1
    assert call(server, "DELETE", "/models/two/1.0")[0] == 200


def test_an_archive_keeps_the_batches_that_it_sets(store, server):
    assert call(server, "POST", "/models?url=joined.mar&batch_size=4&max_batch_delay=9")[0] == 200
    assert described(server, "joined")[:2] == (3, 100)


@pytest.mark.parametrize(
    ("method", "path", "status", "told"),
    [
        ("POST", "/models", 400, "Parameter url is required."),
        ("POST", "/models?url=absent.mar", 404, "Model not found at: absent.mar"),
        ("POST", "/models?url=http://x.org/a.mar", 404, "does not match any allowed URL(s)"),
        ("POST", "/models?url=../x.mar", 404, "Relative path is not allowed in url: ../x.mar"),
        ("POST", "/models?url=/etc/x.mar", 404, "Relative path is not allowed"),
        ("POST", "/models?url=two.mar&model_name=other", 400, "manifest names the model 'two'"),
        ("POST", "/models?url=two.mar&handler=a.py", 400, "handler comes from the archive"),
        ("POST", "/models?url=two.mar&batch_size=0", 400, "batch_size must be at least 1"),
        (
            "POST",
            "/models?url=two.mar&startup_timeout=0",
            400,
            "startup_timeout must be at least 1",
        ),
        ("POST", "/models?url=two.mar&batch_size=x", 400, "batch_size must be a whole number"),
        ("POST", "/models?url=two.mar&batch_size=1000001", 400, "at most 1000000"),
        ("POST", "/models?url=two.mar&response_timeout=2147484", 400, "at most 2147483"),
        ("POST", "/models?url=two.mar&max_batch_delay=-1", 400, "must be a whole number"),
        ("POST", "/models?url=two.mar&initial_workers=-1", 400, "must be a whole number"),
        ("POST", "/models?url=two.mar&initial_workers=1025", 400, "must be from 0 to 1024"),
        ("POST", "/models?url=two.mar&initial_workers=10000000000", 400, "must be a whole number"),
        ("POST", "/models?url=two.mar&worker=1", 400, "'worker' is unknown"),
        ("GET", "/models?limit=x", 400, "limit must be a whole number"),
        ("PUT", "/models/nope?min_worker=1", 404, "Model not found: nope"),
        ("PUT", "/models/echo/9.0?min_worker=1", 404, "Model version: 9.0 does not exist"),
        ("PUT", "/models/echo?min_worker=0", 400, "must be from 1 to 1024"),
        ("PUT", "/models/echo?min_worker=9999", 400, "must be from 1 to 1024"),
        ("PUT", "/models/echo?min_worker=3&max_worker=2", 400, "below min_worker"),
        ("PUT", "/models/echo/9.0/set-default", 404, "does not exist"),
        ("DELETE", "/models/nope", 404, "Model not found: nope"),
        ("DELETE", "/models/echo/9.0", 404, "does not exist"),
    ],
)
def test_what_cannot_be_done_is_told_in_torchserves_form(shared, method, path, status, told):
    found, document = call(shared, method, path)
    assert (found, document["code"]) == (status, status)
    assert told in document["message"]


@pytest.fixture(scope="module")
def shared(store):
    with Server(store, torchserve_api=True, **EXPLICIT) as one:
        yield one


def expect_audited(server, record):
    wait_until(lambda: re.search(f"ksrv.audit: {record}", server.log) is not None)


def test_changes_need_the_control_token(store):
    tokens = store.parent / "control"
    tokens.write_text("control-token\n")
    with Server(
        store, torchserve_api=True, control_token_file=str(tokens), ready_when="any"
    ) as server:
        changes = [
            ("POST", "/models?url=absent.mar", 404, "register 'absent.mar'"),
            ("PUT", "/models/echo?min_worker=1", 202, "scale 'echo'"),
            ("DELETE", "/models/nope", 404, "unregister 'nope'"),
            ("PUT", "/models/echo/1.0/set-default", 200, "set-default 'echo'"),
        ]
        for method, path, status, record in changes:
            assert call(server, method, path)[0] == 401, path
            assert call(server, method, path, headers=CONTROL)[0] == status, path
            expect_audited(server, f"{record} by 127.0.0.1 over HTTP: 401")
            expect_audited(server, f"{record} by 127.0.0.1 .*over HTTP: {status}")
        assert call(server, "POST", "/models", headers=CONTROL, json={"url": "no.mar"})[0] == 404
        expect_audited(server, "register 'no.mar' by 127.0.0.1 .*over HTTP: 404")
        assert call(server, "GET", "/models")[0] == 200


def test_a_server_without_model_control_changes_nothing(store):
    with Server(store, torchserve_api=True, model_control="none") as server:
        for method, path in (("POST", "/models?url=echo.mar"), ("DELETE", "/models/echo")):
            status, document = call(server, method, path)
            assert status in (403, 409), document
