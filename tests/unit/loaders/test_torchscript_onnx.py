"""Bare TorchScript and ONNX files are served with the inputs and outputs that they declare."""

import subprocess
import sys

import numpy as np
import pytest

from ksrv.handlers import handler_context
from ksrv.handlers.runner import HandlerLoadError, Runner
from ksrv.repository.layout import Repository
from ksrv.request import ExecutorInputs, RequestPart, Tensor
from tests.support.model_files.onnx_models import write_graph


def run(path, array):
    [entry] = Repository([path]).scan().values()
    runner = Runner(entry.versions[""])
    spec = runner.load()
    name = spec.inputs[0].name if spec.inputs else "x"
    tensor = Tensor(name, "FP32", array.shape, array)
    answer = runner.run(
        ExecutorInputs({name: tensor}, len(array), [RequestPart(slice(0, len(array)))])
    )
    runner.close()
    return spec, answer


def write_relu(path):
    row = ("FP32", ("N", 3))
    write_graph(path, [("Relu", ["in-1"], ["out.1"], {})], {"in-1": row}, {"out.1": row})


def test_an_onnx_model_does_not_import_torch(tmp_path):
    write_relu(tmp_path / "relu.onnx")
    code = f"""
import sys
from ksrv.handlers.runner import HandlerLoadError, Runner
from ksrv.repository.layout import Repository
[entry] = Repository([{str(tmp_path / "relu.onnx")!r}]).scan().values()
Runner(entry.versions[""], threads=2).load()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_auto_goes_to_the_cpu_where_the_gpu_does_not_work(tmp_path, monkeypatch, caplog):
    write_relu(tmp_path / "relu.onnx")
    monkeypatch.setattr(handler_context, "choose_onnx_device", lambda wanted, instance: "cuda:0")
    _, answer = run(tmp_path / "relu.onnx", np.array([[-1, 0, 2]], np.float32))
    assert answer.tensors[0].data.tolist() == [[0, 0, 2]]
    assert "on the CPU" in caplog.text


def load(folder, *inputs):
    lines = "".join(
        f"  - {{name: {name}, datatype: {datatype}, shape: [-1, 2]}}\n" for name, datatype in inputs
    )
    nodes, row = [("Sub", ["a", "b"], ["c"], {})], ("FP32", ("N", 2))
    write_graph(folder / "m/d.onnx", nodes, {"a": row, "b": row}, {"c": row})
    (folder / "m/model.yaml").write_text(f"model: d.onnx\ninputs:\n{lines}")
    entry = Repository([folder]).scan()["m"]
    runner = Runner(entry.versions[""])
    runner.load()
    return runner


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ("in-1", "in-2")])
def test_declared_names_go_to_an_onnx_model_by_name_or_by_position(tmp_path, names):
    runner = load(tmp_path, *((name, "FP32") for name in names))
    values = {"a": 5, "b": 1, "in-1": 5, "in-2": 1}
    tensors = {
        name: Tensor(name, "FP32", (1, 2), np.full((1, 2), values[name], np.float32))
        for name in reversed(names)
    }
    answer = runner.run(ExecutorInputs(tensors, 1, [RequestPart(slice(0, 1))]))
    assert answer.tensors[0].data.tolist() == [[4, 4]]
    runner.close()


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([("a", "FP32")], "declares the inputs a; the model file has a, b"),
        ([("a", "FP32"), ("b", "FP64")], "'b' as FP64; in the model file 'b' is FP32"),
        ([("x", "INT64"), ("y", "FP32")], "'x' as INT64; in the model file 'a' is FP32"),
    ],
)
def test_declared_inputs_that_the_file_cannot_take_fail_the_model(tmp_path, inputs, words):
    with pytest.raises(HandlerLoadError, match=words):
        load(tmp_path, *inputs)
