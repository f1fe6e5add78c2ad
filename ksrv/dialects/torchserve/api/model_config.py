"""The YAML file of a TorchServe model, and the backends that its `pt2` may name."""

import warnings
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

BACKENDS = (
    "eager",
    "aot_eager",
    "inductor",
    "nvfuser",
    "aot_nvfuser",
    "aot_cudagraphs",
    "ofi",
    "fx2trt",
    "onnxrt",
    "ipex",
    "torchxla_trace_once",
    "openvino",
    "tensorrt",
    "hpu_backend",
)

PT2Backend = StrEnum("PT2Backend", {name.upper(): name for name in BACKENDS})  # type: ignore[misc]
"""The backends of torch.compile that TorchServe knows."""


def check_valid_pt2_backend(backend: str) -> bool:
    """Tell whether TorchServe knows the torch.compile backend."""
    if backend in list(PT2Backend):
        return True
    warnings.warn(f"{backend!r} is not a backend of torch.compile that is known here", stacklevel=2)
    return False


def get_yaml_config(yaml_file_path: str) -> dict[str, Any]:
    """Read a YAML file with the safe loader; an empty file gives `{}`."""
    return yaml.safe_load(Path(yaml_file_path).read_text()) or {}
