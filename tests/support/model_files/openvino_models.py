"""OpenVINO models that tests make, and the answers that OpenVINO gives without a server."""

import base64
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

openvino = pytest.importorskip("openvino")
ops: Any = pytest.importorskip("openvino.opset13")

TFLITE = (
    "eNplTzEOgzAQc9IMFUSIIQMPYOwGb2Dq2LEPgZ/wPH6S+o5LQOpFjnI+++QMAD7LewI6JPSIeJIJ7IAXMRPCPAhH9JBq"
    "lBNdY7zTDthzzkUX68bA++QSMRBf84w3v0OpTnXibS1LOgdt2RH0XD6Pq7zllvnBPMne3lB8m2aM9S+x7v7XrsQPBvwN"
    "Dg=="
)
"""y = x + x for two rows of four, as a file of TensorFlow Lite's schema of version 3: zlib in base64."""
SAVED_MODEL = (
    "eNrjYBS6z8jFrsRanFpUlioUwWXNxVghxB2Qk5icmpGfk5JapMXNxZpSUlmQKsRkwKglw8VanJEI5AhbCQpxc/yHAUYh"
    "Jg4WLkkuxkohVseUlDAjKcYKINJi52IMAWus4uIHWZGZlx6fkpqWWJpTIpTOpczFmplXUFoiJMXFXGFlIMAohWmokAoX"
    "W35pCVRVJQ5VUlIlqXnF+UVpOfnl+lCL9AuKUlMyk0sAyiRI6Q=="
)
"""output = input + input for rows of four, as a saved_model.pb with the signature serving_default: the same."""


def parameter(
    name: str, shape: Sequence[int | tuple[int, int]], kind: str = "f32", layout: str = ""
) -> Any:
    """An input; a size is a number, -1 for any, or a range."""
    sizes = [openvino.Dimension(*one) if isinstance(one, tuple) else one for one in shape]
    made = ops.parameter(openvino.PartialShape(sizes), getattr(openvino.Type, kind))
    made.output(0).get_tensor().set_names({name})
    made.set_friendly_name(name)
    if layout:
        made.set_layout(openvino.Layout(layout))
    return made


def write_ir(
    path: Path, inputs: Sequence[Any], outputs: Mapping[str, Any], sinks: Sequence[Any] = ()
) -> Path:
    """Write `path` and the `.bin` beside it; sinks write variables."""
    results = []
    for name, node in outputs.items():
        node.output(0).get_tensor().add_names({name})
        results.append(ops.result(node))
    path.parent.mkdir(parents=True, exist_ok=True)
    model = openvino.Model(results, list(sinks), list(inputs), path.stem)
    openvino.save_model(model, path, compress_to_fp16=False)
    return path


def write_scale(path: Path, factor: float, rows: int = -1) -> Path:
    """y = x * factor for rows of four."""
    x = parameter("x", [rows, 4])
    return write_ir(path, [x], {"y": ops.multiply(x, ops.constant(np.array([factor], np.float32)))})


def write_convolution(path: Path, layout: str = "", rows: int = 1) -> Path:
    """A small convolution over pictures of 8x8, channels first, and its mean by channel."""
    image = parameter("image", [rows, 3, 8, 8], layout=layout)
    weights = np.random.default_rng(2).standard_normal((5, 3, 3, 3)).astype(np.float32)
    found = ops.convolution(image, ops.constant(weights), [1, 1], [1, 1], [1, 1], [1, 1])
    mean = ops.reduce_mean(ops.relu(found), ops.constant(np.array([2, 3])), keep_dims=False)
    return write_ir(path, [image], {"scores": mean})


def write_mean(path: Path, layout: str = "NHWC") -> Path:
    """The mean colour of pictures, channels last."""
    image = parameter("image", [-1, 32, 32, 3], layout=layout)
    mean = ops.reduce_mean(image, ops.constant(np.array([1, 2])), keep_dims=False)
    return write_ir(path, [image], {"mean": mean})


def run(path: Path, *arrays: Any, shapes: Mapping[str, Any] | None = None) -> list[Any]:
    """Return what OpenVINO answers itself."""
    core = openvino.Core()
    model = core.read_model(path)
    if shapes:
        model.reshape({name: openvino.PartialShape(list(one)) for name, one in shapes.items()})
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    found = request.infer(list(arrays))
    return [np.array(found[place]) for place in range(len(model.outputs))]


def write_running_sum(path: Path, first: float) -> Path:
    """y = the sum of all x since the variable was reset, and of `first`."""
    x = parameter("x", [1, 2])
    before = ops.read_value(
        ops.constant(np.full((1, 2), first, np.float32)), "sum", openvino.Type.f32, [1, 2]
    )
    after = ops.add(before, x)
    return write_ir(path, [x], {"y": after}, [ops.assign(after, "sum")])


def write_looped_sum(path: Path) -> Path:
    """y = the sum of x so far, column by column, by a loop of as many steps as there are columns."""
    x, total = parameter("x", [1, -1]), parameter("total", [1, 1])
    column = parameter("column", [1, 1])
    after = ops.add(total, column)
    loop = ops.tensor_iterator()
    loop.set_function(openvino.Model([after], [column, total], "body"))
    loop.set_sliced_input(column, x.output(0), 0, 1, 1, -1, 1)
    loop.set_merged_input(
        total, ops.constant(np.zeros((1, 1), np.float32)).output(0), after.output(0)
    )
    found = loop.get_iter_value(after.output(0), -1)
    return write_ir(path, [x], {"y": ops.reshape(found, ops.constant(np.array([1, 1])), False)})


def write_tflite(path: Path) -> Path:
    """Write the model that doubles its input as a file of TensorFlow Lite."""
    return _write(path, TFLITE)


def write_saved_model(folder: Path) -> Path:
    """Write the model that doubles its input as a folder of TensorFlow."""
    (folder / "variables").mkdir(parents=True, exist_ok=True)
    return _write(folder / "saved_model.pb", SAVED_MODEL)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zlib.decompress(base64.b64decode(text)))
    return path
