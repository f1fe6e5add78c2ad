"""Imports the Python files of a model's folder so that two models never meet in `sys.modules`.

Strategy: the folder becomes a package of its own, `ksrv_models.<model>_<number>`, and its files are
submodules of that. Files of a folder import each other by bare name (`import net`), as they would
from a script; so each of them gets its own `__import__`, which turns a bare name that the folder
holds into the submodule and leaves every other name to Python. Relative imports work as well.
"""

import builtins
import importlib
import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ksrv.handlers.diagnostics.loggers import disown, own

PREFIX = "ksrv_models"

_numbers = itertools.count(1)


class HandlerError(Exception):
    """`handler:` or `class:` names something that cannot be used."""


class ModelImporter:
    """The modules of one handler's folders.

    Args:
        name: The model's name, for the modules' names.
        folders: Where files are looked for, in this order.
        version: The model's version, for what the handler logs.
        instance: The handler's number, for what it logs.
    """

    def __init__(
        self, name: str, folders: Sequence[Path], *, version: str = "", instance: int = 0
    ) -> None:
        shown = re.sub(r"\W", "_", name)
        self.package = f"{PREFIX}.{shown}_{next(_numbers)}"
        self.folders = tuple(dict.fromkeys(str(folder) for folder in folders))
        self._builtins = {**vars(builtins), "__import__": self._import}
        self._owner = {"model": name, "version": version, "instance": instance}
        self._open = False
        self._held: dict[str, bool] = {}  # an import in a stage must not look at the disk again

    def load(self, file: Path) -> ModuleType:
        """Import one file of the folders.

        Args:
            file: Its path. A file in a subfolder is imported as `subfolder.name`.

        Returns:
            The module. Whatever its code raises comes through as it is.
        """
        self._register()
        for folder in self.folders:
            if file.is_relative_to(folder):
                relative = file.relative_to(folder).with_suffix("")
                return importlib.import_module(".".join((self.package, *relative.parts)))
        raise ImportError(f"{file} is not in {' or '.join(self.folders)}")

    def close(self) -> None:
        """Forget the modules, so that their memory can go."""
        disown(self._owner)
        _finder.packages.pop(self.package, None)
        for name in list(sys.modules):  # in one step: other threads import meanwhile
            if _within(name, self.package):
                sys.modules.pop(name, None)
        self._open = False

    def spec(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Return the import spec of a module of this package."""
        if name == self.package:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = list(self.folders)
            return spec
        found = PathFinder.find_spec(name, path)
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = _Loader(found.loader.name, found.loader.path, self._builtins)
        return found

    def _register(self) -> None:
        if self._open:
            return
        _finder.install()
        _finder.packages[self.package] = self
        self._open = True
        self.own(self.package)

    def own(self, module: str) -> None:
        """Note that a module, here or installed, is the handler's, so that its log records name the model."""
        own(module, self._owner)

    def holds(self, name: str) -> bool:
        """Whether `import NAME` inside the folder means a file of the folder."""
        for folder in map(Path, self.folders):
            if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file():
                return True
            if any((folder / (name + suffix)).is_file() for suffix in EXTENSION_SUFFIXES):
                return True
        # A plain subfolder is a package only where nothing else has its name: a folder of weights
        # called "numpy" must not hide numpy.
        if any((Path(folder) / name).is_dir() for folder in self.folders):
            return name not in sys.modules and find_spec(name) is None
        return False

    def _contains_cached(self, name: str) -> bool:
        held = self._held.get(name)
        if held is None:
            held = self._held[name] = self.holds(name)
        return held

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        top = name.partition(".")[0]
        if level == 0 and self._open and self._contains_cached(top):
            module = importlib.import_module(f"{self.package}.{name}")
            if not fromlist:
                return sys.modules[f"{self.package}.{top}"]
            return builtins.__import__(module.__name__, globals, locals, fromlist, 0)
        return builtins.__import__(name, globals, locals, fromlist, level)


def resolve(target: str, modules: ModelImporter) -> Any:
    """Return what `FILE.py[:NAME]` or `package.module[:NAME]` names.

    Args:
        target: The target; a file's path is absolute.
        modules: The model's folders.

    Returns:
        The module, class or function.

    Raises:
        HandlerError: The module has no such name.
    """
    path, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    if path.endswith(".py"):
        module = modules.load(Path(path))
    else:
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            parent, _, last = path.rpartition(".")
            if name or not parent or error.name != path:
                raise
            module, name = importlib.import_module(parent), last
        modules.own(module.__name__)
    if not name:
        return module
    try:
        return getattr(module, name)
    except AttributeError:
        raise HandlerError(f"{target}: {path} has no {name}") from None


class _Loader(SourceFileLoader):
    """Loads a source file whose imports look into its folder first."""

    def __init__(self, name: str, path: str, names: dict[str, Any]) -> None:
        super().__init__(name, path)
        self._names = names

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self._names
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source: bytecode kept beside it may be older within the same second."""
        return self.source_to_code(self.get_data(self.path), self.path)


class _Finder:
    """Finds the modules of all open folders; on `sys.meta_path` once there is one."""

    def __init__(self) -> None:
        self.packages: dict[str, ModelImporter] = {}

    def install(self) -> None:
        if self not in sys.meta_path:
            root = ModuleType(PREFIX, "The parent of every model's package.")
            root.__path__ = []
            sys.modules[PREFIX] = root
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(f"{PREFIX}."):
            return None
        owner = self.packages.get(".".join(name.split(".")[:2]))
        return None if owner is None else owner.spec(name, path)


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


_finder = _Finder()


def error_location(folder: Path, error: BaseException) -> str:
    """Return where in a model's own files an error came up: " (handler.py, line 3)".

    Args:
        folder: The model's folder.
        error: The exception; a SyntaxError names its own file and line.

    Returns:
        The innermost place in parentheses, "" where the error did not pass through the folder.
    """
    found = ""
    trace = None if isinstance(error, SyntaxError) else error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_relative_to(folder):
            found = f" ({file.relative_to(folder)}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return found
