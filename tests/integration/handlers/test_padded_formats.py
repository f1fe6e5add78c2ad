"""Model files whose inputs are padded: ONNX, TorchScript and exported programs answer each request as if alone."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ksrv.client import Client
from ksrv.testing import Server
from tests.support.model_files.onnx_models import write_graph

torch = pytest.importorskip("torch")

TENSORS = """
inputs:
  - {name: ids, datatype: INT64, shape: [-1, -1], pad: {value: 9, multiple: 4, mask: mask}}
  - {name: mask, datatype: FP32, shape: [-1, -1]}
outputs:
  - {name: tokens, datatype: FP32, shape: [-1, ids, 3]}
  - {name: pooled, datatype: FP32, shape: [-1, 3]}
batching: {max_batch_size: 8, max_delay_ms: 10}
"""
TABLE = np.random.default_rng(3).normal(size=(10, 3)).astype(np.float32)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.from_numpy(TABLE))

    def forward(self, ids, mask):
        tokens = torch.nn.functional.embedding(ids, self.table) * mask.unsqueeze(2)
        return tokens, tokens.sum(1)


def write_onnx(path):
    write_graph(
        path,
        [
            ("Gather", ["table", "ids"], ["rows"], {}),
            ("Unsqueeze", ["mask", "two"], ["wide"], {}),
            ("Mul", ["rows", "wide"], ["tokens"], {}),
            ("ReduceSum", ["tokens", "one"], ["pooled"], {"keepdims": 0}),
        ],
        {"ids": ("INT64", ["N", "L"]), "mask": ("FP32", ["N", "L"])},
        {"tokens": ("FP32", ["N", "L", 3]), "pooled": ("FP32", ["N", 3])},
        {"table": TABLE, "two": np.array([2]), "one": np.array([1])},
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("padded")
    net = Net().eval()
    for name, file in (("onnx", "net.onnx"), ("script", "net.pt"), ("export", "net.pt2")):
        (root / name).mkdir()
        (root / name / "model.yaml").write_text(f"model: {file}\n{TENSORS}")
    write_onnx(root / "onnx" / "net.onnx")
    torch.jit.script(net).save(str(root / "script" / "net.pt"))
    rows, length = torch.export.Dim("rows", max=64), torch.export.Dim("length", max=4096)
    program = torch.export.export(
        net,
        (torch.zeros(2, 6, dtype=torch.int64), torch.ones(2, 6)),
        dynamic_shapes={"ids": {0: rows, 1: length}, "mask": {0: rows, 1: length}},
    )
    torch.export.save(program, root / "export" / "net.pt2")
    with Server(root, start_timeout=300) as server:
        yield server


@pytest.mark.parametrize("model", ["onnx", "script", "export"])
@pytest.mark.parametrize("over", ["http", "grpc"])
def test_each_request_is_answered_as_if_alone(server, model, over):
    url = server.url if over == "http" else f"grpc://{server.grpc}"
    random = np.random.default_rng(5)
    many = [random.integers(0, 9, (1 + length % 2, length)) for length in range(1, 60, 4)]

    def ask(ids):
        with Client(url) as client:
            return client.infer(model, {"ids": ids})

    with ThreadPoolExecutor(8) as pool:
        for ids, outputs in zip(many, pool.map(ask, many), strict=True):
            np.testing.assert_array_equal(outputs["tokens"], TABLE[ids])
            np.testing.assert_allclose(outputs["pooled"], TABLE[ids].sum(axis=1), atol=1e-5)
