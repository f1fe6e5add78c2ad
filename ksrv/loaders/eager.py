"""A torch module in Python code, filled from a state_dict (`.pt`, `.pth`, `.safetensors`).

The class or function in `class:` of model.yaml makes the module. Without it, transformers makes and fills the module
of a folder that it wrote. Weights are always read with `weights_only=True`, so that no code in the file runs. A file
that contains anything else is refused.
"""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ksrv.loaders.arguments import NamedArguments
from ksrv.loaders.device import torch_device
from ksrv.loaders.loaded import LoadedModel, LoadRequest, ModelLoadError, missing_dependency, short
from ksrv.loaders.torch_files import pickled, refused, unpickling_reason

PLATFORM = "pytorch_eager"


def load(request: LoadRequest) -> LoadedModel:
    """Make the module and fill it.

    Args:
        request: The class, the file and the device. Without a file the fresh module is served.

    Returns:
        The module in evaluation mode on the device.

    Raises:
        ModelLoadError: torch is missing, the class makes no module, or the file does not fit it.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise missing_dependency("torch", "a state_dict") from None
    if request.model_class is None:
        raise ModelLoadError(
            f"{request.path} holds weights only (a state_dict); add class: net.py:Net to model.yaml, the class or "
            f"function that builds the network"
        )
    module = request.model_class()
    if not isinstance(module, torch.nn.Module):
        raise ModelLoadError(
            f"class: makes a {type(module).__name__}, not a torch.nn.Module; name the class of the network, or a "
            f"function that returns it"
        )
    device = torch_device(request.device)
    if request.path is not None:
        state = read_state(request.path)
        try:
            module.load_state_dict(state)
        except (RuntimeError, TypeError) as error:
            raise ModelLoadError(
                f"{request.path} does not fit its class {type(module).__name__}: {short(error)}; build the network "
                f"with the sizes that the weights were saved with"
            ) from None
    module.to(device).eval()
    return LoadedModel(NamedArguments.wrap(module, request.inputs), True, PLATFORM)


def of_transformers(path: Path) -> Any:
    """Return the network of a folder that transformers or sentence-transformers wrote.

    Args:
        path: Its `model.safetensors`; `config.json` beside it names the class.

    Raises:
        ModelLoadError: transformers is missing, or does not know the class or the weights.
    """
    try:
        import transformers
    except ModuleNotFoundError:
        raise missing_dependency("transformers", f"the model {path}") from None
    try:
        named = json.loads((path.parent / "config.json").read_bytes())["architectures"][0]
        # sentence-transformers uses the network without its head, whatever class the file names.
        is_encoder = (path.parent / "modules.json").is_file()
        kind = getattr(transformers, "AutoModel" if is_encoder else named)
        module, about = kind.from_pretrained(
            path.parent, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # noqa: BLE001  transformers raises whatever its readers meet
        raise ModelLoadError(f"{path} cannot be loaded by transformers: {short(error)}") from None
    missing = sorted(name for name in about["missing_keys"] if "pooler" not in name)
    if missing:
        raise ModelLoadError(f"{path} lacks weights of {type(module).__name__}: {missing[0]}")
    return module


def read_state(path: Path) -> Mapping[str, Any]:
    """Return the weights in a file.

    Args:
        path: A `.safetensors` file, or a file that `torch.save` wrote.

    Returns:
        The tensors by name, on the CPU.

    Raises:
        ModelLoadError: The file contains more than weights, or has another format.
    """
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise pickled(path, unpickling_reason(error)) from None
    except Exception as error:  # noqa: BLE001  on other bytes its readers raise any exception
        raise refused(path, "weights", short(error)) from None
    if not isinstance(state, Mapping):
        raise ModelLoadError(
            f"{path} holds a {type(state).__name__}, not a state_dict; save the module's state_dict()"
        )
    inner = next((key for key in ("state_dict", "model_state_dict") if key in state), None)
    if inner is not None:
        raise ModelLoadError(f"{path} is a checkpoint; save its entry {inner!r} alone")
    return state


def _read_safetensors(path: Path) -> Mapping[str, Any]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ModuleNotFoundError:
        raise missing_dependency("safetensors", f"the model {path}") from None
    try:
        state: dict[str, Any] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(
            f"{path} is not a safetensors file: {short(error)}; copy it or save it again"
        ) from None
    return state
