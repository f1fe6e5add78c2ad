"""Loads models that OpenVINO runs on the CPU; names, datatypes, shapes and layouts are read from the file.

The formats are OpenVINO's IR (`.xml` with a `.bin` beside it), ONNX, TensorFlow Lite (`.tflite`) and TensorFlow's
`saved_model.pb` with the variables beside it.

If model.yaml declares another shape for an input, the model is reshaped before it is compiled. An input whose layout in
the file is NHWC takes encoded images.

An input or output of OpenVINO is called a port here.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ksrv.errors import LEADS_OUT
from ksrv.loaders.loaded import LoadedModel, LoadRequest, ModelLoadError, missing_dependency
from ksrv.loaders.named import NamedModel
from ksrv.loaders.onnx_external import check_external_data
from ksrv.model.datatypes import NAME_BY_DTYPE
from ksrv.model.input_rules import default_image
from ksrv.model.spec import Dimension, TensorSpec
from ksrv.request import Array

DATATYPES = {
    f"{dtype.kind}{8 * dtype.itemsize}": name
    for dtype, name in NAME_BY_DTYPE.items()
    if dtype.kind != "b"
} | {
    "boolean": "BOOL",
    "bf16": "BF16",
    "string": "BYTES",
}
PLATFORM = "OpenVINO"
Adapt: TypeAlias = Callable[[Any, LoadRequest], Any]
"""Changes an `openvino.Model` before it is compiled, and returns it."""

RUN_BYTES = 1 << 16
"""The bytes that an array of texts may have in addition to twice the texts' bytes; see `_text_tensor`."""
READ_TEXTS = 64
"""About how many texts are read together, in whole rows; see `_texts`."""

_IR = re.compile(rb"(\xef\xbb\xbf)?\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<net[\s>]", re.DOTALL)
"""The beginning of an IR: the element `net`, after a declaration and comments."""
_HEAD_BYTES = 4096
SAVED_MODEL = "saved_model.pb"
"""The name of a TensorFlow SavedModel. Any other `.pb` file is only a part of a model."""

_FORGOTTEN = (
    "the model has variables, which begin anew with each batch of requests; 'stateful': true in a config.json, or a "
    "handler with sequences that calls states() and set_states(), keeps them"
)
_WHERE = re.compile(r"(Exception from|Check '[^']*' failed at) \S+:\d+:?")
"""The parts of OpenVINO's messages that name its source files."""


class OpenVinoModel(NamedModel):
    """A compiled model with one infer request, called like a function.

    Args:
        compiled: The `openvino.CompiledModel`.
        inputs: The inputs of the file, in its order.
        outputs: The names of the outputs of the file, in its order.
        declared: The names that model.yaml gives the inputs, in its order.

    Attributes:
        compiled: The `openvino.CompiledModel`, for handlers that want more.
    """

    def __init__(
        self,
        compiled: Any,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[str],
        declared: Sequence[str] = (),
    ) -> None:
        super().__init__([spec.name for spec in inputs], outputs, declared)
        self.compiled = compiled
        self._request = compiled.create_infer_request()
        self._variables = list(self._request.query_state())
        # For each input, the index of its port, and its datatype.
        self._ports = {spec.name: (index, spec.datatype) for index, spec in enumerate(inputs)}
        kinds = [_kind(port) for port in compiled.outputs]
        self._results = list(enumerate(zip(outputs, kinds, strict=True)))
        self._gives_texts = "BYTES" in kinds

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """See `NamedModel.run`; BF16 tensors are arrays of 16-bit patterns."""
        given = {}
        for name, array in feeds.items():
            index, datatype = self._ports[name]
            given[index] = _tensor(array, datatype)
        if self._gives_texts:
            # `infer` would return texts as arrays of numpy's S; see `_text_tensor`.
            self._request.start_async(given, share_inputs=True)
            self._request.wait()
            return {name: self._output(index, kind) for index, (name, kind) in self._results}
        found = self._request.infer(given, share_inputs=True, share_outputs=False)
        return {name: _plain(found[index], kind) for index, (name, kind) in self._results}

    def states(self) -> dict[str, Array]:
        """Return the model's variables by name, as the last run left them."""
        return {variable.name: np.array(variable.state.data) for variable in self._variables}

    def set_states(self, states: Mapping[str, Array] | None) -> None:
        """Set the model's variables for the next run.

        Args:
            states: The values by name, as `states` returns them; None for the initial values.
        """
        import openvino

        for variable in self._variables:
            if states is None:
                variable.reset()
            else:
                variable.state = openvino.Tensor(states[variable.name])

    def _output(self, index: int, kind: str) -> Array:
        tensor = self._request.get_output_tensor(index)
        return _texts(tensor) if kind == "BYTES" else _plain(np.array(tensor.data), kind)


def load(request: LoadRequest, adapt: Adapt | None = None) -> LoadedModel:
    """Load a model by OpenVINO.

    Args:
        request: The file, the thread budget and the options.
        adapt: Changes the model before it is compiled, for a dialect; None reshapes it to the declared inputs.

    Returns:
        The model with the inputs and outputs of the file, reshaped.

    Raises:
        ModelLoadError: openvino is missing, cannot read the file, or cannot give it the wanted shapes.
    """
    path = request.path
    if path is None:
        raise ModelLoadError("OpenVINO needs a model file; name it under model: in model.yaml")
    if request.device != "cpu":
        raise ModelLoadError(
            f"{path} cannot run on {request.device}: OpenVINO's models run on the CPU; set device: cpu"
        )
    try:
        import openvino
    except ModuleNotFoundError:
        raise missing_dependency("openvino", f"the model {path}") from None
    core = openvino.Core()
    # With mmap, a weights file that is overwritten would change the weights of the loaded model.
    core.set_property({"ENABLE_MMAP": False})
    try:
        model = _read(core, path, request.root)
        if adapt is None:
            reshape(model, _declared(request, {name_of(port): port for port in model.inputs}))
        else:
            model = adapt(model, request)
        known = list(map(name_of, model.outputs))
        for result in list(model.get_results()):
            if not request.is_needed(name_of(result.output(0)), known):
                model.remove_result(result)  # the plugin leaves out what no result needs
        # Before the compilation, which may give a port further names.
        outputs = list(map(name_of, model.outputs))
        # The plugin would compute FP32 in BF16 on processors that have it, which changes answers.
        properties: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }
        if request.threads:
            properties["INFERENCE_NUM_THREADS"] = request.threads
        compiled = core.compile_model(model, "CPU", properties | dict(request.properties))
    except ModelLoadError:
        raise
    except Exception as error:  # noqa: BLE001  openvino raises RuntimeError, and others of its binding
        reason = _WHERE.sub("", " ".join(str(error).split()))
        raise ModelLoadError(
            f"{path} cannot be loaded by OpenVINO {openvino.__version__}: {' '.join(reason.split())[:300]}; copy the "
            f"file with all that belongs to it, or convert the model again"
        ) from None
    inputs = tuple(_input(port, path) for port in compiled.inputs)
    made = OpenVinoModel(compiled, inputs, outputs, [spec.name for spec in request.inputs])
    forgets = bool(model.get_variables())
    return LoadedModel(
        made,
        False,
        PLATFORM,
        inputs,
        _outputs(compiled.outputs, outputs, path),
        tuple(name for name in known if name not in outputs),
        note=_FORGOTTEN if forgets else None,
        forget=partial(made.set_states, None) if forgets else None,
    )


def _read(core: Any, path: Path, root: Path) -> Any:
    """Return the model of a file, after the check that all its files are in the model's folder."""
    if path.suffix == ".xml":
        return core.read_model(path, _weights(path, root))
    if path.suffix == ".onnx":
        check_external_data(path, root)
    elif path.name == SAVED_MODEL:
        for file in path.parent.rglob("*"):
            if not file.resolve().is_relative_to(root.resolve()):
                raise ModelLoadError(f"{file} {LEADS_OUT}")
        return core.read_model(path.parent)
    elif path.suffix == ".pb":
        raise ModelLoadError(f"{path}: of TensorFlow's files {SAVED_MODEL} is read")
    return core.read_model(path)


def _weights(path: Path, root: Path) -> Path:
    """Return the `.bin` beside an IR."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not _IR.match(head):
        raise ModelLoadError(f"{path} is not an OpenVINO IR: expected XML that begins with <net>")
    weights = path.with_suffix(".bin")
    if not weights.is_file():
        raise ModelLoadError(f"{path} needs its weights in {weights.name} beside it")
    if not weights.resolve().is_relative_to(root.resolve()):
        raise ModelLoadError(f"{weights} {LEADS_OUT}")
    return weights


def reshape(model: Any, wanted: Mapping[str, tuple[Dimension, ...]]) -> None:
    """Reshape inputs of a model, by the names of the inputs."""
    import openvino

    shapes = {}
    for port in model.inputs:
        if (shape := wanted.get(name_of(port))) is not None:
            bounds = (size if isinstance(size, tuple) else (size,) for size in shape)
            wanted_shape = openvino.PartialShape([openvino.Dimension(*bound) for bound in bounds])
            if wanted_shape != port.get_partial_shape():
                shapes[port] = wanted_shape
    if shapes:
        model.reshape(shapes)


def _declared(request: LoadRequest, ports: Mapping[str, Any]) -> dict[str, tuple[Dimension, ...]]:
    """Return the shapes that model.yaml declares for the inputs of the file, by the names in the file.

    If model.yaml has as many inputs as the file, but with other names, they are matched by their order. A handler that
    overrides the stages before the model may declare other inputs than the file. A declared input then changes an
    input of the file only if the datatype and all sizes but the number of rows are equal.
    """
    specs = {spec.name: spec for spec in request.inputs}
    if len(ports) == len(specs) and set(specs) != set(ports):
        specs = dict(zip(ports, request.inputs, strict=True))
    shapes = {}
    for name, port in ports.items():
        spec = specs.get(name)
        if spec is None:
            continue
        shape = spec.shape
        if spec.image is not None and spec.image.model_layout == "NCHW" and len(shape) == 4:
            shape = (shape[0], shape[3], shape[1], shape[2])
        in_file = port.get_partial_shape()
        is_same = _kind(port) == spec.datatype and (
            in_file.rank.is_dynamic or tuple(map(dimension, in_file))[1:] == shape[1:]
        )
        if request.passes_inputs or is_same:
            shapes[name] = shape
    return shapes


def dimension(size: Any) -> Dimension:
    """Return the dimension of an `openvino.Dimension`."""
    if size.is_static:
        return int(size.get_length())
    low, high = size.get_min_length(), size.get_max_length()
    return (max(low, 1), high) if high > 0 else -1


def _shape(port: Any) -> tuple[Dimension, ...]:
    """Return a port's shape. A first dimension that is a range becomes -1, the batch dimension."""
    sizes = [dimension(size) for size in port.get_partial_shape()]
    if sizes and isinstance(sizes[0], tuple):
        sizes[0] = -1
    return tuple(sizes)


def name_of(port: Any) -> str:
    """Return a port's tensor name, or the name of its node if the tensor has none."""
    name: str = port.get_any_name() if port.get_names() else port.get_node().get_friendly_name()
    return name


def _kind(port: Any) -> str:
    """Return a port's KServe v2 datatype; "" for a type that KServe v2 lacks."""
    return DATATYPES.get(port.get_element_type().get_type_name(), "")


def _datatype(port: Any, name: str, path: Path) -> str:
    kind = _kind(port)
    if not kind:
        element = port.get_element_type().get_type_name()
        raise ModelLoadError(
            f"{path}: {name} is a tensor of {element}, which KServe v2 cannot carry"
        )
    return kind


def _input(port: Any, path: Path) -> TensorSpec:
    name = name_of(port)
    kind = _datatype(port, name, path)
    if port.get_partial_shape().rank.is_dynamic:
        raise ModelLoadError(
            f"{path}: the input {name!r} has any number of dimensions; declare its shape under inputs:"
        )
    shape = _shape(port)
    layout = re.sub(r"[\[\],]", "", port.get_node().get_layout().to_string())
    image = default_image(kind, shape) if layout in ("NHWC", "N...HWC", "N?HWC") else None
    return TensorSpec(name, kind, shape, image)


def _outputs(ports: Sequence[Any], names: Sequence[str], path: Path) -> tuple[TensorSpec, ...]:
    if any(port.get_partial_shape().rank.is_dynamic for port in ports):
        return ()
    return tuple(
        TensorSpec(name, _datatype(port, name, path), _shape(port))
        for port, name in zip(ports, names, strict=True)
    )


def _tensor(array: Array, datatype: str) -> Any:
    """Return an input in the form that OpenVINO takes."""
    if datatype == "BYTES":
        return _text_tensor(np.asarray(array, dtype=object))
    if datatype == "BF16":
        import openvino

        patterns = np.ascontiguousarray(array)
        return openvino.Tensor(patterns, openvino.Shape(patterns.shape), openvino.Type.bf16)
    return array


def _plain(array: Array, kind: str) -> Array:
    """Return an output array; BF16 as 16-bit patterns, like ksrv's arrays."""
    return array.view(np.uint16) if kind == "BF16" else array


def _text_tensor(array: Array) -> Any:
    """Return texts as a tensor of OpenVINO.

    It is filled from arrays of numpy's type S, in which every text takes as many bytes as the longest. To bound the
    memory, it is filled in runs: a run ends before its array takes more than twice the texts' bytes and `RUN_BYTES`.
    """
    import openvino

    texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.reshape(-1)]
    tensor = openvino.Tensor(openvino.Type.string, openvino.Shape([len(texts)]))
    first = longest = total = 0
    for index, text in enumerate(texts):
        longest, total = max(longest, len(text)), total + len(text)
        if (index + 1 - first) * longest > 2 * total + RUN_BYTES:
            _part(tensor, first, index).bytes_data = np.array(texts[first:index], dtype="S")
            first, longest, total = index, len(text), len(text)
    if texts:
        _part(tensor, first, len(texts)).bytes_data = np.array(texts[first:], dtype="S")
    tensor.shape = list(array.shape)
    return tensor


def _texts(tensor: Any) -> Array:
    """Return the texts of a tensor, read a few rows at a time for the reason that `_text_tensor` gives."""
    shape = tuple(tensor.shape)
    found = np.empty(shape, dtype=object)
    if not shape:
        found[()] = tensor.bytes_data[()]
    elif 0 not in shape:  # For a tensor without elements, OpenVINO would read out of bounds.
        rows = max(READ_TEXTS * shape[0] // found.size, 1)
        for first in range(0, shape[0], rows):
            end = min(first + rows, shape[0])
            found[first:end] = _part(tensor, first, end).bytes_data
    return found


def _part(tensor: Any, first: int, end: int) -> Any:
    """Return a view of some rows of a tensor."""
    import openvino

    rest = list(tensor.shape)[1:]
    start = openvino.Coordinate([first, *[0] * len(rest)])
    return openvino.Tensor(tensor, start, openvino.Coordinate([end, *rest]))
