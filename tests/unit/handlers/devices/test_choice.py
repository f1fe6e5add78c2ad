"""The order of devices, with faked back ends."""

import sys
from types import SimpleNamespace

import pytest

from ksrv.handlers.devices import choice
from ksrv.handlers.devices.choice import choose_device, choose_onnx_device
from ksrv.model.fault import ConfigError


@pytest.fixture
def machine(monkeypatch):
    """Pretend that a machine has some devices: machine(cuda=2, mps=1, ...)."""

    def pretend(cuda=0, xpu=0, mps=0, xla=0):
        def backend(count):
            return SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count)

        torch = SimpleNamespace(
            cuda=backend(cuda),
            xpu=backend(xpu),
            backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps > 0)),
        )
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr(choice, "find_spec", lambda name: object() if xla else None)

    return pretend


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        ({"cuda": 1, "xpu": 1, "mps": 1, "xla": 1}, "cuda:0"),
        ({"xpu": 1, "mps": 1, "xla": 1}, "xpu:0"),
        ({"mps": 1, "xla": 1}, "mps"),
        ({"xla": 1}, "xla"),
        ({}, "cpu"),
    ],
)
def test_auto_prefers_devices_in_order(machine, there, chosen):
    machine(**there)
    assert choose_device("auto") == chosen


def test_instances_spread_over_devices_of_a_kind(machine):
    machine(cuda=2)
    assert [choose_device("auto", n) for n in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [choose_device("cuda", n) for n in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert choose_device("cuda:1", 0) == "cuda:1"


def test_instances_take_numbered_devices_in_turn(machine):
    machine(cuda=3)
    assert [choose_device("cuda:2,0", n) for n in range(3)] == ["cuda:2", "cuda:0", "cuda:2"]
    assert [choose_device("cuda:0,0,1", n) for n in range(4)] == [
        "cuda:0",
        "cuda:0",
        "cuda:1",
        "cuda:0",
    ]
    with pytest.raises(ConfigError, match=r"cuda:0,3 .* 3 cuda device"):
        choose_device("cuda:0,3")


def test_available_named_device_is_used(machine):
    machine(cuda=1, xpu=1, mps=1, xla=1)
    assert [choose_device(name) for name in ("cpu", "xpu:0", "mps", "xla")] == [
        "cpu", "xpu:0", "mps", "xla"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "xpu", "mps", "xla"])
def test_missing_named_device_fails_the_load(machine, name):
    machine()
    with pytest.raises(ConfigError, match=f"device {name} is not available"):
        choose_device(name)


def test_cpu_is_used_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert choose_device("auto") == "cpu"
    assert choose_device("cpu") == "cpu"
    with pytest.raises(ConfigError, match=r"pip install torch"):
        choose_device("cuda")


def test_torch_without_xpu_support_has_no_xpu(machine):
    machine(mps=1)
    del sys.modules["torch"].xpu
    assert choose_device("auto") == "mps"


@pytest.mark.parametrize(
    ("gpus", "cuda", "wanted", "chosen"),
    [
        (2, True, "auto", ["cuda:0", "cuda:1", "cuda:0"]),
        (2, False, "auto", ["cpu"] * 3),
        (0, True, "auto", ["cpu"] * 3),
        (2, True, "cuda", ["cuda:0", "cuda:1", "cuda:0"]),
        (2, True, "cuda:1", ["cuda:1"] * 3),
        (3, True, "cuda:2,0", ["cuda:2", "cuda:0", "cuda:2"]),
        (2, True, "cpu", ["cpu"] * 3),
    ],
)
def test_onnx_runtime_is_asked_for_onnx_models(monkeypatch, gpus, cuda, wanted, chosen):
    providers = ["CUDAExecutionProvider"] * cuda + ["CPUExecutionProvider"]
    runtime = SimpleNamespace(get_available_providers=lambda: providers)
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(choice, "nvidia_gpus", lambda: gpus)
    assert [choose_onnx_device(wanted, instance) for instance in range(3)] == chosen
