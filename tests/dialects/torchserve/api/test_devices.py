"""Which device a TorchServe handler takes, in TorchServe's order, with back ends that are not there."""

import sys
from types import SimpleNamespace

import pytest
import torch

from ksrv.dialects.torchserve.api.handlers.base_handler import BaseHandler
from ksrv.dialects.torchserve.runner import runner as runner_module

HANDLER = """
from ts.torch_handler.base_handler import BaseHandler

class Own(BaseHandler):
    def initialize(self, context):
        self.gpu = context.system_properties["gpu_id"]

    def handle(self, data, context):
        return [self.gpu] * len(data)
"""


@pytest.fixture
def machine(monkeypatch):
    def make(*kinds, xpu_enabled=True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in kinds)
        monkeypatch.setattr(torch.xpu, "is_available", lambda: "xpu" in kinds)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in kinds)
        xla = SimpleNamespace(device=lambda: "the XLA device") if "xla" in kinds else None
        monkeypatch.setitem(sys.modules, "torch_xla", xla)
        monkeypatch.setenv("TS_IPEX_GPU_ENABLE", "true" if xpu_enabled else "false")

    return make


ALL = ("cuda", "xpu", "mps", "xla")


@pytest.mark.parametrize(
    ("kinds", "gpu", "location", "device"),
    [
        (ALL, 1, "cuda", "cuda:1"),
        (ALL[1:], 1, "xpu", "xpu:1"),
        (ALL[2:], 1, "mps", "mps"),
        (ALL[3:], 1, None, "the XLA device"),
        ((), 1, "cpu", "cpu"),
        (ALL[:3], None, "cpu", "cpu"),  # without a number the server has assigned no GPU
        (ALL, None, None, "the XLA device"),
    ],
)
def test_the_first_device_that_is_there(machine, kinds, gpu, location, device):
    machine(*kinds)
    handler = BaseHandler()
    handler._choose_device({"gpu_id": gpu})
    assert (handler.map_location, str(handler.device)) == (location, device)


def test_xpu_needs_its_variable(machine):
    machine("xpu", xpu_enabled=False)
    handler = BaseHandler()
    handler._choose_device({"gpu_id": 0})
    assert str(handler.device) == "cpu"


@pytest.mark.parametrize(
    ("device", "ids", "instance", "gpu"),
    [
        ("cpu", None, 3, None),
        ("cuda:0", None, 0, 0),
        ("cuda:2", None, 0, 2),
        ("mps", None, 0, 0),
        ("cuda:1", [4, 6], 0, 4),
        ("cuda:1", [4, 6], 3, 6),
    ],
)
def test_the_server_assigns_gpus(ts_runner, monkeypatch, device, ids, instance, gpu):
    chosen = []
    monkeypatch.setattr(
        runner_module, "choose_device", lambda *asked: chosen.append(asked) or device
    )
    made = ts_runner(HANDLER, instance=instance, archive={"device_ids": ids})
    assert made._service.gpu == gpu
    assert chosen == [("auto", instance)]
