"""ONNX models of the names and shapes that other projects' clients ask for, with random weights."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str]


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: object,
    outputs: object,
    **constants: np.ndarray,
) -> None:
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, path.parent.name, inputs, outputs, weights)
    path.parent.mkdir(parents=True, exist_ok=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))


def classifier(
    path: Path, given: str, shape: Shape, answered: str, answer: Shape, channels: int
) -> None:
    """Write a network that takes an image's mean colours to classes."""
    classes = max(size for size in answer if isinstance(size, int))
    weights = np.random.default_rng(3).normal(size=(3, classes)).astype(np.float32)
    axes = [axis for axis in (1, 2, 3) if axis != channels]
    nodes = [
        helper.make_node("ReduceMean", [given], ["mean"], axes=axes, keepdims=0),
        helper.make_node("MatMul", ["mean", "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["softmax"], axis=1),
        helper.make_node("Reshape", ["softmax", "shape"], [answered]),
    ]
    sizes = np.array([size if isinstance(size, int) else -1 for size in answer], np.int64)
    save(
        path,
        nodes,
        [helper.make_tensor_value_info(given, TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info(answered, TensorProto.FLOAT, list(answer))],
        weights=weights,
        shape=sizes,
    )


def identity(path: Path, kinds: Sequence[int], shape: Shape) -> None:
    """Write a model that answers INPUT0, INPUT1, ... as OUTPUT0, OUTPUT1, ..."""
    save(
        path,
        [
            helper.make_node("Identity", [f"INPUT{index}"], [f"OUTPUT{index}"])
            for index in range(len(kinds))
        ],
        [
            helper.make_tensor_value_info(f"INPUT{index}", kind, list(shape))
            for index, kind in enumerate(kinds)
        ],
        [
            helper.make_tensor_value_info(f"OUTPUT{index}", kind, list(shape))
            for index, kind in enumerate(kinds)
        ],
    )


def add_sub(path: Path, given: int, answered: int, shape: Shape) -> None:
    """Write Triton's most used test model: OUTPUT0 is INPUT0 + INPUT1, OUTPUT1 is INPUT0 - INPUT1."""
    save(
        path,
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["sum"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["difference"]),
            helper.make_node("Cast", ["sum"], ["OUTPUT0"], to=answered),
            helper.make_node("Cast", ["difference"], ["OUTPUT1"], to=answered),
        ],
        [helper.make_tensor_value_info(f"INPUT{index}", given, list(shape)) for index in (0, 1)],
        [
            helper.make_tensor_value_info(f"OUTPUT{index}", answered, list(shape))
            for index in (0, 1)
        ],
    )
