"""AOT-compiled shared objects (`.so`), the older form of AOTInductor's packages."""

import logging

from ksrv.loaders.arguments import PositionalCall
from ksrv.loaders.loaded import LoadedModel, LoadRequest, ModelLoadError, short, torch_file
from ksrv.loaders.torch_compiler import torch_compiler

NOTE = "AOT-compiled .so files are deprecated in torch; package the model as .pt2"


def load(request: LoadRequest) -> LoadedModel:
    """Load a shared object that AOTInductor compiled.

    Raises:
        ModelLoadError: torch is missing, or the file cannot be loaded on this device.
    """
    path = torch_file(request, "an AOT-compiled model")
    import torch

    advice = logging.getLogger("torch._export")
    level = advice.level
    advice.setLevel(logging.ERROR)  # torch logs the deprecation at each load; NOTE is logged once
    try:
        if request.device.startswith("cuda"):
            torch.cuda.set_device(request.device)
        with torch_compiler():
            import torch._export

            run = torch._export.aot_load(str(path), request.device)
    except Exception as error:  # noqa: BLE001  torch raises whatever dlopen and its runner meet
        raise ModelLoadError(
            f"{path} cannot be loaded: {type(error).__name__}: {short(error)}; compile it with torch {torch.__version__}, as "
            f"installed here, for this device, or package the model as .pt2"
        ) from None
    finally:
        advice.setLevel(level)
    order = tuple(spec.name for spec in request.inputs)
    return LoadedModel(PositionalCall(run, order), True, "pytorch_aotinductor", note=NOTE)
