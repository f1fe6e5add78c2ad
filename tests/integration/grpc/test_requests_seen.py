"""A handler sees the same request whichever way the request took."""

import time

import grpc
import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wire.grpc_calls import infer_request, stub_infer

SEEN = """
import numpy as np
from ksrv import BaseHandler


class Seen(BaseHandler):
    def inference(self, x):
        requests = self.context.batch.requests
        deadlines = [one.deadline_ns or 0 for one in requests]
        wanted = [len(one.outputs) for one in requests]
        return {"deadline": np.array(deadlines)[:, None], "wanted": np.array(wanted)[:, None]}
"""
SHAPES = """
executor: {executor}
timeout_ms: 60000
batching: {{max_batch_size: 4}}
inputs: [{{name: x, datatype: FP32, shape: [-1, 1]}}]
outputs: [{{name: deadline, datatype: INT64, shape: [-1, 1]}}, {{name: wanted, datatype: INT64, shape: [-1, 1]}}]
"""
GENERAL = {"custom": 1}
"""A parameter that the fast path does not support."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for executor in ("inline", "process"):
        write_model(root, executor, SEEN, SHAPES.format(executor=executor))
    with Server(root) as running:
        yield running


def over_rest(server, model, parameters, outputs):
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}
    document = {"inputs": [entry], "parameters": parameters}
    if outputs:
        document["outputs"] = [{"name": name} for name in outputs]
    answer = requests.post(f"{server.url}/v2/models/{model}/infer", json=document, timeout=60)
    assert answer.status_code == 200, answer.text
    return {one["name"]: one["data"][0] for one in answer.json()["outputs"]}


@pytest.mark.parametrize("parameters", [{}, GENERAL], ids=["fast path", "general"])
@pytest.mark.parametrize("model", ["inline", "process"])
def test_handler_sees_deadline_and_outputs_of_a_rest_request(server, model, parameters):
    assert over_rest(server, model, parameters, ()) == {"deadline": 0, "wanted": 0}
    began = time.monotonic_ns()
    seen = over_rest(server, model, parameters | {"timeout": 30_000_000}, ("deadline", "wanted"))
    assert began + 30_000_000_000 <= seen["deadline"] <= time.monotonic_ns() + 30_000_000_000
    assert seen["wanted"] == 2
    assert over_rest(server, model, parameters, ("wanted",)) == {"wanted": 1}


@pytest.mark.parametrize("parameters", [{}, GENERAL], ids=["fast path", "general"])
@pytest.mark.parametrize("model", ["inline", "process"])
def test_handler_sees_the_deadline_of_a_grpc_call(server, model, parameters):
    message = infer_request(model, ("x", "FP32", [1, 1]), raw=[np.float32([1]).tobytes()])
    for name, value in parameters.items():
        message.parameters[name].int64_param = value
    with grpc.insecure_channel(server.grpc) as channel:
        began = time.monotonic_ns()
        answer = stub_infer(channel)(message, timeout=30)
    [deadline] = np.frombuffer(answer.raw_output_contents[0], np.int64)
    assert began + 29_000_000_000 < deadline < time.monotonic_ns() + 31_000_000_000
