"""Makes modules importable that replace a package that is not installed.

A finder in `sys.meta_path` makes each module on its first import. It is the last finder, so an installed package is
found first and left alone. If a plain folder has the package's name, it is the first finder. A missing name raises an
ImportError that names the model whose handler asked for it.
"""

import sys
from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ksrv.errors import did_you_mean


class StandInFinder(MetaPathFinder, Loader):
    """Finds and fills the modules of one package.

    Args:
        modules: The names of all modules, the package included.
        wanted_by: The model whose handler is loaded; errors name it.
        error_end: The end of the error text for a missing module or name.
    """

    def __init__(
        self, package: str, modules: Collection[str], *, wanted_by: str, error_end: str
    ) -> None:
        self.package = package
        self._modules = modules
        self._wanted_by = wanted_by
        self._error_end = error_end

    @abstractmethod
    def fill(self, module: ModuleType) -> None:
        """Put a module's names into it."""

    def find_name(self, module: str, name: str, known: Iterable[str] = ()) -> Any:
        """Return a name that `fill` did not put into a module.

        Args:
            known: The names that a subclass looked through.

        Raises:
            ImportError: The module has no such name.
        """
        wanted = f"{self._wanted_by} wants {name!r} from {module}{did_you_mean(name, known)}"
        raise ImportError(f"{wanted}, {self._error_end}")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self.package:
            return None
        if fullname not in self._modules:
            raise ModuleNotFoundError(
                f"{self._wanted_by} wants {fullname}, {self._error_end}", name=fullname
            )
        is_package = any(other.startswith(f"{fullname}.") for other in self._modules)
        return ModuleSpec(fullname, self, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        self.fill(module)

        def missing(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            inner = f"{module.__name__}.{name}"
            if inner in self._modules:  # `from package import module` first asks for an attribute
                return import_module(inner)
            return self.find_name(module.__name__, name)

        module.__getattr__ = missing  # type: ignore[method-assign]


def install(finder: StandInFinder) -> bool:
    """Make a package's modules importable in this process.

    Returns:
        False if the real package is installed, which then serves the imports.
    """
    # The finder of an earlier call.
    if any(getattr(other, "package", "") == finder.package for other in sys.meta_path):
        return True
    found = find_spec(finder.package)
    if found is not None and found.origin is not None:
        return False
    # `found` without an origin is a plain folder of this name, which Python would import as a namespace package.
    position = len(sys.meta_path) if found is None else 0
    sys.meta_path.insert(position, finder)
    return True
