"""Bare TorchScript and ONNX files are served by what they say of themselves."""

import subprocess
import sys

import numpy as np
import pytest

from ksrv.handlers import context
from ksrv.handlers.runner import Runner
from ksrv.repository.layout import Repository
from ksrv.request import BatchInputs, BatchRequest, Tensor

torch = pytest.importorskip("torch")


def run(path, array):
    [entry] = Repository([path]).scan().values()
    runner = Runner(entry.versions[""])
    spec = runner.load()
    name = spec.inputs[0].name if spec.inputs else "x"
    tensor = Tensor(name, "FP32", array.shape, array)
    answer = runner.run(
        BatchInputs({name: tensor}, len(array), [BatchRequest(slice(0, len(array)))])
    )
    runner.close()
    return spec, answer


def test_torchscript(tmp_path):
    module = torch.nn.Linear(3, 2).eval()
    torch.jit.script(module).save(str(tmp_path / "lin.pt"))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    spec, answer = run(tmp_path / "lin.pt", array)
    assert spec.platform == "pytorch_torchscript"
    want = module(torch.from_numpy(array)).detach().numpy()
    np.testing.assert_allclose(answer.tensors[0].data, want, rtol=1e-6)


def write_relu(path):
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["in-1"], ["out.1"])],
        "g",
        [value("in-1", TensorProto.FLOAT, ["N", 3])],
        [value("out.1", TensorProto.FLOAT, ["N", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)


def test_onnx(tmp_path):
    write_relu(tmp_path / "relu.onnx")
    spec, answer = run(tmp_path / "relu.onnx", np.array([[-1, 0, 2]], np.float32))
    assert [(one.name, one.datatype, one.shape) for one in spec.inputs] == [
        ("in-1", "FP32", (-1, 3))
    ]
    assert [one.name for one in spec.outputs] == ["out.1"]
    assert answer.tensors[0].name == "out.1"
    assert answer.tensors[0].data.tolist() == [[0, 0, 2]]


def test_an_onnx_model_does_not_import_torch(tmp_path):
    write_relu(tmp_path / "relu.onnx")
    code = f"""
import sys
from ksrv.handlers.runner import Runner
from ksrv.repository.layout import Repository
[entry] = Repository([{str(tmp_path / "relu.onnx")!r}]).scan().values()
Runner(entry.versions[""], threads=2).load()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_auto_goes_to_the_cpu_where_the_gpu_does_not_work(tmp_path, monkeypatch, caplog):
    write_relu(tmp_path / "relu.onnx")
    monkeypatch.setattr(context, "choose_onnx_device", lambda wanted, instance: "cuda:0")
    _, answer = run(tmp_path / "relu.onnx", np.array([[-1, 0, 2]], np.float32))
    assert answer.tensors[0].data.tolist() == [[0, 0, 2]]
    assert "on the CPU" in caplog.text
