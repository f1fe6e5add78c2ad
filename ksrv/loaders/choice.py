"""Chooses the loader of a model file by the suffix of the file, or by the settings of the model.

A loader is a module with a function `load`, which takes a `LoadRequest` and returns a `LoadedModel`.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from ksrv.loaders.loaded import LoadedModel, LoadRequest, ModelLoadError

LOADERS = {
    ".pt": "torchscript",
    ".pth": "eager",
    ".safetensors": "eager",
    ".pt2": "package",
    ".so": "shared_object",
    ".onnx": "onnx",
    ".xml": "openvino",
    ".tflite": "openvino",
    ".pb": "openvino",
}
"""The module in this folder that loads files with a suffix."""
CPU_ONLY = ("openvino",)
"""The loaders whose models run only on the CPU."""
TORCH = ("torchscript", "eager", "package", "shared_object")
"""The loaders whose models take and return torch tensors."""
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def load_model(request: LoadRequest) -> LoadedModel:
    """Load a model file with the loader that its suffix names.

    Args:
        request: The file, with the settings for its loader.

    Raises:
        ModelLoadError: The file cannot be loaded, or no loader knows its suffix.
    """
    suffix = request.path.suffix if request.path is not None else ""
    name = "eager" if request.model_class is not None else LOADERS.get(suffix)
    if name is None and not request.runtime:
        raise ModelLoadError(
            f"{request.path} has the suffix {suffix!r}; model files end with {', '.join(LOADERS)}"
        )
    if request.properties and name != "openvino" and not request.runtime:
        raise ModelLoadError(
            f"openvino: is for OpenVINO, which does not read {request.path}; leave it out"
        )
    if request.path is not None and request.path.is_file():
        _check_content(request.path)
    module = import_module(request.runtime or f"ksrv.loaders.{name}")
    load: Callable[[LoadRequest], LoadedModel] = module.load
    return load(request)


def _check_content(path: Path) -> None:
    """Refuse a file that cannot be a model of any format.

    Raises:
        ModelLoadError: It is empty, or is a pointer to a file that was not downloaded.
    """
    with path.open("rb") as file:
        start = file.read(len(_LFS_POINTER))
    if not start:
        raise ModelLoadError(f"{path} is empty (0 bytes); copy or export it again")
    if start == _LFS_POINTER:
        raise ModelLoadError(
            f"{path} is a pointer of Git LFS and not the file itself; run `git lfs pull` in its repository"
        )
