"""Lets `from torchvision import transforms` work in handlers when torchvision is not installed.

It has only the transforms of `ksrv.dialects.torchserve.shims.transforms`; any other name raises an ImportError that
says to install torchvision. An installed torchvision is always found first and left alone.
"""

from types import ModuleType

from ksrv.dialects import stand_ins
from ksrv.dialects.torchserve.shims import transforms

NAMES = ("Compose", "Resize", "CenterCrop", "ToTensor", "Normalize", "InterpolationMode")
PACKAGE = "torchvision"
VERSION = "0.28.0+ksrv"
"""The release of torchvision whose results the transforms equal. Handlers compare versions."""
MODULES = (PACKAGE, f"{PACKAGE}.transforms")


class TorchvisionFinder(stand_ins.StandInFinder):
    """Finds `torchvision` and `torchvision.transforms`.

    Args:
        wanted_by: The model whose handler is loaded; errors name it.
    """

    def __init__(self, wanted_by: str) -> None:
        error_end = (
            "and torchvision is not installed; ksrv's stand-in has"
            f" transforms.{', '.join(NAMES)} only: pip install torchvision"
        )
        super().__init__(PACKAGE, MODULES, wanted_by=wanted_by, error_end=error_end)

    def fill(self, module: ModuleType) -> None:
        """Put the version into the package, and the transforms into their module."""
        if module.__name__ == PACKAGE:
            module.__version__ = VERSION  # type: ignore[attr-defined]
        else:
            for name in NAMES:
                setattr(module, name, getattr(transforms, name))
