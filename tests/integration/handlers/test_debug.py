"""`--debug`: the end of a traceback in answers, and profiles, on loopback only."""

import http.client
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ksrv.client import Client, StatusError
from ksrv.testing import Server
from tests.support.clients.forwarded_headers import PROXY_HEADERS
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.long

HANDLER = """
from ksrv import BaseHandler, Float32, InferenceError

class Faulty(BaseHandler):
    def inference(self, x: Float32[2]) -> Float32[2]:
        if x[0, 0] == 1:
            return self.divide(x)
        if x[0, 0] == 2:
            raise InferenceError("my own words", 422)
        if x[0, 0] == 3:
            import torch

            return torch.from_numpy(x) + 1
        return x

    def divide(self, x):
        return x / undefined
"""
OLD = """
from ts.torch_handler.base_handler import BaseHandler
class Old(BaseHandler):
    def initialize(self, context):
        self.initialized = True
    def handle(self, data, context):
        raise LookupError("no such word")
"""
OUTER = """
from ksrv import BaseHandler, Float32

class Outer(BaseHandler):
    def inference(self, x: Float32[2]) -> Float32[2]:
        parameters = self.context.batch.requests[0].parameters
        called = self.context.models["faulty"].submit({"x": x}, parameters=parameters)
        return called.result()["output"]
"""
BESIDE = """
from concurrent.futures import ThreadPoolExecutor
from ksrv import BaseHandler, Float32

def elsewhere():
    return [len(str(number)) for number in range(100_000)]

class Beside(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.pool = ThreadPoolExecutor(1)
        self.pool.submit(elsewhere).result()

    def inference(self, x: Float32[2]) -> Float32[2]:
        self.pool.submit(elsewhere).result()
        return x
"""
LINE = "handler.py, line 17, in divide: return x / undefined\nNameError: name 'undefined' is not defined"


@pytest.fixture(scope="module", params=["inline", "process"])
def repository(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    texts = {"faulty": HANDLER, "old": OLD, "outer": OUTER, "beside": BESIDE}
    for name, text in texts.items():
        (root / name).mkdir()
        (root / name / "handler.py").write_text(text)
        yaml = f"handler: handler.py\nexecutor: {request.param}\nwarmup: false\n"
        (root / name / "model.yaml").write_text(yaml)
    return root


@pytest.fixture(scope="module")
def server(repository):
    with Server(repository, debug=True) as running:
        yield running


def message(server, value, url=None, model="faulty", **inputs):
    with Client(url or server.url) as client, pytest.raises(StatusError) as raised:
        client.infer(model, inputs or {"x": np.full((1, 2), value, np.float32)})
    return str(raised.value)


def test_an_answer_holds_the_end_of_the_traceback(server, repository):
    for url in (server.url, f"grpc://{server.grpc}"):
        text = message(server, 1, url)
        assert "the stage inference of the model faulty failed with NameError:\n" in text
        assert LINE in text
        assert str(repository) not in text


def test_handlers_error_text_is_unchanged(server):
    assert message(server, 2).endswith("my own words")


def test_torchserve_handlers_traceback_is_shown(server):
    text = message(server, 0, model="old", data=[b"x"])
    assert "handler.py, line 7, in handle: raise LookupError" in text
    assert text.endswith("LookupError: no such word")


def post(server, document, model="faulty", **headers):
    host, _, port = server.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("POST", f"/v2/models/{model}/infer", json.dumps(document), headers)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def request(value, **parameters):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [value, value]}
    return {"inputs": [tensor], "parameters": parameters}


@pytest.mark.parametrize("model", ["faulty", "outer"])
@pytest.mark.parametrize("header", PROXY_HEADERS)
def test_clients_of_a_proxy_get_no_details(server, header, model):
    status, answer = post(server, request(1), model, **{header: "192.0.2.7"})
    assert (status, answer["error"]) == (
        500,
        "the stage inference of the model faulty failed with NameError",
    )
    status, answer = post(server, request(0, profile="python"), model, **{header: "192.0.2.7"})
    assert (status, answer.get("parameters")) == (200, None)


def test_a_request_may_ask_for_a_profile(server):
    status, answer = post(server, request(0, profile="python"))
    assert status == 200
    assert "handler.py" in answer["parameters"]["profile"]
    assert "(inference)" in answer["parameters"]["profile"]
    status, answer = post(server, request(0))
    assert (status, answer.get("parameters")) == (200, None)
    status, answer = post(server, request(1, profile="python"))
    assert status == 500
    assert LINE in answer["error"]


def test_profile_has_only_the_handler_threads_calls(server):
    status, answer = post(server, request(0, profile="python"), "beside")
    assert status == 200
    assert "(inference)" in answer["parameters"]["profile"]
    assert "(elsewhere)" not in answer["parameters"]["profile"]


def test_the_failure_of_a_called_model_names_its_lines_and_the_callers_request(server):
    status, answer = post(server, request(1), "outer", **{"X-Request-ID": "the-callers"})
    assert status == 500
    assert LINE in answer["error"]
    failed = "; requests: the-callers"  # of the model faulty
    wait_until(lambda: failed in server.log)


def test_a_model_that_a_profiled_handler_calls_may_be_asked_for_a_profile_too(server):
    for _ in range(2):
        status, answer = post(server, request(0, profile="python"), "outer")
        assert status == 200
        assert "(inference)" in answer["parameters"]["profile"]
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(post, server, request(0, profile="python"), "outer") for _ in "1234"]
        assert {one.result()[0] for one in asked} == {200}


def test_a_profile_of_torch(server):
    pytest.importorskip("torch")
    status, answer = post(server, request(3, profile="torch"))
    assert status == 200
    assert "aten::add" in answer["parameters"]["profile"]
    _, answer = post(server, request(0, profile="torch"))
    assert answer["parameters"]["profile"] == "no operation of torch was run"


def test_without_debug_errors_have_no_details(repository):
    with Server(repository) as server:
        assert message(server, 1).endswith(
            "failed with NameError; the server's log has its traceback"
        )
        _, answer = post(server, request(0, profile="python"))
        assert answer.get("parameters") is None


def test_debug_goes_with_loopback_only(repository):
    command = [sys.executable, "-m", "ksrv", "serve", str(repository), "--debug", "--insecure"]
    done = subprocess.run(
        [*command, "--http", "0.0.0.0:0", "--grpc", "off"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode != 0
    assert "setting 'debug' puts lines of the handlers' code into answers" in done.stderr
