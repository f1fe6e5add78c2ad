"""Integer parameters at and beyond their ranges: 200 or a 4xx that names them, never a 5xx."""

import http.client
import json
import struct
from contextlib import closing

import grpc
import pytest

from ksrv.testing import Server
from tests.support.models import VECTOR, write_double, write_model
from tests.support.wire.grpc_calls import infer_request, stub_infer

SEES = """
from ksrv import BaseHandler


class Sees(BaseHandler):
    def preprocess(self, batch):
        for request in batch.requests:
            str((request.parameters, request.input_parameters, request.output_parameters))
        return super().preprocess(batch)

    def inference(self, x):
        return {"y": x}
"""
EDGES = sorted({
    edge + step
    for edge in (0, 2**15, 2**16, 2**31, 2**32, 2**53, 2**63, 2**64, 10**9, 10**15, 10**19, 10**30)
    for step in (-1, 0, 1)
} | {-(2**31) - 1, -(2**63), -(2**63) - 1, -(10**30)})  # fmt: skip
TOKEN = "Bearer control"
MODELS = ("double", "seen", "isolated")
REQUEST = ("timeout", "priority", "sequence_id", "custom")
INPUT = ("binary_data_size", "shared_memory_offset", "shared_memory_byte_size", "custom")
OUTPUT = ("classification", "shared_memory_offset", "shared_memory_byte_size", "custom")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("integers")
    write_double(folder)
    write_model(folder, "seen", SEES, VECTOR)
    write_model(folder, "isolated", SEES, VECTOR + "executor: process\n")
    tokens = folder.with_name("control-tokens")
    tokens.write_text("control\n")
    settings = {"allow_shared_memory": True, "control_token_file": str(tokens)}
    with Server(folder, **settings) as running:
        yield running


def documents(value):
    """Requests with the value in each place that takes one."""
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    output = {"name": "y"}
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    for name in REQUEST:
        yield name, {"inputs": [entry], "parameters": {name: value}}
    for name in INPUT:
        own = {**(region if "shared" in name else {}), name: value}
        yield name, {"inputs": [{**entry, "parameters": own}]}
    for name in OUTPUT:
        own = {**(region if "shared" in name else {}), name: value}
        yield name, {"inputs": [entry], "outputs": [{**output, "parameters": own}]}
    yield "shape", {"inputs": [{**entry, "shape": [1, value]}]}


@pytest.mark.parametrize("model", MODELS)
def test_over_rest(server, model):
    target, head = f"/v2/models/{model}/infer", {"Authorization": TOKEN}
    with closing(http.client.HTTPConnection(server.http, timeout=50)) as connection:
        for value in EDGES:
            for name, document in documents(value):
                connection.request("POST", target, json.dumps(document), head)
                answer = connection.getresponse()
                text = answer.read()
                expired = answer.status == 504 and name == "timeout" and 0 < value < 2**31
                assert answer.status in (200, 400) or expired, (name, value, text)
                if answer.status == 400:
                    error = json.loads(text)["error"]
                    assert name in error or "shared" in error or "out of range" in error
                if name == "priority":
                    assert (answer.status == 200) == (0 <= value < 2**32)


def fields():
    """The parameters of a gRPC message that hold an integer, with the range of each."""
    yield "int64_param", -(2**63), 2**63 - 1
    yield "uint64_param", 0, 2**64 - 1


def messages(field, value):
    row = struct.pack("<4f", 1, 2, 3, 4)
    for place, names in (("request", REQUEST), ("input", INPUT), ("output", OUTPUT)):
        for name in names:
            message = infer_request("seen", ("x", "FP32", [1, 4]), raw=[row])
            output = message.outputs.add()
            output.name = "y"
            where = {"request": message, "input": message.inputs[0], "output": output}[place]
            setattr(where.parameters[name], field, value)
            if "shared" in name:
                where.parameters["shared_memory_region"].string_param = "r"
            yield name, message


@pytest.mark.parametrize("model", MODELS)
def test_over_grpc(server, model):
    with grpc.insecure_channel(server.grpc) as channel:
        infer = stub_infer(channel)
        for field, least, most in fields():
            for value in (edge for edge in EDGES if least <= edge <= most):
                for name, message in messages(field, value):
                    message.model_name = model
                    code = _code(infer, message)
                    allowed = {"OK", "INVALID_ARGUMENT"}
                    if name == "timeout" and 0 < value < 2**31:
                        allowed.add("DEADLINE_EXCEEDED")
                    assert code in allowed, (name, field, value, code)
                    if name == "priority":
                        assert (code == "OK") == (0 <= value < 2**32)


def _code(infer, message):
    try:
        infer(message, timeout=30, metadata=[("authorization", TOKEN)])
    except grpc.RpcError as error:
        return error.code().name
    return "OK"
