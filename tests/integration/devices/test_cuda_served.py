"""Models on a GPU behind a real server: both protocols, both executors, joined batches, a lost device."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from ksrv.client import Client
from ksrv.client.errors import ClientError
from ksrv.testing import Server

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(50_000, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        )
        own = torch.Generator().manual_seed(0)  # models are loaded side by side
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -0.01, 0.01, generator=own)
    def forward(self, x):
        return self.layers(x)
"""
HANDLER = """
import torch
from ksrv import BaseHandler
class Served(BaseHandler):
    def inference(self, x):
        assert x.is_cuda
        if float(self.context.batch["x"][0, 0]) < -1e6:
            torch.zeros(4, device=x.device)[torch.tensor([99], device=x.device)]
        return super().inference(x)
"""
MODEL = """
class: net.py:Net
device: {device}
executor: {executor}
instances: {instances}
cuda_graphs: {graphs}
retry: false
batching: {{max_batch_size: 8, max_delay_ms: 2}}
inputs:
  - {{name: x, datatype: FP32, shape: [-1, 50000]}}
outputs:
  - {{name: y, datatype: FP32, shape: [-1, 10]}}
"""
SETTINGS = {
    "plain": {"device": "cuda", "executor": "inline", "instances": 2, "graphs": "false"},
    "graphs": {"device": "auto", "executor": "inline", "instances": 1, "graphs": "true"},
    "separate": {"device": "cuda:0", "executor": "process", "instances": 1, "graphs": "false"},
    "separate_graphs": {"device": "cuda", "executor": "process", "instances": 1, "graphs": "true"},
    "here": {"device": "cpu", "executor": "inline", "instances": 1, "graphs": "false"},
}


def write(folder, settings, handler=None):
    folder.mkdir()
    (folder / "net.py").write_text(NET)
    text = MODEL.format(**settings)
    if handler is not None:
        (folder / "handler.py").write_text(handler)
        text += "handler: handler.py\n"
    (folder / "model.yaml").write_text(text)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, settings in SETTINGS.items():
        write(folder / name, settings)
    with Server(folder, start_timeout=240) as running:
        yield running


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "here"])
def test_answers_equal_the_cpus(server, name, protocol):
    url = server.url if protocol == "http" else f"grpc://{server.grpc}"
    random = np.random.default_rng(1)
    requests = [random.random((rows, 50_000), dtype=np.float32) for rows in (1, 1, 1, 1, 2, 3, 8)]
    with Client(url) as client, ThreadPoolExecutor(8) as pool:
        wanted = [client.infer("here", {"x": x})["y"] for x in requests]
        for _ in range(3):
            answers = list(pool.map(lambda x: client.infer(name, {"x": x})["y"], requests * 3))
            for got, right in zip(answers, wanted * 3, strict=True):
                np.testing.assert_allclose(got, right, rtol=1e-3, atol=1e-5)
    assert "runs without graphs" not in server.log


@pytest.mark.parametrize("executor", ["process", "inline"])
def test_a_lost_device_is_had_again(tmp_path, executor):
    settings = {"device": "cuda", "executor": executor, "instances": 1, "graphs": "false"}
    write(tmp_path / "m", settings, HANDLER)
    with Server(tmp_path, start_timeout=240) as running:
        with Client(running.url, retries=0) as client:
            fine = np.ones((1, 50_000), np.float32)
            before = client.infer("m", {"x": fine})["y"]
            with pytest.raises(ClientError):
                client.infer("m", {"x": fine * -1e7})
        with Client(running.url, retries=50, timeout=200) as client:
            client.wait_ready("m", timeout=200)
            np.testing.assert_array_equal(client.infer("m", {"x": fine})["y"], before)
        assert "works no more" in running.log
