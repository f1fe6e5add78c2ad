"""A device with streams in a real server, in both executors: its calls, and its loss.

The handler's file replaces its device by the tests' device, so that no GPU is needed.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ksrv.client import Client
from ksrv.client.errors import ClientError, StatusError, Unavailable
from ksrv.testing import Server
from tests.support.paths import ROOT

pytestmark = pytest.mark.long

COLUMNS = 40_000  # a row is large enough for a separate exported block
HANDLER = """
import json
import torch
from ksrv import BaseHandler
from tests.support.devices.fake_device import LOST, NO_MEMORY, DeviceTensor, FakeDevice, use_fake_device

use_fake_device()


class Served(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.model = torch.nn.Identity()

    def inference(self, x):
        asked = self.context.batch["x"][0, 0]
        if asked == -1:
            raise RuntimeError(NO_MEMORY)
        if asked == -2:
            raise RuntimeError(LOST)
        assert isinstance(x, DeviceTensor)
        return {"y": x * 2, "sum": x.sum(1, keepdim=True)}

    def postprocess(self, outputs):
        [device] = FakeDevice.made[-1:]
        events, device.events[:] = [*device.events, *FakeDevice.waited_by_handlers], []
        self.context.batch.set_parameter(0, "events", json.dumps(events))
        return outputs
"""
MODEL = """
handler: handler.py
device: cpu
executor: {executor}
retry: false
batching: {{max_batch_size: 4, max_delay_ms: 20}}
inputs:
  - {{name: x, datatype: FP32, shape: [-1, 40000]}}
outputs:
  - {{name: y, datatype: FP32, shape: [-1, 40000]}}
  - {{name: sum, datatype: FP32, shape: [-1, 1]}}
"""
EXECUTORS = ["inline", "process"]


@pytest.fixture(params=EXECUTORS)
def server(request, tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "handler.py").write_text(HANDLER)
    (folder / "model.yaml").write_text(MODEL.format(executor=request.param))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with Server(tmp_path, environment={"PYTHONPATH": path}, start_timeout=120) as running:
        running.executor = request.param
        yield running


def row(value):
    return {"x": np.full((1, COLUMNS), value, np.float32)}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_batches_are_pinned_copies_and_one_wait(server, protocol):
    url = server.url if protocol == "http" else f"grpc://{server.grpc}"
    with Client(url) as client, ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            answers = list(pool.map(lambda value: client.infer("m", row(value)), range(1, 9)))
            for value, answer in enumerate(answers, 1):
                np.testing.assert_array_equal(answer["y"], row(2 * value)["x"])
                assert answer["sum"].tolist() == [[COLUMNS * value]]
        events = [json.loads(answer.parameters.get("events", "[]")) for answer in answers]
    seen = [one for several in events for one in several]
    assert not {"cpu", "numpy", "item", "tolist"} & set(seen), "the handler's code waited"
    # Events end in the middle of the batch that returns them: the last event is the copy of its input.
    whole = [several[several.index("leave") + 1 :] for several in events if "leave" in several]
    assert whole
    assert all(several[0] == "enter" for several in whole)
    assert {one.split()[0] for one in seen} <= {"enter", "in", "out", "synchronise", "leave"}
    assert seen.count("synchronise") <= seen.count("enter")
    if server.executor == "process":  # here a request that runs alone lies where it was received
        assert all(one.endswith("pinned") for one in seen if one.startswith("in"))
    assert all(one.endswith("pinned") for one in seen if one.startswith("out"))


def test_full_device_is_reported_and_serves_again(server):
    with Client(server.url, retries=0) as client:
        client.infer("m", row(1))
        with pytest.raises(Unavailable, match="too little memory for this batch"):
            client.infer("m", row(-1))
        np.testing.assert_array_equal(client.infer("m", row(3))["y"], row(6)["x"])
    with (
        Client(f"grpc://{server.grpc}", retries=0) as client,
        pytest.raises(StatusError, match="too little memory for this batch"),
    ):
        client.infer("m", row(-1))


def test_a_lost_device_is_had_again_in_another_process(server):
    with Client(server.url, retries=0) as client:
        client.infer("m", row(1))
        with pytest.raises(ClientError):
            client.infer("m", row(-2))
    with Client(server.url, retries=50, timeout=120) as client:
        client.wait_ready("m", timeout=120)
        np.testing.assert_array_equal(client.infer("m", row(2))["y"], row(4)["x"])
    assert "works no more" in server.log


SPREAD = """
import time
import torch
from ksrv import BaseHandler
from ksrv.handlers.devices import choice
from tests.support.devices.fake_device import DeviceTensor, use_fake_device

use_fake_device()
choice.count = lambda torch, kind: 3  # of every kind there are three


class Spread(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.model = torch.nn.Identity()

    def inference(self, x):
        assert isinstance(x, DeviceTensor)
        time.sleep(0.3)
        found = int(str(self.device).partition(":")[2])
        assert self.context.device == f"cuda:{found}"
        return {"y": x * 0 + found}
"""


@pytest.mark.parametrize("executor", EXECUTORS)
def test_instances_take_the_numbered_gpus_in_turn(tmp_path, executor):
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "handler.py").write_text(SPREAD)
    (folder / "model.yaml").write_text(
        f"handler: handler.py\nexecutor: {executor}\ndevice: cuda:0,2\ninstances: 4\nwarmup: false\n"
        "inputs: [{name: x, datatype: FP32, shape: [1, 2]}]\n"
        "outputs: [{name: y, datatype: FP32, shape: [1, 2]}]\n"
    )
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    x = {"x": np.zeros((1, 2), np.float32)}
    with (
        Server(tmp_path, environment={"PYTHONPATH": path}, start_timeout=120) as server,
        Client(f"http://{server.http}") as client,
        ThreadPoolExecutor(8) as pool,
    ):
        answers = pool.map(lambda _: client.infer("m", x)["y"][0, 0], range(24))
        assert set(answers) == {0, 2}
