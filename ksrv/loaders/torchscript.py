"""TorchScript files (`.pt`): served as they are, with a notice that the format is at its end."""

from typing import Any

from ksrv.loaders.arguments import NamedArguments
from ksrv.loaders.device import torch_device
from ksrv.loaders.loaded import LoadedModel, LoadRequest, ModelLoadError, torch_file

NOTE = "TorchScript is deprecated in torch; torch.export (.pt2) or ONNX is the format to move to"


def load(request: LoadRequest) -> LoadedModel:
    """Load a TorchScript file.

    Args:
        request: The file and the device.

    Returns:
        The scripted module in evaluation mode.

    Raises:
        ModelLoadError: torch is missing, or the file holds something else.
    """
    path = torch_file(request, "TorchScript")
    import warnings

    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            read: Any = torch.jit.load
            module = read(str(path), map_location=torch_device(request.device))
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelLoadError(
            f"{path} is not TorchScript ({reason}); a file of weights needs class: in model.yaml"
        ) from None
    module.eval()
    return LoadedModel(
        NamedArguments.wrap(module, request.inputs), True, "pytorch_torchscript", note=NOTE
    )
