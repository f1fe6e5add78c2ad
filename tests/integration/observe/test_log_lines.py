"""Texts of clients and handlers in the log: quoted, one line a record, no control characters."""

import base64
import json
import re
import socket

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import VECTOR, write_model
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import infer_message, read_answer

FORGED = "2026-01-01 00:00:00,000 [1] ERROR ksrv.engine: forged"
EVIL = f"a\n{FORGED}\r\x1b[2J\x1b]0;t\x07\u2028{FORGED}\x9b1m\x7f"

FAILS = """
import logging
import sys

from ksrv import BaseHandler


class Fails(BaseHandler):
    def preprocess(self, batch):
        text = batch.requests[0].parameters["text"]
        logging.getLogger("ksrv.mine").warning("saw %s", text)
        raise ValueError(f"cannot read {text}")
"""


@pytest.fixture(scope="module")
def logging_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    write_model(folder, "inline", FAILS, VECTOR + "warmup: false\n")
    write_model(folder, "isolated", FAILS, VECTOR + "warmup: false\nexecutor: process\n")
    with Server(folder, grpc="off", access_log=True, torchserve_api=True) as running:
        yield running


def lines_of(server):
    """The lines of the log behind the table that is printed on standard output."""
    return server.log.split("\n")


def check_lines(server):
    for line in lines_of(server):
        assert line.isprintable(), ascii(line)
        assert not line.startswith(FORGED)


@pytest.mark.parametrize("model", ["inline", "isolated"])
def test_a_failing_request_is_told_of_in_quotes(logging_server, model):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    document = {"id": EVIL, "parameters": {"text": EVIL}, "inputs": [tensor]}
    url = f"{logging_server.url}/v2/models/{model}/infer"
    assert requests.post(url, data=json.dumps(document)).status_code == 500
    told = re.compile(
        rf"{model} failed in preprocess with ValueError: .*; requests: [0-9a-f-]{{36}} \(id 'a\\n2026"
    )
    wait_until(lambda: told.search(logging_server.log))
    wait_until(lambda: "ValueError: cannot read" in logging_server.log)
    check_lines(logging_server)


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2", "/v2/models/inline/infer"])
def test_a_user_name_in_the_access_log(logging_server, path):
    user = base64.b64encode(f"{EVIL}:password".encode()).decode()
    seen = len(lines_of(logging_server))
    requests.get(logging_server.url + path, headers={"Authorization": f"Basic {user}"})
    wait_until(lambda: any(path in line for line in lines_of(logging_server)[seen - 1 :]))
    check_lines(logging_server)


def test_a_user_name_of_a_request_that_the_http_server_served(logging_server):
    user = base64.b64encode(f"{EVIL}:password".encode()).decode()
    host, port = logging_server.http.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(infer_message("nope", None, f"Authorization: Basic {user}"))
        assert read_answer(connection).status == 404
    wait_until(lambda: "/v2/models/nope/infer" in logging_server.log)
    check_lines(logging_server)


def test_names_in_paths(logging_server):
    for path in ("/v2/models/%0a%1b[2J/infer", "/predictions/%E2%80%A8x", "/v2/repository/models/x%0d/load"):  # fmt: skip
        requests.post(logging_server.url + path, data=b"{}")
    wait_until(lambda: "x%0D/load" in logging_server.log)
    check_lines(logging_server)


PRINTS = """
import warnings

from ksrv import BaseHandler


class Prints(BaseHandler):
    def inference(self, x):
        print("two\\nlines")
        warnings.warn("careful")
        return x
"""


@pytest.mark.differs_in_processes("lines of a process begin with its name")
def test_every_line_of_a_json_log_is_a_record(tmp_path):
    write_model(tmp_path, "prints", PRINTS, VECTOR + "warmup: false\n")
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    with Server(tmp_path, access_log=True, log_format="json") as server:
        url = f"{server.url}/v2/models/prints/infer"
        assert requests.post(url, json={"inputs": [tensor]}, timeout=30).ok
        wait_until(lambda: '"path":"/v2/models/prints/infer"' in server.log)
        http = server.http
    records = [json.loads(line) for line in server.log.splitlines()]
    messages = [record["message"] for record in records]
    assert f"HTTP  http://{http}" in messages
    assert {"two", "lines"} <= set(messages)
    assert any("careful" in message for message in messages)
