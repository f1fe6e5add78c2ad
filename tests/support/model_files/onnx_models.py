"""ONNX models that tests make, and the answers that ONNX Runtime gives without a server."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

KINDS = {
    "BOOL": 9, "UINT8": 2, "UINT16": 4, "UINT32": 12, "UINT64": 13, "INT8": 3, "INT16": 5,
    "INT32": 6, "INT64": 7, "FP16": 10, "FP32": 1, "FP64": 11, "BYTES": 8,
}  # fmt: skip
"""Datatypes of KServe v2, and ONNX's numbers of them."""

Shape = Sequence[int | str]


def write_graph(
    path: Path,
    nodes: Sequence[tuple[str, Sequence[str], Sequence[str], Mapping[str, Any]]],
    inputs: Mapping[str, tuple[str, Shape]],
    outputs: Mapping[str, tuple[str, Shape]],
    constants: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model; a text in a shape is a size of any value."""
    helper = onnx.helper
    made = [helper.make_node(kind, list(x), list(y), **given) for kind, x, y, given in nodes]
    infos = [
        [
            helper.make_tensor_value_info(name, KINDS[kind], list(shape))
            for name, (kind, shape) in side.items()
        ]
        for side in (inputs, outputs)
    ]
    weights = [
        onnx.numpy_helper.from_array(np.asarray(value), name)
        for name, value in (constants or {}).items()
    ]
    graph = helper.make_graph(made, path.stem, *infos, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def write_add_sub(path: Path, rows: int | str = "N", datatype: str = "FP32") -> Path:
    """Triton's own example: OUTPUT0 is the sum and OUTPUT1 the difference of two rows of four."""
    shape = (rows, 4) if rows else (4,)
    return write_graph(
        path,
        [("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"], {}), ("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"], {})],
        {"INPUT0": (datatype, shape), "INPUT1": (datatype, shape)},
        {"OUTPUT0": (datatype, shape), "OUTPUT1": (datatype, shape)},
    )  # fmt: skip


def write_scale(path: Path, factor: float, size: int = 4) -> Path:
    """y = x * factor for rows of some size."""
    return write_graph(
        path,
        [("Mul", ["x", "factor"], ["y"], {})],
        {"x": ("FP32", ("N", size))},
        {"y": ("FP32", ("N", size))},
        {"factor": np.float32(factor)},
    )


def run(path: Path, **inputs: Any) -> dict[str, Any]:
    """Return what ONNX Runtime answers itself."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))
