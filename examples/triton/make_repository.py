"""Makes a model repository of Triton: the settings in repository/, and the ONNX files that belong to them.

python examples/triton/make_repository.py colours
ksrv import colours
ksrv serve colours
python examples/triton/client.py 127.0.0.1:8080
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SETTINGS = Path(__file__).parent / "repository"


def save(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], **constants: Any
) -> None:
    """Write a model of some nodes."""
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, path.parents[1].name, inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir()
    onnx.save(model, path)


def main(target: Path) -> None:
    """Copy the settings and write the models."""
    shutil.copytree(SETTINGS, target)
    pixels = helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["rows", "h", "w", 3])
    mean = helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["rows", 3])
    likely = helper.make_tensor_value_info("likely", TensorProto.FLOAT, ["rows", 3])
    save(
        target / "mean_colour/1/model.onnx",
        [
            helper.make_node("Cast", ["pixels"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["numbers"], ["means"], axes=[1, 2], keepdims=0),
            helper.make_node("Div", ["means", "white"], ["mean"]),
        ],
        [pixels],
        [mean],
        white=np.array(255, np.float32),
    )
    save(
        target / "rank/1/model.onnx",
        [
            helper.make_node("Mul", ["mean", "sharpness"], ["sharp"]),
            helper.make_node("Softmax", ["sharp"], ["likely"], axis=1),
        ],
        [mean],
        [likely],
        sharpness=np.array(10, np.float32),
    )
    (target / "colour/1").mkdir()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
