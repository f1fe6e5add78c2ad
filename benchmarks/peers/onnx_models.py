"""The models of W5 and W6 as ONNX files, with random weights: only their computation counts."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FEATURES = 30
TREES = 100
DEPTH = 8


def _network() -> Any:
    """ResNet-18: 11.7 million weights, 1.8 billion multiplications for a picture of 224x224."""
    rng = np.random.default_rng(0)
    nodes: list[Any] = []
    weights: list[Any] = []

    def constant(name: str, *shape: int) -> str:
        fan_in = int(np.prod(shape[1:])) or 1
        values = rng.normal(0, np.sqrt(1.5 / fan_in), shape).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    def convolution(x: str, name: str, channels: tuple[int, int], kernel: int, stride: int) -> str:
        inputs = [x, constant(f"{name}.weight", channels[1], channels[0], kernel, kernel)]
        pads, sizes = [kernel // 2] * 4, [kernel, kernel]
        nodes.append(
            helper.make_node(
                "Conv", inputs, [name], kernel_shape=sizes, pads=pads, strides=[stride, stride]
            )
        )
        return name

    def apply(kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    x = apply("Relu", [convolution("x", "stem", (3, 64), 7, 2)], "stem.relu")
    x = apply("MaxPool", [x], "pool", kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    before = 64
    for layer, channels in enumerate((64, 128, 256, 512)):
        for block in range(2):
            name, stride = f"layer{layer}.{block}", 2 if layer and not block else 1
            first = convolution(x, f"{name}.first", (before, channels), 3, stride)
            first = apply("Relu", [first], f"{name}.relu")
            second = convolution(first, f"{name}.second", (channels, channels), 3, 1)
            if stride == 2:
                x = convolution(x, f"{name}.shortcut", (before, channels), 1, 2)
            scaled = apply("Add", [second, x], f"{name}.sum")
            x = apply("Relu", [scaled], name)
            before = channels
    x = apply("GlobalAveragePool", [x], "average")
    x = apply("Flatten", [x], "features")
    x = apply("MatMul", [x, constant("classes", 512, 1000)], "logits")
    weights.append(numpy_helper.from_array(np.array([0], np.int64), "first"))
    weights.append(numpy_helper.from_array(np.array([10], np.int64), "last"))
    weights.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    apply("Slice", [x, "first", "last", "axis"], "y")
    return helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 224, 224])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        weights,
    )


def _forest() -> Any:
    """Full binary trees, whose inner nodes compare one feature each."""
    rng = np.random.default_rng(1)
    inner, nodes = 2**DEPTH - 1, 2 ** (DEPTH + 1) - 1
    leaves = nodes - inner
    ids = np.tile(np.arange(nodes), TREES)
    is_inner = ids < inner
    return helper.make_graph(
        [
            helper.make_node(
                "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
                nodes_treeids=np.repeat(np.arange(TREES), nodes).tolist(),
                nodes_nodeids=ids.tolist(),
                nodes_modes=["BRANCH_LEQ" if one else "LEAF" for one in is_inner],
                nodes_featureids=np.where(is_inner, rng.integers(0, FEATURES, len(ids)), 0).tolist(),
                nodes_values=np.where(is_inner, rng.normal(0, 1, len(ids)), 0).tolist(),
                nodes_truenodeids=np.where(is_inner, 2 * ids + 1, 0).tolist(),
                nodes_falsenodeids=np.where(is_inner, 2 * ids + 2, 0).tolist(),
                target_treeids=np.repeat(np.arange(TREES), leaves).tolist(),
                target_nodeids=np.tile(np.arange(inner, nodes), TREES).tolist(),
                target_ids=[0] * (TREES * leaves),
                target_weights=rng.normal(0, 1, TREES * leaves).tolist(),
            )
        ],
        "forest",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
    )  # fmt: skip


def write_onnx_models(folder: Path) -> None:
    """Write network.onnx and forest.onnx."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    for name, graph in (("network", _network()), ("forest", _forest())):
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, folder / f"{name}.onnx")
