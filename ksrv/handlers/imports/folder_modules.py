"""Imports the Python files of a model's folder so that the modules of two models never collide in `sys.modules`.

The folder becomes a separate package, `ksrv_models.<model>_<number>`, and its files are
submodules of that. Files of a folder import each other by bare name (`import net`), as they would
in a script. So each file gets a special `__import__`, which turns a bare name that is in the folder
into the submodule and leaves every other name to Python. Relative imports work as well.

In a process that serves one model the files have their bare names as well: `sys.modules["net"]` is the
submodule, whose `__name__` is "net". So pickles that name a class of the folder find it, and so does a
process that a handler spawns. If the process has already imported another module of that name, the name keeps
that module.
"""

import builtins
import importlib
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from types import MappingProxyType, ModuleType
from typing import Any

from ksrv.errors import did_you_mean
from ksrv.handlers.diagnostics.loggers import forget_owner, note_owner
from ksrv.handlers.imports.loaded_files import HeldSourceLoader, HeldSources

PREFIX = "ksrv_models"

# The end of an error for a handler in the server's process.
_ELSEWHERE = (
    "{name!r} is in the model's folder: pickles and importlib find it there only with executor: process in "
    "model.yaml, because a handler process serves one model"
)

_ABSENT_NAME = re.compile(r"cannot import name '(\w+)' from ")

_numbers = itertools.count(1)


class HandlerError(Exception):
    """`handler:` or `class:` names something that cannot be used."""


class ModelImporter:
    """The modules of one handler's folders.

    Args:
        name: The model's name, for the modules' names.
        folders: The folders in which files are searched, in this order.
        version: The model's version, for log records of the handler.
        instance: The handler's number, for log records of the handler.
        alone: Whether this is the only model of the process, so that its files can have their bare names.
        sources: The Python files that were read for the load, by path. Other files are read from the disk.
    """

    def __init__(
        self,
        name: str,
        folders: Sequence[Path],
        *,
        version: str = "",
        instance: int = 0,
        alone: bool = False,
        sources: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        shown = re.sub(r"\W", "_", name)
        self.package = f"{PREFIX}.{shown}_{next(_numbers)}"
        self.folders = tuple(dict.fromkeys(str(folder) for folder in folders))
        self._builtins = {**vars(builtins), "__import__": self._import}
        self._alone = alone
        self._sources = HeldSources(sources)
        self._owner = {"model": name, "version": version, "instance": instance}
        self._open = False
        # The results of `holds`, so that an import statement in a stage does not look at the disk for each batch.
        self._contains: dict[str, bool] = {}

    def load(self, file: Path) -> ModuleType:
        """Import one file of the folders.

        Args:
            file: Its path. A file in a subfolder is imported as `subfolder.name`.

        Returns:
            The module. Exceptions that its code raises are not caught.
        """
        self._register()
        for folder in self.folders:
            if file.is_relative_to(folder):
                relative = file.relative_to(folder).with_suffix("")
                return importlib.import_module(".".join((self.package, *relative.parts)))
        raise ImportError(f"{file} is not in {' or '.join(self.folders)}")

    def close(self) -> None:
        """Remove the modules from `sys.modules`, so that their memory can be freed."""
        forget_owner(self._owner)
        _finder.packages.pop(self.package, None)
        for name in list(sys.modules):  # a copy, because other threads import meanwhile
            if _within(name, self.package):
                self._forget_bare_name(name.removeprefix(f"{self.package}."), sys.modules.pop(name))
        # An import also makes the module an attribute of its parent package.
        if PREFIX in sys.modules:
            vars(sys.modules[PREFIX]).pop(self.package.removeprefix(f"{PREFIX}."), None)
        self._open = False

    def spec(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Return the import spec of a module of this package, or None. Called by `_Finder`."""
        if name == self.package:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = list(self.folders)
            return spec
        folders = list(path or ())
        held = self._sources.spec(name, folders, self._loader)
        if held is not None:
            return held
        found = PathFinder.find_spec(name, path)
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = self._loader(found.loader.name, found.loader.path)
        if found is None and (places := self._sources.folders(name.rpartition(".")[2], folders)):
            found = ModuleSpec(name, None, is_package=True)
            found.submodule_search_locations = places
        return found

    def _loader(self, name: str, path: str) -> "_Loader":
        return _Loader(name, path, self, self._sources)

    def bare_spec(self, name: str) -> ModuleSpec | None:
        """Return the import spec for the bare name of a file, for code outside of the folder that imports the name."""
        if not self._alone or not self._holds_file(name.partition(".")[0]):
            return None  # not `holds`, which calls `find_spec`, and so this method again
        return ModuleSpec(name, _BareNameLoader(f"{self.package}.{name}"))

    def begin(self, module: ModuleType) -> None:
        """Prepare a module of the folder before its code runs: set its `__import__`, and its bare name if that is
        free.
        """
        module.__dict__["__builtins__"] = self._builtins
        bare = module.__name__.removeprefix(f"{self.package}.")
        if self._alone and sys.modules.setdefault(bare, module) is module:
            module.__name__ = bare  # and so the `__module__` of its classes, which pickles name
            self.note_module(bare)

    def fail(self, module: ModuleType) -> None:
        """Remove the bare name of a module whose code failed."""
        self._forget_bare_name(module.__name__, module)

    def _forget_bare_name(self, name: str, module: ModuleType) -> None:
        if sys.modules.get(name) is module:
            del sys.modules[name]

    def remedy(self, error: BaseException) -> str:
        """Return advice for an error in a handler's code, as the end of a sentence; "" if no advice is known."""
        frames = [frame for frame, _ in walk_tb(error.__traceback__)]
        importing = any(frame.f_code.co_name == "<module>" for frame in frames)
        for seen in _chain(error):
            absent = seen.name if isinstance(seen, ModuleNotFoundError) else None
            name = (absent or "").partition(".")[0]
            if name and not self.holds(name):
                return "; install its package where the server runs, or put the file into the model's folder"
            if name and not self._alone:
                return f"; {_ELSEWHERE.format(name=name)}"
            if remedy := _remedy_of(seen, importing=importing):
                return remedy
        return ""

    def _register(self) -> None:
        if self._open:
            return
        _finder.install()
        _finder.packages[self.package] = self
        self._open = True
        self.note_module(self.package)

    def note_module(self, module: str) -> None:
        """Note that a module, of the folder or installed, is the handler's, so that its log records name the model."""
        note_owner(module, self._owner)

    def holds(self, name: str) -> bool:
        """Tell whether `import NAME` inside of the folder means a file of the folder."""
        if self._holds_file(name):
            return True
        # A plain subfolder is a package only if nothing else has its name: a folder of weights
        # called "numpy" must not hide numpy.
        if self._sources.folders(name, self.folders) or any(
            (Path(folder) / name).is_dir() for folder in self.folders
        ):
            return name not in sys.modules and find_spec(name) is None
        return False

    def _holds_file(self, name: str) -> bool:
        if self._sources.find(name, self.folders) is not None:
            return True
        endings = (".py", "/__init__.py", *EXTENSION_SUFFIXES)
        return any(
            Path(folder, name + ending).is_file() for folder in self.folders for ending in endings
        )

    def _contains_cached(self, name: str) -> bool:
        held = self._contains.get(name)
        if held is None:
            held = self._contains[name] = self.holds(name)
        return held

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """`__import__` for the modules of the folder."""
        top = name.partition(".")[0]
        if level == 0 and self._open and self._contains_cached(top):
            if type(fromlist) is list and not (fromlist or self._alone):
                # Only C code (PyImport_Import) passes an empty list: this is a pickle. It would look for the bare name
                # in sys.modules next, and not find it there.
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            module = importlib.import_module(f"{self.package}.{name}")
            if not fromlist:
                return sys.modules[f"{self.package}.{top}"]
            return builtins.__import__(module.__name__, globals, locals, fromlist, 0)
        return builtins.__import__(name, globals, locals, fromlist, level)


def resolve(target: str, modules: ModelImporter) -> Any:
    """Return the module, class or function that `FILE.py[:NAME]` or `package.module[:NAME]` names.

    Args:
        target: The target; a file's path is absolute.

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
        modules.note_module(module.__name__)
    if not name:
        return module
    try:
        return getattr(module, name)
    except AttributeError:
        own = [name for name in vars(module) if not name.startswith("_")]
        raise HandlerError(
            f"{target}: {path} has no {name}{did_you_mean(name, own)}; name a class or function of the file"
        ) from None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, each once, because `raise error from error` makes a cycle."""
    passed: set[int] = set()
    seen: BaseException | None = error
    while seen is not None and id(seen) not in passed:
        passed.add(id(seen))
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def _remedy_of(error: BaseException, *, importing: bool) -> str:
    """Return advice for an error that Python raised; "" if its text is clear enough.

    Args:
        error: The error.
        importing: Whether a file was being imported, so that no `context` is available.
    """
    if isinstance(error, ImportError) and (absent := _ABSENT_NAME.match(str(error))):
        module = sys.modules.get(error.name or "")
        return did_you_mean(absent[1], [*dir(module), *getattr(module, "__all__", ())])
    file = error.filename if isinstance(error, FileNotFoundError) else None
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    is_program = bool(frames) and frames[-1].f_globals.get("__name__") == "subprocess"
    if isinstance(file, str) and not Path(file).is_absolute() and not is_program:
        return (
            f"; relative paths begin in the folder where the server was started: for a file of the model's folder, "
            f"write {f'Path(__file__).parent / {file!r}' if importing else f'context.file({file!r})'}"
        )
    if isinstance(error, SystemExit):
        return (
            "; a handler must not end the process: take the call of exit out, or raise an exception"
        )
    return ""


class _Loader(HeldSourceLoader):
    """Loads a source file of a folder, and sets its `__import__`."""

    def __init__(
        self, name: str, path: str, importer: ModelImporter, sources: Mapping[str, bytes]
    ) -> None:
        super().__init__(name, path, sources)
        self._importer = importer

    def exec_module(self, module: ModuleType) -> None:
        self._importer.begin(module)
        try:
            super().exec_module(module)
        except BaseException:
            self._importer.fail(module)
            raise


class _BareNameLoader(Loader):
    """Loads a module by its bare name: returns the module of the model's package.

    Args:
        name: The module's name in the model's package.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module."""
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec, which Python has overwritten. The code of the module has run already."""
        module.__spec__ = self._spec


class _Finder:
    """Finds the modules of all open folders. It is put into `sys.meta_path` for the first folder."""

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
            found = (package.bare_spec(name) for package in list(self.packages.values()))
            return next((spec for spec in found if spec is not None), None)
        owner = self.packages.get(".".join(name.split(".")[:2]))
        return None if owner is None else owner.spec(name, path)


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


_finder = _Finder()


def error_with_location(folder: Path, error: BaseException) -> str:
    """Return the class and the text of an error, and its location in the model's files.

    A TorchScript error has its cause in its last line, below the frames of the network.
    """
    text = str(error)
    if text.startswith("The following operation failed in the TorchScript interpreter."):
        text = text.rstrip().rpartition("\n")[2].removeprefix(f"{type(error).__name__}: ")
    return f"{type(error).__name__}{f': {text}' if text else ''}{error_location(folder, error)}"


def error_location(folder: Path, error: BaseException) -> str:
    """Return the location in the model's files at which an error was raised: " (handler.py, line 3)".

    Args:
        error: The exception; a SyntaxError has its file and line.

    Returns:
        The innermost location in parentheses, "" if the error did not pass through the folder.
    """
    found = ""
    trace = None if isinstance(error, SyntaxError) else error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_relative_to(folder):
            found = f" ({file.relative_to(folder)}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return found
