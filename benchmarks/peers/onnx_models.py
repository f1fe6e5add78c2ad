"""The models of W5, W6 and W8 as ONNX files, with random weights: only their computation counts."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FEATURES = 30
TREES = 100
DEPTH = 8


class _Graph:
    """Nodes and random weights, in the order in which they are made."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._rng = np.random.default_rng(0)

    def store(self, name: str, values: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def random(self, name: str, *shape: int, fan_in: int) -> str:
        values = self._rng.normal(0, np.sqrt(1.5 / fan_in), shape)
        return self.store(name, values.astype(np.float32))

    def apply(self, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def convolution(
        self, x: str, name: str, sizes: tuple[int, int], kernel: int, stride: int
    ) -> str:
        before, after = sizes
        shape = after, before, kernel, kernel
        weight = self.random(f"{name}.weight", *shape, fan_in=before * kernel * kernel)
        pads, strides = [kernel // 2] * 4, [stride, stride]
        return self.apply(
            "Conv", [x, weight], name, kernel_shape=[kernel, kernel], pads=pads, strides=strides
        )

    def dense(self, x: str, name: str, before: int, after: int) -> str:
        weight = self.random(f"{name}.weight", before, after, fan_in=before)
        bias = self.random(f"{name}.bias", after, fan_in=before)
        product = self.apply("MatMul", [x, weight], f"{name}.product")
        return self.apply("Add", [product, bias], name)

    def normed(self, x: str, name: str, width: int) -> str:
        scale = self.store(f"{name}.scale", np.ones(width, np.float32))
        bias = self.store(f"{name}.bias", np.zeros(width, np.float32))
        return self.apply("LayerNormalization", [x, scale, bias], name, axis=-1)

    def model(self, name: str, inputs: list[Any], outputs: list[Any]) -> Any:
        return helper.make_graph(self.nodes, name, inputs, outputs, self.weights)


def _network(blocks: tuple[int, ...], widest: int, *, bottleneck: bool) -> Any:
    """ResNet's layers for pictures of 224x224.

    Args:
        blocks: Blocks of each of the four groups.
        widest: Channels of the last group; ResNet has 512.
        bottleneck: Whether a block is three convolutions, the last with four times the channels.
    """
    graph = _Graph()
    before = widest // 8
    x = graph.apply("Relu", [graph.convolution("x", "stem", (3, before), 7, 2)], "stem.relu")
    x = graph.apply("MaxPool", [x], "pool", kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    for layer, count in enumerate(blocks):
        channels = widest >> (3 - layer)
        after = channels * (4 if bottleneck else 1)
        for block in range(count):
            name, stride = f"layer{layer}.{block}", 2 if layer and not block else 1
            y = x
            if bottleneck:
                y = graph.convolution(y, f"{name}.narrow", (before, channels), 1, 1)
                y = graph.apply("Relu", [y], f"{name}.narrow.relu")
            y = graph.convolution(
                y, f"{name}.first", (channels if bottleneck else before, channels), 3, stride
            )
            y = graph.apply("Relu", [y], f"{name}.relu")
            y = graph.convolution(y, f"{name}.second", (channels, after), 1 if bottleneck else 3, 1)
            if stride == 2 or before != after:
                x = graph.convolution(x, f"{name}.shortcut", (before, after), 1, stride)
            x = graph.apply("Relu", [graph.apply("Add", [y, x], f"{name}.sum")], name)
            before = after
    x = graph.apply("Flatten", [graph.apply("GlobalAveragePool", [x], "average")], "features")
    x = graph.apply("MatMul", [x, graph.random("classes", before, 1000, fan_in=before)], "logits")
    ends = [
        graph.store(name, np.array([value]))
        for name, value in (("first", 0), ("last", 10), ("axis", 1))
    ]
    graph.apply("Slice", [x, *ends], "y")
    return graph.model(
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 224, 224])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
    )


def _text(layers: int = 4, width: int = 128, heads: int = 2) -> Any:
    """BERT's layers; the values of the words that count are averaged."""
    graph = _Graph()
    minus = graph.store("minus", np.array(-1e9, np.float32))
    zero, one = (graph.store(f"number{n}", np.array(n, np.float32)) for n in (0, 1))
    half, root = (graph.store(f"number{n}", np.array(n, np.float32)) for n in (0.5, np.sqrt(2)))
    split = graph.store("split", np.array([0, 0, heads, width // heads]))
    joined = graph.store("joined", np.array([0, 0, width]))
    scale = graph.store("scale", np.array((width // heads) ** -0.5, np.float32))
    start, step = graph.store("start", np.array(0)), graph.store("step", np.array(1))
    axes = graph.store("axes", np.array([1, 2]))
    last, second = graph.store("axis2", np.array([2])), graph.store("axis1", np.array([1]))

    length = graph.apply("Gather", [graph.apply("Shape", ["x"], "shape"), step], "length")
    places = graph.apply("Range", [start, length, step], "range")
    word = graph.apply("Gather", [graph.random("words", 30522, width, fan_in=1), "x"], "word")
    place = graph.apply("Gather", [graph.random("places", 512, width, fan_in=1), places], "place")
    x = graph.normed(graph.apply("Add", [word, place], "embedded"), "embedding", width)
    mask = graph.apply("Unsqueeze", ["mask", axes], "wide.mask")
    hidden = graph.apply("Where", [mask, zero, minus], "hidden")
    for layer in range(layers):
        name = f"layer{layer}"
        parts = []
        for part, order in (
            ("query", [0, 2, 1, 3]),
            ("key", [0, 2, 3, 1]),
            ("value", [0, 2, 1, 3]),
        ):
            y = graph.dense(x, f"{name}.{part}", width, width)
            y = graph.apply("Reshape", [y, split], f"{name}.{part}.split")
            parts.append(graph.apply("Transpose", [y], f"{name}.{part}.heads", perm=order))
        query, key, value = parts
        y = graph.apply("MatMul", [query, key], f"{name}.scores")
        y = graph.apply("Mul", [y, scale], f"{name}.scaled")
        y = graph.apply("Add", [y, hidden], f"{name}.masked")
        y = graph.apply("Softmax", [y], f"{name}.attention", axis=-1)
        y = graph.apply("MatMul", [y, value], f"{name}.attended")
        y = graph.apply("Transpose", [y], f"{name}.rows", perm=[0, 2, 1, 3])
        y = graph.apply("Reshape", [y, joined], f"{name}.joined")
        y = graph.dense(y, f"{name}.projected", width, width)
        x = graph.normed(graph.apply("Add", [x, y], f"{name}.sum"), f"{name}.normed", width)
        y = graph.dense(x, f"{name}.wide", width, 4 * width)
        error = graph.apply("Erf", [graph.apply("Div", [y, root], f"{name}.div")], f"{name}.erf")
        gate = graph.apply(
            "Mul", [graph.apply("Add", [error, one], f"{name}.plus"), half], f"{name}.gate"
        )
        y = graph.dense(
            graph.apply("Mul", [y, gate], f"{name}.gelu"), f"{name}.out", 4 * width, width
        )
        x = graph.normed(graph.apply("Add", [x, y], f"{name}.second"), name, width)
    kept = graph.apply(
        "Cast", [graph.apply("Unsqueeze", ["mask", last], "column")], "kept", to=TensorProto.FLOAT
    )
    total = graph.apply(
        "ReduceSum", [graph.apply("Mul", [x, kept], "words.kept"), second], "total", keepdims=0
    )
    count = graph.apply("ReduceSum", [kept, second], "count", keepdims=0)
    graph.apply("Div", [total, count], "y")
    return graph.model(
        "text",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n", "length"]),
         helper.make_tensor_value_info("mask", TensorProto.BOOL, ["n", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", width])],
    )  # fmt: skip


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
                nodes_modes=["BRANCH_LEQ" if inner else "LEAF" for inner in is_inner],
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


RESNET_18 = {"blocks": (2, 2, 2, 2), "widest": 512, "bottleneck": False}
"""11.7 million weights, 1.8 billion multiplications for a picture."""
NARROW_RESNET_50 = {"blocks": (3, 4, 6, 3), "widest": 128, "bottleneck": True}
"""ResNet-50's layers with a quarter of its channels: a sixteenth of its multiplications, for two cores."""


def write_onnx_models(folder: Path, network: dict[str, Any]) -> None:
    """Write network.onnx, with this network's sizes, forest.onnx and text.onnx."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graphs = {"network": _network(**network), "forest": _forest(), "text": _text()}
    for name, graph in graphs.items():
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, folder / f"{name}.onnx")
