"""A called model's answer belongs to the handler that called, whatever the model does and wherever both run.

A caller adds to the answer in place. That must neither fail nor reach the caller's input, the called model's memory,
another output, or the answer of a later call.
"""

import json

import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_model

MEMORY = ["new", "input", "part of the input", "one array", "read-only", "kept"]
CALLED = (
    f"MEMORY = {MEMORY}\n"
    + '''
from ksrv import BaseHandler


class Called(BaseHandler):
    """Answers x as y and as z, in memory of the kind that the first number of x names."""

    kept = None

    def inference(self, x):
        memory = MEMORY[int(x[0, 0])]
        if memory == "input":
            return {"y": x, "z": x}
        if memory == "part of the input":
            return {"y": x[:], "z": x[:, ::-1][:, ::-1]}
        if memory == "one array":
            y = x * 1
            return {"y": y, "z": y}
        if memory == "read-only":
            y = x * 1
            y.flags.writeable = False
            return {"y": y, "z": x * 1}
        if memory == "kept":
            if self.kept is None or self.kept.shape != x.shape:
                self.kept = x * 0
            self.kept[:] = x
            return {"y": self.kept, "z": self.kept[:]}
        return {"y": x * 1, "z": x * 1}
'''
)

CALLER = '''
import asyncio
import time

import numpy as np

from ksrv import BaseHandler


class Caller(BaseHandler):
    def check(self, x, given, first, second):
        """Write to both answers; raise where that reaches anything else."""
        y, z = first["y"], first["z"]
        y += 100
        z *= 2
        assert (y == x + 100).all() and (z == x * 2).all(), "an output is another output's memory"
        assert (given == x).all(), "an output is the input's memory"
        given[:] = -1
        assert (y == x + 100).all() and (z == x * 2).all(), "the input is an output's memory"
        assert (second["y"] == x).all() and (second["z"] == x).all(), "two answers share memory"
        return {"y": y}

    def inference(self, x):
        model = self.context.models[self.context.batch.requests[0].parameters["model"]]
        given = np.array(x)
        call = model.submit({"x": given})
        first = call.result()
        assert first["y"] is call.result()["y"], "an answer changes from call to call of result"
        late = np.array(x)
        call = model.submit({"x": late})
        while not call.done():
            time.sleep(0.001)
        late[:] = -1
        assert (call.result()["y"] == x).all(), "the input is the memory of an answer not yet taken"
        return self.check(x, given, first, model.infer({"x": given}))


class Coroutine(Caller):
    async def inference(self, x):
        model = self.context.models[self.context.batch.requests[0].parameters["model"]]
        given = np.array(x)
        call = model.submit({"x": given})
        first = await call
        assert first["y"] is (await call)["y"], "an answer changes from wait to wait"
        late = np.array(x)
        call = model.submit({"x": late})
        while not call.done():
            await asyncio.sleep(0.001)
        late[:] = -1
        assert ((await call)["y"] == x).all(), "the input is the memory of an answer not yet taken"
        return self.check(x, given, first, await model.submit({"x": given}))
'''

CONFIG = """
name: "ensemble_of_{0}"
platform: "ensemble"
input {{ name: "x" data_type: TYPE_FP32 dims: [ -1, -1 ] }}
output [
  {{ name: "y" data_type: TYPE_FP32 dims: [ -1, -1 ] }},
  {{ name: "z" data_type: TYPE_FP32 dims: [ -1, -1 ] }}
]
ensemble_scheduling {{
  step {{ model_name: "{0}" model_version: -1 input_map {{ key: "x" value: "x" }}
    output_map {{ key: "y" value: "y" }} output_map {{ key: "z" value: "z" }} }}
}}
"""

YAML = """
inputs: [{name: x, datatype: FP32, shape: [-1, -1]}]
outputs: [{name: y, datatype: FP32, shape: [-1, -1]}, {name: z, datatype: FP32, shape: [-1, -1]}]
warmup: false
"""

CALLED_DIRECTLY = ("plain_inline", "cached_process")
CALLED_BY_ENSEMBLES = ("plain_process", "cached_inline")
CALLERS = {
    "inline": ("Caller", "inline"),
    "process": ("Caller", "process"),
    "coroutine": ("Coroutine", "inline"),
    "coroutine_process": ("Coroutine", "process"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name in CALLED_DIRECTLY + CALLED_BY_ENSEMBLES:
        cache = "cache: {}\n" if name.startswith("cached") else ""
        write_model(root, name, CALLED, f"{YAML}executor: {name.partition('_')[2]}\n{cache}")
    for name in CALLED_BY_ENSEMBLES:
        folder = root / f"ensemble_of_{name}"
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(CONFIG.format(name))
    for name, (kind, executor) in CALLERS.items():
        folder = write_model(root, name, CALLER, "")
        outputs = "outputs: [{name: y, datatype: FP32, shape: [-1, -1]}]\n"
        inputs = "inputs: [{name: x, datatype: FP32, shape: [-1, -1]}]\nwarmup: false\n"
        keys = f"handler: handler.py:{kind}\nexecutor: {executor}\n"
        (folder / "model.yaml").write_text(keys + inputs + outputs)
    with Server(root) as made:
        yield made


@pytest.mark.parametrize("size", [4, 400_000], ids=["small", "large"])
@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(
    "called", [*CALLED_DIRECTLY, *(f"ensemble_of_{name}" for name in CALLED_BY_ENSEMBLES)]
)
def test_callers_share_no_answer(server, caller, called, memory, size):
    x = np.arange(size, dtype=np.float32).reshape(1, -1)
    x[0, 0] = MEMORY.index(memory)
    entry = {"name": "x", "datatype": "FP32", "shape": [1, size]}
    entry["parameters"] = {"binary_data_size": x.nbytes}
    parameters = {"model": called, "binary_data_output": True}
    head = json.dumps({"inputs": [entry], "parameters": parameters}).encode()
    for _ in range(2):
        answer = requests.post(
            f"{server.url}/v2/models/{caller}/infer",
            head + x.tobytes(),
            headers={"Inference-Header-Content-Length": str(len(head))},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text + server.log[-2000:]
        assert (np.frombuffer(answer.content[-x.nbytes :], "<f4") == x + 100).all()
