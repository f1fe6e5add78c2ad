"""Makes `import mlserver` and the imports of MLServer's own runtimes work if the packages are not installed.

Runtimes import names from many modules of `mlserver`, so each module here has every name. An installed package is
always found first and left alone.
"""

from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

from ksrv.dialects import stand_ins

HERE = "ksrv.dialects.mlserver"
API = (f"{HERE}.api.model", f"{HERE}.api.codecs", f"{HERE}.api.types")
"""The modules that define the names of `mlserver`."""
MODULES = (
    "codecs codecs.base codecs.base64 codecs.datetime codecs.decorator codecs.errors codecs.json codecs.lists "
    "codecs.numpy codecs.pandas codecs.string codecs.utils errors handlers handlers.custom logging metrics model "
    "settings types types.base types.dataplane utils version"
)
"""The modules of `mlserver`."""
RUNTIMES = ("sklearn", "xgboost", "lightgbm", "catboost")
"""MLServer's runtimes in `runtimes/tables.py`, by the ends of the packages' names."""


class PackageFinder(stand_ins.StandInFinder):
    """Finds the modules of a package of MLServer.

    Args:
        homes: The modules that define its names.
        wanted_by: The model whose runtime is loaded; errors name it.
    """

    def __init__(self, package: str, modules: str, homes: tuple[str, ...], wanted_by: str) -> None:
        found = (package, *(f"{package}.{name}" for name in modules.split()))
        error_end = f"which ksrv's stand-in does not have: pip install {package.replace('_', '-')}"
        super().__init__(package, found, wanted_by=wanted_by, error_end=error_end)
        self._homes = homes

    def fill(self, module: ModuleType) -> None:
        """Put the version into a module."""
        module.__version__ = "1.7.1"  # type: ignore[attr-defined]

    def find_name(self, module: str, name: str, known: Iterable[str] = ()) -> Any:
        """Return a name of the package."""
        homes = [vars(import_module(home)) for home in self._homes]
        found = {name: value for home in homes for name, value in home.items() if name[0] != "_"}
        return found[name] if name in found else super().find_name(module, name, found)


def install(wanted_by: str) -> None:
    """Make `mlserver` and its runtimes importable in this process.

    Args:
        wanted_by: The model whose runtime is loaded.
    """
    stand_ins.install(PackageFinder("mlserver", MODULES, API, wanted_by))
    for name in RUNTIMES:
        homes = (f"{HERE}.runtimes.tables",)
        stand_ins.install(PackageFinder(f"mlserver_{name}", name, homes, wanted_by))
