"""OpenVINO models that tests make, and the answers that OpenVINO gives without a server."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

flatbuffers = pytest.importorskip("flatbuffers")  # ONNX Runtime brings it
openvino = pytest.importorskip("openvino")
ops: Any = pytest.importorskip("openvino.opset13")


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
    """A model of TensorFlow Lite: y = x + x for two rows of four."""
    made = flatbuffers.Builder(0)

    def vector(values: Sequence[int], prepend: Any) -> int:
        made.StartVector(4, len(values), 4)
        for value in reversed(values):
            prepend(value)
        found: int = made.EndVector()
        return found

    def sizes(values: Sequence[int]) -> int:
        return vector(values, made.PrependInt32)

    def tables(values: Sequence[int]) -> int:
        return vector(values, made.PrependUOffsetTRelative)

    def table(*fields: tuple[int, str, int]) -> int:
        """A table of (slot, type, value), as in TensorFlow Lite's schema."""
        made.StartObject(max((slot for slot, _, _ in fields), default=-1) + 1)
        for slot, kind, value in fields:
            getattr(made, f"Prepend{kind}Slot")(slot, value, 0)
        found: int = made.EndObject()
        return found

    def tensor(name: str) -> int:
        text, shape = made.CreateString(name), sizes([2, 4])
        return table((0, "UOffsetTRelative", shape), (3, "UOffsetTRelative", text))

    tensors = tables([tensor("x"), tensor("y")])
    taken, given, options = sizes([0, 0]), sizes([1]), table()
    add = table(
        (1, "UOffsetTRelative", taken),
        (2, "UOffsetTRelative", given),
        (3, "Uint8", 11),  # AddOptions
        (4, "UOffsetTRelative", options),
    )
    inputs, outputs, operators = sizes([0]), sizes([1]), tables([add])
    graph = table(
        (0, "UOffsetTRelative", tensors),
        (1, "UOffsetTRelative", inputs),
        (2, "UOffsetTRelative", outputs),
        (3, "UOffsetTRelative", operators),
    )
    graphs, buffers = tables([graph]), tables([table()])
    codes = tables([table((2, "Int32", 1))])  # ADD is operator 0; this is its version
    model = table(
        (0, "Uint32", 3),
        (1, "UOffsetTRelative", codes),
        (2, "UOffsetTRelative", graphs),
        (4, "UOffsetTRelative", buffers),
    )
    made.Finish(model, b"TFL3")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(made.Output())
    return path


def write_saved_model(folder: Path) -> Path:
    """A model of TensorFlow: output = input + input for rows of four."""

    def varint(number: int) -> bytes:
        number %= 1 << 64
        found = b""
        while number > 127:
            found += bytes([number & 127 | 128])
            number >>= 7
        return found + bytes([number])

    def field(number: int, value: int | str | bytes) -> bytes:
        if isinstance(value, int):
            return varint(number << 3) + varint(value)
        raw = value.encode() if isinstance(value, str) else value
        return varint(number << 3 | 2) + varint(len(raw)) + raw

    def entry(number: int, key: str, value: bytes) -> bytes:
        return field(number, field(1, key) + field(2, value))

    shape = field(2, field(1, -1)) + field(2, field(1, 4))
    kind = field(6, 1)  # DT_FLOAT
    x = field(1, "x") + field(2, "Placeholder")
    x += entry(5, "dtype", kind) + entry(5, "shape", field(7, shape))
    y = field(1, "y") + field(2, "AddV2") + field(3, "x") + field(3, "x") + entry(5, "T", kind)
    signature = b"".join(
        entry(number, name, field(1, tensor) + field(2, 1) + field(3, shape))
        for number, name, tensor in ((1, "input", "x:0"), (2, "output", "y:0"))
    )
    graph = field(1, x) + field(1, y)
    meta = field(1, field(4, "serve")) + field(2, graph)
    meta += entry(5, "serving_default", signature + field(3, "tensorflow/serving/predict"))
    (folder / "variables").mkdir(parents=True, exist_ok=True)
    path = folder / "saved_model.pb"
    path.write_bytes(field(1, 1) + field(2, meta))
    return path
