"""TorchScript models of a Triton repository: tensors by place, by name, as a dictionary."""

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from ksrv.testing import Server
from tests.support.model_files.triton_repository import infer, write_folder

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PLACES = """
platform: "pytorch_libtorch"
max_batch_size: 8
# The names decide the positions, and not the order here.
input { name: "RIGHT__1" data_type: TYPE_FP32 dims: 3 }
input { name: "LEFT__0" data_type: TYPE_FP32 dims: 3 }
output { name: "DIFFERENCE__1" data_type: TYPE_FP32 dims: 3 }
output { name: "SUM__0" data_type: TYPE_FP32 dims: 3 }
"""


class Places(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return left + right, left - right


class Named(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": left + right, "difference": left - right}


class Dictionary(torch.nn.Module):
    def forward(self, tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        return [tensors["a"] + tensors["b"], tensors["a"] - tensors["b"]]


class One(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1)


def tensors(side, *names):
    lines = (f'{side} {{ name: "{name}" data_type: TYPE_FP32 dims: 3 }}' for name in names)
    return "\n".join(lines)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("torchscript")
    start = 'backend: "pytorch" max_batch_size: 8\n'
    configs = {
        "places": (Places(), PLACES),
        "named": (
            Named(),
            start + tensors("input", "right", "left") + tensors("output", "difference", "sum"),
        ),
        "dictionary": (
            Dictionary(),
            start + tensors("input", "b", "a") + tensors("output", "sum", "difference"),
        ),
        "one": (
            One(),
            start
            + 'input { name: "INPUT__0" data_type: TYPE_FP32 dims: 6 reshape { shape: [3, 2] } }'
            + 'output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1, 2 ] reshape { shape: 2 } }',
        ),
        "fewer": (
            One(),
            start + tensors("input", "INPUT__0") + tensors("output", "OUTPUT__0", "OUTPUT__1"),
        ),
    }
    for name, (module, config) in configs.items():
        folder = write_folder(root, name, config)
        torch.jit.script(module.eval()).save(str(folder / "1/model.pt"))
    with Server(root) as running:
        yield running


@pytest.mark.parametrize(
    ("model", "inputs", "outputs"),
    [
        ("places", ("LEFT__0", "RIGHT__1"), ("SUM__0", "DIFFERENCE__1")),
        ("named", ("left", "right"), ("sum", "difference")),
        ("dictionary", ("a", "b"), ("sum", "difference")),
    ],
)
def test_tensors_reach_their_arguments(server, model, inputs, outputs):
    left, right = np.random.default_rng(3).standard_normal((2, 4, 3)).astype(np.float32)
    answer = infer(tritonclient.grpc, server, model, dict(zip(inputs, (left, right), strict=True)))
    np.testing.assert_array_equal(answer.as_numpy(outputs[0]), left + right)
    np.testing.assert_array_equal(answer.as_numpy(outputs[1]), left - right)


def test_reshapes_hold_for_torch_tensors(server):
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    answer = infer(tritonclient.grpc, server, "one", {"INPUT__0": x})
    expected = One()(torch.from_numpy(x).reshape(2, 3, 2)).numpy().reshape(2, 1, 2)
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT__0"), expected)


def test_the_platform_is_tritons(server):
    client = tritonclient.http.InferenceServerClient(server.http)
    metadata = client.get_model_metadata("places")
    assert metadata["platform"] == "pytorch_libtorch"
    assert [one["name"] for one in metadata["inputs"]] == ["RIGHT__1", "LEFT__0"]


def test_a_module_with_fewer_results_says_so(server):
    with pytest.raises(tritonclient.grpc.InferenceServerException, match="returned 1 outputs"):
        infer(tritonclient.grpc, server, "fewer", {"INPUT__0": np.zeros((1, 3), np.float32)})
