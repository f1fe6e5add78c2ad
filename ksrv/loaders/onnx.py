"""ONNX files (`.onnx`) by ONNX Runtime: names, types and shapes come from the file itself.

`OnnxModel` wraps the session, so that the default `inference` can call it like any model. A handler can use the session
itself, as `self.model.session`.
"""

import os
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
CUDA_PROVIDER = "CUDAExecutionProvider"
TENSORRT_PROVIDER = "TensorrtExecutionProvider"
OF_DEVICE: Mapping[str, tuple[str, ...]] = {
    "cpu": (CPU_PROVIDER,),
    "cuda": (CUDA_PROVIDER, CPU_PROVIDER),
    "tensorrt": (TENSORRT_PROVIDER, CUDA_PROVIDER, CPU_PROVIDER),
}
"""The providers that run a model if the settings name none: CUDA and the CPU run what TensorRT cannot."""
DEFAULTS: Mapping[str, dict[str, str]] = {
    CUDA_PROVIDER: {"use_tf32": "0"},  # FP32 would be computed with mantissas of 10 bits.
    "OpenVINOExecutionProvider": {"device_type": "CPU", "precision": "FP32"},
}
"""Options that the settings can override. They keep FP32 as it is."""
ENGINE_CACHE = ".tensorrt"
"""The folder beside the model file for TensorRT's engines, which take minutes to build."""
PROBABILITIES = ("seq(map(string,tensor(float)))", "seq(map(int64,tensor(float)))")
"""The outputs of skl2onnx's classifiers that have a mapping of the classes to their probabilities for each row."""
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
        results = map(_matrix, self.session.run(list(self.outputs), given))
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
    options.log_severity_level = 3  # errors, no warnings
    if request.threads:
        options.intra_op_num_threads = request.threads
        options.inter_op_num_threads = 1
    for name, value in request.onnx.session.items():
        _set_option(options, name, value, path, onnxruntime)
    providers = _providers(request, path, onnxruntime.get_available_providers())
    try:
        session = onnxruntime.InferenceSession(str(path), options, list(providers.items()))
    except Exception as error:  # noqa: BLE001  onnxruntime raises a class for each status code
        reason = _reason(str(error))
        raise ModelLoadError(
            f"{path} cannot be loaded by ONNX Runtime {onnxruntime.__version__}: {reason}; {_remedy(reason)}"
        ) from None
    # ONNX Runtime silently leaves out a provider that it cannot start.
    missing = [name for name in providers if name not in session.get_providers()]
    if missing:
        raise ModelLoadError(
            f"{path} cannot run on {request.device} as it is configured: ONNX Runtime cannot start {missing[0]}; install "
            f"the libraries that it needs, or leave it out of onnx.providers, or set device: cpu"
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
    if "provider option" in reason.lower():
        return "mend onnx.provider_options"
    if "opset" in reason or "IR version" in reason:
        return (
            "export the model again for an older version of ONNX, or install a newer ONNX Runtime"
        )
    if "is not a registered function/op" in reason:
        return "ksrv loads no libraries of custom operators: export the model with the operators of ONNX alone"
    return "onnx.checker.check_model shows what is wrong with a file; export it again"


def _providers(
    request: LoadRequest, path: Path, available: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the providers, the preferred one first, with their options: the settings override the defaults."""
    kind, _, index = request.device.partition(":")
    names = request.onnx.providers or OF_DEVICE.get(kind, ())
    unknown = [name for name in names if name not in available]
    if not names or (unknown and not request.onnx.providers):
        raise ModelLoadError(
            f"{path} cannot run on {request.device}: this ONNX Runtime offers {', '.join(available)}; set device: cpu, "
            f"or install an ONNX Runtime for the device"
        )
    if unknown:
        raise ModelLoadError(
            f"{path}: onnx.providers names {quote(unknown[0])}, which this ONNX Runtime does not have; it has "
            f"{', '.join(available)}. Install an ONNX Runtime with it, or leave it out"
            f"{did_you_mean(unknown[0], available)}"
        )
    options = request.onnx.provider_options
    for name in options:
        if name not in names:
            raise ModelLoadError(
                f"{path}: onnx.provider_options names {quote(name)}; the providers of the model are {', '.join(names)}"
                f"{did_you_mean(name, names)}"
            )
    providers = {}
    for name in names:
        given = dict(DEFAULTS.get(name, {}))
        if name in (CUDA_PROVIDER, TENSORRT_PROVIDER) and kind in ("cuda", "tensorrt"):
            given["device_id"] = index or "0"
        if name == TENSORRT_PROVIDER and os.access(path.parent, os.W_OK):
            cache = str(path.parent / ENGINE_CACHE)
            given |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": cache}
        written = {option: _text(value) for option, value in options.get(name, {}).items()}
        providers[name] = given | written
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
            f"{path}: onnx.session names {quote(name)}, which SessionOptions of ONNX Runtime {onnxruntime.__version__} "
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
                f"{path}: onnx.session.{name} is {value!r}; expected one of {', '.join(kind.__members__)}"
            )
        value = kind.__members__[value]
    try:
        setattr(options, name, value)
    except (TypeError, ValueError) as error:
        raise ModelLoadError(
            f"{path}: onnx.session.{name} cannot be {value!r}: {' '.join(str(error).split())[:200]}"
        ) from None


def _text(value: Any) -> str:
    """Return an option's value as the text that ONNX Runtime takes: 1 and 0 for booleans."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _specs(entries: Sequence[Any], path: Path) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(entry.name, _datatype(entry, path), _shape(entry)) for entry in entries)


def _matrix(result: Any) -> Array:
    """Return an output of the session: probabilities by class as a matrix, in the order of the classes."""
    if not isinstance(result, list):
        array: Array = result
        return array
    return np.array([list(row.values()) for row in result], np.float32).reshape(len(result), -1)


def _datatype(entry: Any, path: Path) -> str:
    if entry.type in PROBABILITIES:
        return "FP32"
    if entry.type not in DATATYPES:
        raise ModelLoadError(
            f"{path}: {entry.name} is a {entry.type}, which KServe v2 cannot carry; export the model with tensors alone"
        )
    return DATATYPES[entry.type]


def _shape(entry: Any) -> tuple[Dimension, ...]:
    if entry.type in PROBABILITIES:
        return (-1, -1)
    return tuple(size if isinstance(size, int) and size > 0 else -1 for size in entry.shape)


def _as_text(array: Array) -> Array:
    flat = [
        element.decode("utf-8") if isinstance(element, bytes) else str(element)
        for element in np.asarray(array, dtype=object).reshape(-1)
    ]
    return np.array(flat, dtype=object).reshape(np.shape(array))
