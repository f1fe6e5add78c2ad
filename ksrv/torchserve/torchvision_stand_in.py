"""Lets `from torchvision import transforms` work in handlers when torchvision is not installed.

Only the transforms of `ksrv.torchserve.transforms` are there; any other name is an ImportError that says
so. An installed torchvision is always found first and left alone.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ksrv.torchserve import transforms

NAMES = ("Compose", "Resize", "CenterCrop", "ToTensor", "Normalize", "InterpolationMode")
PACKAGE = "torchvision"
MODULES = (PACKAGE, f"{PACKAGE}.transforms")


class _StandInLoader(Loader):
    def __init__(self, wanted_by: str) -> None:
        self.wanted_by = wanted_by

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ != PACKAGE:
            for name in NAMES:
                setattr(module, name, getattr(transforms, name))
        wanted_by = self.wanted_by

        def missing(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if (module.__name__, name) == (PACKAGE, "transforms"):
                from importlib import import_module

                return import_module(f"{PACKAGE}.transforms")
            raise ImportError(
                f"{wanted_by} wants {name!r} from {module.__name__}, which is not installed; ksrv's"
                f" stand-in has transforms.{', '.join(NAMES)} only: pip install torchvision"
            )

        module.__getattr__ = missing  # type: ignore[method-assign]


class StandInFinder(MetaPathFinder):
    """Finds `torchvision` and `torchvision.transforms`.

    Args:
        wanted_by: The model whose handler is loaded; errors name it.
    """

    def __init__(self, wanted_by: str) -> None:
        self._loader = _StandInLoader(wanted_by)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE:
            return None
        if fullname not in MODULES:
            raise ModuleNotFoundError(
                f"{self._loader.wanted_by} wants {fullname}, and torchvision is not installed; ksrv's"
                f" stand-in has transforms.{', '.join(NAMES)} only: pip install torchvision",
                name=fullname,
            )
        spec = ModuleSpec(fullname, self._loader, is_package=fullname == PACKAGE)
        if fullname == PACKAGE:
            spec.submodule_search_locations = []
        return spec


def install(wanted_by: str) -> bool:
    """Make the stand-in importable in this process.

    Args:
        wanted_by: The model whose handler is loaded.

    Returns:
        False when the real torchvision is installed.
    """
    if any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
        return True
    found = find_spec(PACKAGE)
    if found is not None and found.origin is not None:
        return False
    sys.meta_path.append(StandInFinder(wanted_by))
    return True
