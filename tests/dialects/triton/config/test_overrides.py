"""Loads with a configuration in the call, as Triton's model control example makes them."""

import json
import os
import signal
import tempfile
from contextlib import suppress

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from ksrv.testing import Server
from tests.support.error_texts import check_text
from tests.support.model_files.onnx_models import write_add_sub
from tests.support.model_files.triton_repository import infer, write_folder
from tests.support.models import write_double
from tests.support.processes import children
from tests.support.wait_until import wait_until

ADD_SUB = 'platform: "onnxruntime_onnx" max_batch_size: 8'
CODED = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""
OTHER = '{"max_batch_size": "16", "parameters": {"why": {"string_value": "über \\"16\\""}}}'


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("overrides")
    write_add_sub(write_folder(root, "simple", ADD_SUB) / "1/model.onnx")
    write_add_sub(root / "bare/1/model.onnx")
    write_double(root)
    write_folder(root, "coded", CODED)
    (root / "coded/1/model.py").write_text(
        "class TritonPythonModel:\n    def execute(self, requests): ...\n"
    )
    return root


@pytest.fixture(scope="module", params=[1, 2])
def server(request, repository):
    with Server(repository, workers=request.param) as running:
        yield running


@pytest.fixture(params=[tritonclient.http, tritonclient.grpc])
def client(request, server):
    address = server.http if request.param is tritonclient.http else server.grpc
    with request.param.InferenceServerClient(address) as made:
        yield made


def config(server, model):
    return requests.get(f"{server.url}/v2/models/{model}/config", timeout=30).json()


def test_a_configuration_holds_until_the_next_load(client, server):
    """Asked on many connections, so that every worker answers."""
    client.load_model("simple", config=OTHER)
    for _ in range(8):
        found = config(server, "simple")
        assert (found["max_batch_size"], found["backend"]) == (16, "onnxruntime")
        assert found["parameters"]["why"]["string_value"] == 'über "16"'
    rows = np.ones((12, 4), np.float32)
    answer = infer(tritonclient.http, server, "simple", {"INPUT0": rows, "INPUT1": rows})
    assert answer.as_numpy("OUTPUT0").shape == (12, 4)
    client.load_model("simple")
    assert {config(server, "simple")["max_batch_size"] for _ in range(8)} == {8}
    client.load_model("bare", config='{"max_batch_size": 3, "backend": "onnxruntime"}')
    assert config(server, "bare")["max_batch_size"] == 3
    client.load_model("bare")
    assert config(server, "bare")["backend"] == "ksrv"


@pytest.mark.parametrize("server", [2], indirect=True)
@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        ("simple", '"parameters": {"config": {{"max_batch_size": "16"}}}', "is not the JSON of"),
        ("simple", "[]", "expected a JSON object"),
        ("simple", '{"max_batch_sice": 1}', "max_batch_sice"),
        ("simple", '{"max_batch_size": {}}', "max_batch_size"),
        ("simple", '{"input": ' + "[" * 2000 + "]" * 2000 + "}", "is not the JSON of"),
        ("simple", '{"name": "other"}', "is 'other', and the folder is called 'simple'"),
        ("simple", '{"max_batch_size": -1}', "config.pbtxt, line 1: max_batch_size"),
        ("simple", '{"backend": "dali"}', "backend: a load call changes only"),
        ("simple", '{"backend": "python"}', "backend: a load call changes only"),
        ("simple", '{"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]}', "'x'"),
        ("simple", '{"backend": "onnxruntime", "default_model_filename": "../../double/1.onnx"}', "default_model_filename: a load call changes only"),
        ("double", "{}", "for models with a config.pbtxt"),
        ("nobody", "{}", "holds no model of this name"),
    ],
)  # fmt: skip
def test_what_is_no_configuration_changes_nothing(client, server, model, given, said):
    with pytest.raises(InferenceServerException) as caught:
        client.load_model(model, config=given)
    text = caught.value.message()
    assert text.startswith(f"failed to load '{model}', ")
    assert said in text and tempfile.gettempdir() not in text
    assert caught.value.status() not in ("StatusCode.INTERNAL",)
    if model == "simple":
        assert {config(server, "simple")["max_batch_size"] for _ in range(4)} == {8}


LONG = "Z" * 5000
STRANGE = {
    "unknown key": {LONG: 1},
    "number": {"max_batch_size": LONG},
    "name": {"name": LONG},
    "control characters": {"name": "a\x1b[31m\u202e\n"},
    "platform": {"platform": LONG},
    "file": {"backend": "onnxruntime", "default_model_filename": LONG + ".onnx"},
    "labels": {"output": [{"name": "OUTPUT0", "label_filename": LONG}]},
    "tensor": {"input": [{"name": LONG, "data_type": "TYPE_FP32", "dims": [4]}]},
    "parameter": {"parameters": {LONG: {"string_value": "1"}, "intra_op_thread_count": {"string_value": LONG}}},
}  # fmt: skip


@pytest.mark.parametrize("server", [1], indirect=True)
@pytest.mark.parametrize("client", [tritonclient.http], indirect=True)
@pytest.mark.parametrize("case", STRANGE)
def test_texts_of_a_configuration_come_back_short(client, case):
    with pytest.raises(InferenceServerException) as caught:
        client.load_model("simple", config=json.dumps(STRANGE[case]))
    check_text(caught.value.message(), marker="Z")


@pytest.mark.parametrize("server", [1], indirect=True)
@pytest.mark.parametrize("client", [tritonclient.http], indirect=True)
@pytest.mark.parametrize("model", ["simple", "bare", "coded"])
@pytest.mark.parametrize("backend", [{}, {"backend": "python"}])
def test_a_call_runs_no_program(client, server, tmp_path, model, backend):
    """EXECUTION_ENV_PATH names the interpreter of a Python model, which is the folder's to choose."""
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    given = {"parameters": {"EXECUTION_ENV_PATH": {"string_value": str(program)}}} | backend
    given |= {"default_model_filename": "model.onnx"} if backend and model != "coded" else {}
    with suppress(InferenceServerException):
        client.load_model(model, config=json.dumps(given))
    assert not (tmp_path / "ran").exists()
    client.load_model(model)


def test_files_are_not_taken_and_failures_begin_as_clients_expect(client):
    with pytest.raises(
        InferenceServerException, match="failed to load 'simple', parameter 'file:1/model"
    ):
        client.load_model("simple", config="{}", files={"file:1/model.onnx": b"onnx"})
    with pytest.raises(InferenceServerException, match="failed to load 'nobody', "):
        client.load_model("nobody")
    out_of_it = r"failed to load '\.\./simple', the repository holds no model of|has a segment '\.' or '\.\.'"
    with pytest.raises(InferenceServerException, match=out_of_it):
        client.load_model("../simple", config="{}")


def test_workers_that_start_later_have_it_too(repository):
    with Server(repository) as server:
        url = f"{server.url}/v2/repository/models/simple/load"
        answer = requests.post(url, json={"parameters": {"config": OTHER}}, timeout=60)
        assert answer.status_code == 200, answer.text
        requests.post(url, data=json.dumps({"parameters": {"config": "{"}}), timeout=60)
        old = set(children(server.pid))
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: children(server.pid) and not old & set(children(server.pid)))
        assert config(server, "simple")["max_batch_size"] == 16
