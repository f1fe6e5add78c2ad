"""The body of a request that fails is let go with its answer, not when the garbage collector looks."""

import json

import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wait_until import wait_until

COLUMNS = 20_000  # whose numbers as JSON are more than the HTTP server reads by itself
HANDLER = """
import gc

import numpy as np

from ksrv import BaseHandler, InferenceError
from ksrv._native.memory import buffer_pool

class Fails(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        gc.disable()

    {define} inference(self, x):
        way = int(x[0, 0])
        if way == 1:
            raise InferenceError("not today", 422)
        if way == 2:
            raise ValueError("a wrong input")
        if way == 3:
            self.context.batch.fail(0, "row 0 is bad", 422)
        if way == 4:
            return {{"leased": object()}}
        return {{"leased": np.full((len(x), 1), buffer_pool.statistics()["leased"])}}
"""
SETTINGS = f"""
inputs: [{{name: x, datatype: FP32, shape: [-1, {COLUMNS}]}}]
outputs: [{{name: leased, datatype: INT64, shape: [-1, 1]}}]
"""
STATUSES = {1: 422, 2: 500, 3: 422, 4: 500}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name, define in (("function", "def"), ("coroutine", "async def")):
        write_model(root, name, HANDLER.format(define=define), SETTINGS)
    with Server(root) as running:
        yield running


def ask(server: Server, model: str, form: str, way: int) -> requests.Response:
    x = np.full((1, COLUMNS), way, "<f4")
    entry = {"name": "x", "datatype": "FP32", "shape": [1, COLUMNS]}
    url = f"{server.url}/v2/models/{model}/infer"
    if form == "json":
        return requests.post(url, json={"inputs": [entry | {"data": x[0].tolist()}]}, timeout=60)
    header = json.dumps({"inputs": [entry | {"parameters": {"binary_data_size": x.nbytes}}]})
    headers = {"Inference-Header-Content-Length": str(len(header))}
    if form == "app":
        headers["TE"] = "trailers"
    return requests.post(url, header.encode() + x.tobytes(), headers=headers, timeout=60)


def leased(server: Server, model: str) -> int:
    """The blocks that the server holds while it answers this question."""
    answer = ask(server, model, "binary", 0).json()
    return int(answer["outputs"][0]["data"][0])


@pytest.mark.differs_in_processes("the handler counts the worker's blocks")
@pytest.mark.parametrize("way", STATUSES)
@pytest.mark.parametrize("form", ["binary", "json", "app"])
@pytest.mark.parametrize("model", ["function", "coroutine"])
def test_a_body_goes_with_its_answer(server, model, form, way):
    before = leased(server, model)
    assert ask(server, model, form, way).status_code == STATUSES[way]
    wait_until(lambda: leased(server, model) <= before)
