"""ONNX files (`.onnx`) by ONNX Runtime: names, types and shapes come from the file itself.

`OnnxModel` wraps the session, so that the default `inference` can call it like any model. A handler can use the session
itself, as `self.model.session`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ksrv._native.tensor.datatype import TENSOR_NAMES
from ksrv.errors import did_you_mean, quote
from ksrv.loaders.loaded import LoadedModel, LoadRequest, ModelLoadError, missing_dependency
from ksrv.loaders.named import NamedModel
from ksrv.loaders.onnx_external import check_external_data
from ksrv.model.spec import Dimension, TensorSpec
from ksrv.request import Array

DATATYPES = {f"tensor({shown})": name for name, shown in TENSOR_NAMES.items()} | {
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}

CPU_PROVIDER = "CPUExecutionProvider"
_OF_CUDA = ("CUDAExecutionProvider", "TensorrtExecutionProvider")
"""The providers whose option `device_id` is the number of a CUDA device."""
_ZIPMAP = ": skl2onnx does so with options={'zipmap': False}"
_ORIGIN = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from \S+ failed:|/\S+:\d+ .*?\)(?: const)? (?=[A-Z])"
)
"""The parts of ONNX Runtime's messages that name its source files, or the model file again."""


class OnnxModel(NamedModel):
    """An ONNX Runtime session that is called like a function.

    Args:
        session: The `onnxruntime.InferenceSession`.
        outputs: The names of the outputs to return.
        declared: The names that model.yaml gives the inputs, in its order.

    Attributes:
        session: The `onnxruntime.InferenceSession`, for handlers that want more.
    """

    def __init__(self, session: Any, outputs: Sequence[str], declared: Sequence[str] = ()) -> None:
        super().__init__([entry.name for entry in session.get_inputs()], outputs, declared)
        self.session = session
        self._strings = {
            entry.name for entry in session.get_inputs() if entry.type == "tensor(string)"
        }

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """See `NamedModel.run`."""
        given = {
            name: _as_text(array) if name in self._strings else np.asarray(array)
            for name, array in feeds.items()
        }
        results = self.session.run(list(self.outputs), given)
        return dict(zip(self.outputs, results, strict=True))


def load(request: LoadRequest) -> LoadedModel:
    """Load an ONNX file.

    Args:
        request: The file, the device and the thread budget.

    Returns:
        The model with the inputs and outputs that the file declares.

    Raises:
        ModelLoadError: onnxruntime is missing, cannot read the file, or has no provider for the device.
    """
    path = request.path
    if path is None:
        raise ModelLoadError("ONNX needs a model file; name it under model: in model.yaml")
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise missing_dependency("onnxruntime", f"the model {path}") from None
    check_external_data(path, request.root)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if request.threads:
        options.intra_op_num_threads = request.threads
        options.inter_op_num_threads = 1
    for name, value in request.onnx.options.items():
        _set_option(options, name, value, path, onnxruntime)
    chosen = request.onnx.providers
    available = onnxruntime.get_available_providers()
    providers = (
        _chosen_providers(chosen, request.device, available, path)
        if chosen
        else _providers(request.device, available, path)
    )
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # noqa: BLE001  onnxruntime raises a class for each status code
        reason = _reason(str(error))
        raise ModelLoadError(
            f"{path} cannot be loaded by ONNX Runtime {onnxruntime.__version__}: {reason}; {_remedy(reason)}"
        ) from None
    # ONNX Runtime silently leaves out a provider that it cannot start.
    for provider in providers if chosen else ():
        name = provider[0] if isinstance(provider, tuple) else provider
        if name not in session.get_providers():
            raise ModelLoadError(
                f"{path}: ONNX Runtime cannot start {name}, which onnx.providers names; install the libraries that it "
                f"needs, or leave it out"
            )
    if not chosen and request.device != "cpu" and session.get_providers()[0] == CPU_PROVIDER:
        raise ModelLoadError(
            f"{path} cannot run on {request.device}: ONNX Runtime chose the CPU; install the onnxruntime-gpu of this "
            f"CUDA, or set device: cpu"
        )
    known = [entry.name for entry in session.get_outputs()]
    outputs = [entry for entry in session.get_outputs() if request.is_needed(entry.name, known)]
    names = [entry.name for entry in outputs]
    return LoadedModel(
        OnnxModel(session, names, [entry.name for entry in request.inputs]),
        False,
        "onnxruntime_onnx",
        _specs(session.get_inputs(), path),
        _specs(outputs, path),
        tuple(name for name in known if name not in names),
        takes_texts=True,
    )


def _reason(text: str) -> str:
    """Return an error's text, at most 400 characters, without source files and the path of the model."""
    text = _ORIGIN.sub("", " ".join(text.split()))
    return text.rstrip(". ")[:400]


def _remedy(reason: str) -> str:
    if "opset" in reason or "IR version" in reason:
        return (
            "export the model again for an older version of ONNX, or install a newer ONNX Runtime"
        )
    if "is not a registered function/op" in reason:
        return "ksrv loads no libraries of custom operators: export the model with the operators of ONNX alone"
    return "onnx.checker.check_model shows what is wrong with a file; export it again"


def _providers(device: str, available: Sequence[str], path: Path) -> list[Any]:
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return [CPU_PROVIDER]
    if kind == "cuda" and "CUDAExecutionProvider" in available:
        return [("CUDAExecutionProvider", {"device_id": int(index or 0)}), CPU_PROVIDER]
    raise ModelLoadError(
        f"{path} cannot run on {device}: this ONNX Runtime offers {', '.join(available)}; set device: cpu, or install "
        f"an ONNX Runtime for the device"
    )


def _chosen_providers(
    chosen: Sequence[Any], device: str, available: Sequence[str], path: Path
) -> list[Any]:
    """Return the providers that the settings name. CUDA providers get the model's device, unless it is set."""
    providers: list[Any] = []
    kind, _, index = device.partition(":")
    for entry in chosen:
        given = entry if isinstance(entry, dict) else {entry: {}}
        for name, values in given.items():  # one item
            if name not in available:
                raise ModelLoadError(
                    f"{path}: onnx.providers names {quote(name)}, which this ONNX Runtime does not have; it has "
                    f"{', '.join(available)}. Install an ONNX Runtime with it, or leave it out"
                    f"{did_you_mean(name, available)}"
                )
            written = {option: _text(value) for option, value in values.items()}
            if name in _OF_CUDA and kind == "cuda":
                written.setdefault("device_id", index or "0")
            providers.append((name, written) if written else name)
    return providers


def _set_option(options: Any, name: str, value: Any, path: Path, onnxruntime: Any) -> None:
    """Set an attribute of SessionOptions, or a config entry, whose name has a dot."""
    if "." in name:
        options.add_session_config_entry(name, _text(value))
        return
    known = [
        member
        for member in dir(type(options))
        if isinstance(getattr(type(options), member), property) and not member.startswith("_")
    ]
    if name not in known:
        raise ModelLoadError(
            f"{path}: onnx.options names {quote(name)}, which SessionOptions of ONNX Runtime {onnxruntime.__version__} "
            f"does not have; it has {', '.join(known)}, and config entries, whose names have a dot"
            f"{did_you_mean(name, known)}"
        )
    kind = {
        "graph_optimization_level": onnxruntime.GraphOptimizationLevel,
        "execution_mode": onnxruntime.ExecutionMode,
        "execution_order": onnxruntime.ExecutionOrder,
    }.get(name)
    if kind is not None:
        if value not in kind.__members__:
            raise ModelLoadError(
                f"{path}: onnx.options.{name} is {value!r}; expected one of {', '.join(kind.__members__)}"
            )
        value = kind.__members__[value]
    try:
        setattr(options, name, value)
    except (TypeError, ValueError) as error:
        raise ModelLoadError(
            f"{path}: onnx.options.{name} cannot be {value!r}: {' '.join(str(error).split())[:200]}"
        ) from None


def _text(value: Any) -> str:
    """Return an option's value as the text that ONNX Runtime takes: 1 and 0 for booleans."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _specs(entries: Sequence[Any], path: Path) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(entry.name, _datatype(entry, path), _shape(entry)) for entry in entries)


def _datatype(entry: Any, path: Path) -> str:
    if entry.type not in DATATYPES:
        raise ModelLoadError(
            f"{path}: {entry.name} is a {entry.type}, which KServe v2 cannot carry; export the model with tensors "
            f"alone{_ZIPMAP if entry.type.startswith('seq(map(') else ''}"
        )
    return DATATYPES[entry.type]


def _shape(entry: Any) -> tuple[Dimension, ...]:
    return tuple(size if isinstance(size, int) and size > 0 else -1 for size in entry.shape)


def _as_text(array: Array) -> Array:
    flat = [
        element.decode("utf-8") if isinstance(element, bytes) else str(element)
        for element in np.asarray(array, dtype=object).reshape(-1)
    ]
    return np.array(flat, dtype=object).reshape(np.shape(array))
