"""Parameters of a request, of its inputs and of its outputs reach the handler, however it is run."""

import json
import struct

import numpy as np
import pytest
import requests
import tritonclient.grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from ksrv.testing import Server
from tests.support.model_files.triton_models import write_witness

ROW = struct.pack("<4f", 1, 2, 3, 4)
REQUEST = {"text": "a", "whole": 7, "huge": 2**63 - 1, "real": 1.5, "yes": True, "": "nameless"}
INPUT = {"of": "the input", "n": -1}
OUTPUT = {"of": "the output", "real": 0.25}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("parameters")
    write_witness(root)
    write_witness(root, "joined", "batching: {max_batch_size: 8, max_delay_ms: 50}\n")
    write_witness(root, "separate", "executor: process\n")
    with Server(root, start_timeout=120) as running:
        yield running


MODELS = ("witness", "joined", "separate")


def expected(id):
    return {
        "id": id,
        "parameters": REQUEST,
        "inputs": {"x": INPUT},
        "outputs": {"y": OUTPUT},
        "header": "told",
    }


def document(**size):
    entry = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {**INPUT, **size}}
    return {
        "id": "7",
        "parameters": REQUEST,
        "inputs": [entry],
        "outputs": [{"name": "y", "parameters": OUTPUT}, {"name": "seen"}],
    }


@pytest.mark.parametrize("model", MODELS)
def test_rest(server, model):
    url = f"{server.url}/v2/models/{model}/infer"
    plain = document()
    plain["inputs"][0]["data"] = [1, 2, 3, 4]
    text = json.dumps(document(binary_data_size=16)).encode()
    told = {"X-Told": "told"}
    length = {"Inference-Header-Content-Length": str(len(text))}
    for answer in (
        requests.post(url, json=plain, headers=told, timeout=60),
        requests.post(url, data=text + ROW, headers={**told, **length}, timeout=60),
    ):
        assert answer.status_code == 200, answer.text
        seen = next(output for output in answer.json()["outputs"] if output["name"] == "seen")
        assert json.loads(seen["data"][0]) == expected("7")


def message(model, id="7"):
    made = service_pb2.ModelInferRequest(model_name=model, id=id, raw_input_contents=[ROW])
    entry = made.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    wanted = made.outputs.add(name="y")
    made.outputs.add(name="seen")
    for owner, parameters in ((made, REQUEST), (entry, INPUT), (wanted, OUTPUT)):
        for name, value in parameters.items():
            kind = {
                bool: "bool_param",
                int: "int64_param",
                float: "double_param",
                str: "string_param",
            }
            setattr(owner.parameters[name], kind[type(value)], value)
    return made


@pytest.mark.parametrize("model", MODELS)
def test_grpc(server, model):
    with tritonclient.grpc.grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        # Requests that may be joined keep their parameters.
        pending = [
            (id, stub.ModelInfer.future(message(model, id), metadata=[("x-told", "told")]))
            for id in ("1", "2", "3")
        ]
        for id, call in pending:
            raw = call.result(timeout=60).raw_output_contents
            assert np.frombuffer(raw[0], "<f4").tolist() == [1, 2, 3, 4]
            assert json.loads(raw[1][4:]) == expected(id)
