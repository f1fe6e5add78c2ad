"""Headers with the names of gateway variables (SCRIPT_NAME, PATH_INFO) have no effect."""

import json
import socket

import pytest
import requests

from ksrv.testing import Server
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import double_body, read_answer


def variables(value):
    return [
        {"SCRIPT_NAME": value},
        {"PATH_INFO": value},
        {"SCRIPT_NAME": value, "PATH_INFO": value},
        {"Script-Name": value},
    ]


@pytest.mark.parametrize("headers", variables("/static") + variables("/v2") + variables("x"))
def test_only_the_request_line_selects_the_route(server, headers):
    assert requests.get(f"{server.url}/v2", headers=headers).json()["name"] == "ksrv"
    infer = f"{server.url}/v2/models/double/infer"
    answer = requests.post(infer, data=double_body(), headers=headers)
    assert answer.json()["outputs"][0]["data"] == [2.0, 4.0, 6.0, 8.0]
    unload = f"{server.url}/static/v2/repository/models/double/unload"
    assert requests.post(unload, headers=headers).status_code == 404
    assert requests.get(f"{server.url}/v2/models/double/ready").json()["ready"]


def test_only_the_request_line_selects_the_route_on_a_unix_socket(tmp_path, repository):
    path = tmp_path / "http.sock"
    with Server(repository, http=f"unix:{path}", grpc="off", wait_ready=False) as running:
        wait_until(path.exists)
        wait_until(lambda: "models loaded" in running.log)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(path))
            connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\nSCRIPT_NAME: /static\r\n\r\n")
            answer = read_answer(connection)
    assert (answer.status, json.loads(answer.body)["name"]) == (200, "ksrv")


def test_schemes_of_a_proxy_that_contradict_each_other_are_refused(server):
    headers = {"X-Forwarded-Proto": "https", "X-Forwarded-Ssl": "off"}
    answer = requests.get(f"{server.url}/metrics", headers=headers)
    assert (answer.status_code, "scheme contradict" in answer.text) == (400, True)
    assert requests.get(f"{server.url}/metrics", headers={"X-Forwarded-Proto": "https"}).ok
