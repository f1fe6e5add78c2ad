"""Translates settings of Triton's onnxruntime backend: `optimization`, and some `parameters`."""

from collections.abc import Sequence
from typing import Any

from ksrv.dialects.triton.config.model_keys import Keys
from ksrv.model.config import OnnxSettings
from ksrv.model.fault import Fault, KeyPath
from ksrv.repository.report import Report

LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}
"""ONNX Runtime's names for levels of `optimization.graph`. Any other level is the default, ORT_ENABLE_ALL."""
SPEED_ALONE = "it changes speed alone, and ksrv leaves it to the runtime"
NO_PLUGINS = "libraries of custom operators are not loaded"
OPTIONS = {
    "inter_op_thread_count": "inter_op_num_threads",
    "execution_mode": "execution_mode",
    "enable_mem_arena": "enable_cpu_mem_arena",
    "enable_mem_pattern": "enable_mem_pattern",
    "session.use_device_allocator_for_initializers": "session.use_device_allocator_for_initializers",
}
"""The `parameters` that are session options. `intra_op_thread_count` is the setting `threads` instead."""
_ON_CPU = {"openvino": "OpenVINOExecutionProvider"}
_ON_GPU = {"tensorrt": "TensorrtExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""ONNX Runtime's providers by the names of execution accelerators."""
_OF_TENSORRT = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_PRECISIONS = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}
_SWITCHES = {"0": False, "1": True, "false": False, "true": True}


def read_onnx(keys: Keys, report: Report) -> OnnxSettings:
    """Return the providers and the session options of a model of the onnxruntime backend.

    Raises:
        ConfigError: A value is wrong.
    """
    options = _options(keys, report)
    providers: dict[str, dict[str, str]] = {}
    given = keys.optimization or Keys()
    if given.graph and (level := given.graph.level) is not None:
        name = LEVELS.get(level)
        options |= {"graph_optimization_level": name} if name else {}
        report.applied["optimization.graph.level"] = name or "ORT_ENABLE_ALL"
    if (accelerators := given.execution_accelerators) is not None:
        path: KeyPath = ("optimization", "execution_accelerators")
        on_gpu = accelerators.gpu_execution_accelerator or ()
        for side, known, found in (
            ("gpu_execution_accelerator", _ON_GPU, on_gpu),
            ("cpu_execution_accelerator", _ON_CPU, accelerators.cpu_execution_accelerator or ()),
        ):
            providers |= _providers((*path, side), known, found, report)
        # As in Triton, CUDA runs the parts of a model that TensorRT cannot run.
        if on_gpu:
            providers.setdefault("CUDAExecutionProvider", {})
    note_ignored(given, report)
    given_options = {name: found for name, found in providers.items() if found}
    return OnnxSettings(providers=tuple(providers), provider_options=given_options, session=options)


def note_ignored(given: Keys | None, report: Report, *, all_keys: bool = False) -> None:
    """Report the keys of `optimization` that have no effect in ksrv.

    Args:
        all_keys: Whether to report the keys for ONNX Runtime too, because another backend runs the model.
    """
    if given is None:
        return
    for key in given:
        if getattr(given, key) and (all_keys or key not in ("graph", "execution_accelerators")):
            report.ignored[f"optimization.{key}"] = SPEED_ALONE


def _options(keys: Keys, report: Report) -> dict[str, Any]:
    """Return the session options in the `parameters`."""
    options: dict[str, Any] = {}
    for index, entry in enumerate(keys.parameters or ()):
        name = OPTIONS.get(entry.key)
        if name is None:
            continue
        text = entry.value.string_value
        if name == "inter_op_num_threads":
            if not (text.isascii() and text.isdigit() and int(text[:9]) <= 4096):
                raise Fault(
                    ("parameters", index), f"{entry.key}: expected a whole number from 0 to 4096"
                )
            options[name] = int(text)
        elif text.lower() not in _SWITCHES:
            raise Fault(("parameters", index), f"{entry.key}: expected 0 or 1, found {text[:64]!r}")
        elif name == "execution_mode":
            options[name] = "ORT_PARALLEL" if _SWITCHES[text.lower()] else "ORT_SEQUENTIAL"
        else:
            options[name] = _SWITCHES[text.lower()]
        report.applied[f"parameters.{entry.key}"] = f"the session option {name}"
    return options


def _providers(
    path: KeyPath, known: dict[str, str], found: Sequence[Keys], report: Report
) -> dict[str, dict[str, str]]:
    """Return the providers for the execution accelerators of one kind of device, with their options."""
    providers = {}
    for index, accelerator in enumerate(found):
        name = accelerator.name or ""
        if name not in known:
            raise Fault(
                (*path, index, "name"), f"expected one of {', '.join(known)}, found {name[:64]!r}"
            )
        options: dict[str, str] = {}
        for entry in accelerator.parameters or ():
            if entry.key == "trt_extra_plugin_lib_paths":
                report.refused[f"optimization.{entry.key}"] = NO_PLUGINS
            elif entry.key == "precision_mode":
                if entry.value not in _PRECISIONS:
                    raise Fault(
                        (*path, index),
                        f"precision_mode: expected one of {', '.join(_PRECISIONS)}, found {entry.value[:64]!r}",
                    )
                options |= _PRECISIONS[entry.value]
            else:
                options[_OF_TENSORRT.get(entry.key, entry.key)] = entry.value
        providers[known[name]] = options
        shown = report.applied.setdefault("optimization.execution_accelerators", "")
        report.applied["optimization.execution_accelerators"] = ", ".join(
            filter(None, (shown, known[name]))
        )
    return providers
