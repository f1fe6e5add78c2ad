"""One small network in every format that ksrv loads."""

import fcntl
import platform
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_files.onnx_models import write_graph
from tests.support.paths import ROOT

torch = pytest.importorskip("torch")

NET = """
import torch
from layers import Squash

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.squash = Squash()
        self.second = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.second(self.squash(self.first(x)))
"""
LAYERS = """
import torch

class Squash(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
"""


def state_of(net: Any) -> Any:
    return {
        "first.weight": net[0].weight.detach(),
        "first.bias": net[0].bias.detach(),
        "second.weight": net[2].weight.detach(),
        "second.bias": net[2].bias.detach(),
    }


def write_onnx(net: Any, path: Path) -> None:
    nodes = [
        ("Gemm", ["x", "first.weight", "first.bias"], ["a"], {"transB": 1}),
        ("Relu", ["a"], ["b"], {}),
        ("Gemm", ["b", "second.weight", "second.bias"], ["y"], {"transB": 1}),
    ]
    inputs, outputs = {"x": ("FP32", ("N", 4))}, {"y": ("FP32", ("N", 3))}
    write_graph(path, nodes, inputs, outputs, state_of(net))


def exported(net: Any) -> Any:
    rows = torch.export.Dim("rows", min=1, max=64)
    return torch.export.export(net, (torch.zeros(2, 4),), dynamic_shapes=({0: rows},))


def network() -> Any:
    """The network itself, with seeded weights."""
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()


def compiled_package() -> Path:
    """The AOTInductor package of `network()`; compiling takes long, so that later runs find it again."""
    folder = ROOT / "build" / "test-packages"
    folder.mkdir(parents=True, exist_ok=True)
    package = folder / f"{platform.node()}-{torch.__version__}.pt2"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not package.exists():
            unfinished = package.with_name("unfinished.pt2")
            torch._inductor.aoti_compile_and_package(
                exported(network()),
                package_path=str(unfinished),
                inductor_configs={
                    "aot_inductor.precompile_headers": False,
                    "aot_inductor.compile_wrapper_opt_level": "O0",
                },
            )
            unfinished.rename(package)
    return package


def shared_object(package: Path) -> bytes:
    """Return the compiled `.so` in a package."""
    with zipfile.ZipFile(package) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".so")]
        return archive.read(name)
