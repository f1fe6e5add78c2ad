"""A value that no answer can carry is refused when a handler sets it, and the log shows the handler's line."""

import json

import grpc
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import infer_request, stub_infer

SETTERS = {
    "header with a line break": r'batch.set_header(0, "x-a", "1\r\nx-b: 2")',
    "header above latin-1": r'batch.set_header(0, "x-a", "\u20ac")',
    "header with NUL": r'batch.set_header(0, "x-a", "\0")',
    "header without a name": 'batch.set_header(0, "", "1")',
    "header with a space in its name": 'batch.set_header(0, "x a", "1")',
    "failure with half a pair": r'batch.fail(0, "\ud800", 422)',
    "error with half a pair": r'raise InferenceError("\udc80", 422)',
    "error with a line break": r'raise InferenceError("no", 422, {"x-a": "1\n"})',
    "parameter of 71 bits": 'batch.set_parameter(0, "p", 2**70)',
    "parameter below 64 bits": 'batch.set_parameter(0, "p", -(2**63) - 1)',
    "parameter with half a pair": r'batch.set_parameter(0, "p", "\ud800")',
    "name with half a pair": r'batch.set_parameter(0, "\ud800", 1)',
    "name that is not text": "batch.set_parameter(0, 5, 1)",
}
WRITES = {
    "parameter None": 'batch.parameters[0] = {"p": None}',
    "parameter that is a list": 'batch.parameters.setdefault(0, {})["p"] = [1, 2]',
    "parameter of nobody": 'batch.parameters[5] = {"p": 1}',
    "parameter below nobody": 'batch.parameters[-1] = {"p": 1}',
    "written parameter of 71 bits": 'batch.parameters[0] = {"p": 2**70}',
    "written parameter with half a pair": r'batch.parameters[0] = {"p": "\ud800"}',
    "no parameters": "batch.parameters = None",
    "header None": 'batch.headers[0] = {"x-a": None}',
    "written header with a line break": r'batch.headers[0] = {"x-a": "1\r\nx-b: 2"}',
    "header of nobody": 'batch.headers[5] = {"x-a": "1"}',
    "no headers": "batch.headers[0] = None",
    "headers of a name": 'batch.headers["x-a"] = "1"',
    "failure of nobody": 'batch.failures[5] = InferenceError("no")',
    "failure that is a text": 'batch.failures[0] = "no"',
    "failure of another kind": 'batch.failures[0] = ValueError("no")',
}
"""Values that a handler writes into the dicts directly; they are checked once the handler has returned."""
HANDLER = """
from ksrv import BaseHandler, InferenceError


class {}(BaseHandler):
    def inference(self, x):
        batch = self.context.batch
        asked = batch.requests[0].id
{}        return {{"y": x}}
"""
YAML = """
executor: {}
inputs: [{{name: x, datatype: FP32, shape: [-1, 1]}}]
outputs: [{{name: y, datatype: FP32, shape: [-1, 1]}}]
warmup: false
"""
LARGEST = """
import numpy as np
from ksrv import BaseHandler


class Largest(BaseHandler):
    def inference(self, x):
        batch = self.context.batch
        batch.set_parameter(0, "largest", 2**64 - 1)
        batch.set_parameter(0, "smallest", -(2**63))
        batch.set_parameter(0, "text", "\\U0001f600")
        batch.set_header(0, "x-odd", "\\ta\\xe9 ")
        batch.parameters[0]["written"] = np.int64(7)
        batch.headers[np.int64(0)]["x-written"] = np.float64(2.5)
        return {"y": x}
"""


@pytest.fixture(scope="module", params=["inline", "process"])
def server(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    lines = "".join(
        f"        if asked == {name!r}:\n            {code}\n"
        for name, code in (SETTERS | WRITES).items()
    )
    write_model(root, "sets", HANDLER.format("Sets", lines), YAML.format(request.param))
    waits = HANDLER.replace("    def inference", "    async def inference").format("Waits", lines)
    write_model(root, "waits", waits, YAML.format(request.param))
    write_model(root, "largest", LARGEST, YAML.format(request.param))
    with Server(root) as running:
        yield running


@pytest.mark.parametrize("name", SETTERS)
def test_the_log_shows_the_line(server, name):
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    document = {"id": name, "inputs": [entry]}
    answer = requests.post(f"{server.url}/v2/models/sets/infer", json=document, timeout=60)
    kind = "TypeError" if name == "name that is not text" else "ValueError"
    assert answer.status_code == 500
    assert answer.json()["error"] == (
        f"the stage inference of the model sets failed with {kind}; the server's log has its traceback"
    )

    def traceback():
        return server.log.partition(f"(id {name!r})")[2]

    wait_until(lambda: f"{kind}: " in traceback())
    shown = traceback().partition(f"{kind}: ")[0]
    assert "handler.py" in shown
    assert SETTERS[name] in shown


@pytest.mark.parametrize("model", ["sets", "waits"])
@pytest.mark.parametrize("name", WRITES)
def test_invalid_value_in_a_dict_fails_only_its_request(server, name, model):
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    for asked, status in ((name, 500), ("nothing", 200)):
        document = {"id": asked, "inputs": [entry]}
        url = f"{server.url}/v2/models/{model}/infer"
        answer = requests.post(url, json=document, timeout=60)
        assert answer.status_code == status, answer.text
        if status == 500:
            told = answer.json()["error"]
            assert told.startswith(f"the stage outputs of the model {model} failed with "), told
    assert "cannot be read, and was ended" not in server.log


def test_values_at_the_limit_are_sent(server):
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    answer = requests.post(
        f"{server.url}/v2/models/largest/infer", json={"inputs": [entry]}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    found = json.loads(answer.content)["parameters"]
    assert found == {"largest": 2**64 - 1, "smallest": -(2**63), "text": "\U0001f600", "written": 7}
    assert answer.headers["x-odd"].strip() == "a\xe9"
    assert answer.headers["x-written"] == "2.5"
    asked = infer_request("largest", ("x", "FP32", [1, 1]), raw=[bytes(4)])
    with grpc.insecure_channel(server.grpc) as channel:
        told = stub_infer(channel)(asked, timeout=60).parameters
    assert told["largest"].uint64_param == 2**64 - 1
    assert told["smallest"].int64_param == -(2**63)
    assert told["text"].string_param == "\U0001f600"
