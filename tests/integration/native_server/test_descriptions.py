"""GETs of server and model descriptions: the native answers equal Python's, and are never outdated."""

import json

import pytest

from ksrv.testing import Server
from tests.support.models import BROKEN, DOUBLE, VECTOR, write_model
from tests.support.native.fast_path import stripped
from tests.support.wire.http_reader import open_connection, read_message

SLOWLY = b"TE: trailers\r\n"
"""A field that has no effect, but that the request-head classifier leaves to Python."""

PATHS = (
    "/v2",
    "/v2/models/double",
    "/v2/models/double/ready",
    "/v2/models/versions",
    "/v2/models/versions/ready",
    "/v2/models/versions/versions/2",
    "/v2/models/versions/versions/1/ready",
    "/v2/models/versions/versions/3",
    "/v2/models/versions/versions/3/ready",
    "/v2/models/nope",
    "/v2/models/nope/ready",
    "/v2/models/stats",
    "/v2/models/broken",
    "/v2/models/broken/ready",
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "double", DOUBLE, VECTOR)
    write_model(folder, "broken", BROKEN, VECTOR)
    for version in ("1", "2"):
        write_model(folder / "versions", version, DOUBLE, VECTOR)
    (folder / "versions" / "model.yaml").write_text("handler: handler.py\n" + VECTOR)
    return folder


@pytest.fixture(scope="module")
def server(repository):
    with Server(repository, ready_when="any") as server:
        yield server


def get(client, path, *fields):
    client.sendall(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + b"".join(fields) + b"\r\n"
    )
    head, body, _ = read_message(client)
    return stripped(head), body


@pytest.mark.parametrize("path", PATHS)
def test_both_paths_answer_equally(server, path):
    with open_connection(server.http) as client:
        fast = get(client, path)
        assert fast == get(client, path, SLOWLY)
    if "stats" not in path:
        with open_connection(server.http) as client:
            assert get(client, path) == fast


def test_an_unloaded_model_is_gone_at_once_and_back_at_once(server):
    control = "/v2/repository/models/double/{}"
    with open_connection(server.http) as client, open_connection(server.http) as other:
        for _ in range(10):
            assert get(client, "/v2/models/double")[0].startswith(b"HTTP/1.1 200 ")
            post(other, control.format("unload"))
            for path in ("/v2/models/double", "/v2/models/double/ready"):
                assert not get(client, path)[0].startswith(b"HTTP/1.1 200 ")
            post(other, control.format("load"))
            for path in ("/v2/models/double", "/v2/models/double/ready"):
                assert get(client, path)[0].startswith(b"HTTP/1.1 200 ")


def post(client, path):
    client.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
    assert read_message(client)[0].startswith(b"HTTP/1.1 200 ")


def test_a_reloaded_model_shows_its_new_version_at_once(tmp_path):
    for version in ("1", "2"):
        write_model(tmp_path / "model", version, DOUBLE, VECTOR)
    (tmp_path / "model" / "model.yaml").write_text(
        "handler: handler.py\nversion_policy: all\n" + VECTOR
    )
    with Server(tmp_path) as server, open_connection(server.http) as client:
        for newest in range(3, 7):
            shown = json.loads(get(client, "/v2/models/model")[1])
            assert shown["versions"] == [str(number) for number in range(1, newest)]
            write_model(tmp_path / "model", str(newest), DOUBLE, VECTOR)
            post(client, "/v2/repository/models/model/load")
            assert get(client, f"/v2/models/model/versions/{newest}/ready")[0].startswith(
                b"HTTP/1.1 200 "
            )


def test_unrenderable_metadata_affects_no_other_model(tmp_path):
    write_model(tmp_path, "double", DOUBLE, VECTOR)
    odd = VECTOR.replace("name: y", 'name: "y\\ud800"')
    write_model(tmp_path, "odd", DOUBLE, odd + "warmup: false\n")
    with Server(tmp_path, ready_when="any") as server, open_connection(server.http) as client:
        assert get(client, "/v2/models/double")[0].startswith(b"HTTP/1.1 200 ")
        post(client, "/v2/repository/models/double/load")
        assert not get(client, "/v2/models/odd")[0].startswith(b"HTTP/1.1 200 ")
        assert get(client, "/v2/models/double")[0].startswith(b"HTTP/1.1 200 ")
        assert "Booting worker" not in server.log.partition("models loaded")[2]
