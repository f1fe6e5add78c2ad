"""Loads TorchScript files (`.pt`), and logs that torch has deprecated the format."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from ksrv.loaders.arguments import NamedArguments
from ksrv.loaders.device import torch_device
from ksrv.loaders.loaded import LoadedModel, LoadRequest, ModelLoadError, torch_file
from ksrv.loaders.torch_files import refused

NOTE = "TorchScript is deprecated in torch; torch.export (.pt2) or ONNX is the format to move to"

_UNKNOWN_OPERATOR = re.compile(r"Unknown builtin op: (([A-Za-z_]\w*)::\w+)")


def load(request: LoadRequest) -> LoadedModel:
    """Load a TorchScript file.

    Raises:
        ModelLoadError: torch is missing, or the file is not TorchScript.
    """
    path = torch_file(request, "TorchScript")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = _read(path, torch_device(request.device))
    module.eval()
    return LoadedModel(
        NamedArguments.wrap(module, request.inputs), True, "pytorch_torchscript", note=NOTE
    )


def _read(path: Path, device: Any) -> Any:
    """Return the module of a file. Imports the packages that register the operators which it calls."""
    import torch

    load_module: Any = torch.jit.load
    imported: set[str] = set()
    while True:
        try:
            return load_module(str(path), map_location=device)
        except RuntimeError as error:
            unknown = _UNKNOWN_OPERATOR.search(str(error))
            if unknown is None:
                raise refused(path, "TorchScript", _first_line(error)) from None
        operator, package = unknown[1], unknown[2]
        if package in imported:
            raise ModelLoadError(
                f"{path} needs the operator {operator}, which the installed {package} does not have"
            )
        imported.add(package)
        try:
            import_module(package)  # a package registers its operators when it is imported
        except ModuleNotFoundError as error:
            if error.name != package:
                raise
            raise ModelLoadError(
                f"{path} needs the operators of {package} ({operator}): pip install {package}"
            ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
