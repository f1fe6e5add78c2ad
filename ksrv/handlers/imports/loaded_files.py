"""Ensures that a replaced process loads the same files as before: sources from memory, other files only if unchanged.

A process may die and be replaced while somebody copies a new version into the model's folder. So the replacement
imports the sources that were read for the first load, under their original paths. Other files, such as weights, are not
kept in memory: if one has changed, the process is not replaced (`changed_file`).
"""

import linecache
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType

from ksrv.errors import HandlerFailed
from ksrv.handlers.imports.own_writes import is_own_write
from ksrv.model.config import FileMark, ModelSource, content_digest

_PROSE = frozenset({".md", ".rst"})
"""Endings of files that are for people: no handler depends on them."""


class HeldSources(dict[str, bytes]):
    """The Python files that were read for a load, by path."""

    def find(self, name: str, folders: Iterable[str]) -> tuple[str, bool] | None:
        """Return the file of a module, and whether it is a package's; None if the module has no file here.

        Args:
            folders: The folders to search, in this order.
        """
        for folder in folders:
            for file in (
                os.path.join(folder, name, "__init__.py"),
                os.path.join(folder, f"{name}.py"),
            ):
                # If a compiled module has the same name, Python imports it instead of the source.
                if file in self and not _is_compiled(file):
                    return file, file.endswith("__init__.py")
        return None

    def folders(self, name: str, folders: Iterable[str]) -> list[str]:
        """Return the folders of a package without `__init__.py`."""
        places = [os.path.join(folder, name) for folder in folders]
        return [place for place in places if any(file.startswith(place + os.sep) for file in self)]

    def spec(
        self, name: str, folders: Sequence[str], make_loader: Callable[[str, str], SourceFileLoader]
    ) -> ModuleSpec | None:
        """Return the import spec of a module in these files; None for any other module.

        Args:
            folders: The folders to search.
            make_loader: Makes a loader from the name and the file of the module.
        """
        found = self.find(name.rpartition(".")[2], folders)
        if found is None:
            return None
        file, is_package = found
        return spec_from_file_location(
            name,
            file,
            loader=make_loader(name, file),
            submodule_search_locations=[os.path.dirname(file)] if is_package else None,
        )


def _is_compiled(file: str) -> bool:
    """Whether a compiled module is beside a source file."""
    stem = file.removesuffix(".py")
    return any(os.path.isfile(stem + suffix) for suffix in EXTENSION_SUFFIXES)


class HeldSourceLoader(SourceFileLoader):
    """Compiles a source file from the content that was read for the load, or else from the disk."""

    def __init__(self, name: str, path: str, sources: Mapping[str, bytes]) -> None:
        super().__init__(name, path)
        self._sources = sources

    def get_data(self, path: str) -> bytes:
        """Return the content of a file."""
        held = self._sources.get(path)
        return super().get_data(path) if held is None else held

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source. A .pyc file is not used, because a change within the same second would not be noticed."""
        data = self.get_data(self.path)
        if self.path in self._sources:
            # For tracebacks and torch.jit.script, because the file on the disk may have changed.
            lines = data.decode("utf-8", "replace").splitlines(keepends=True)
            linecache.cache[self.path] = (len(data), None, lines, self.path)
        return self.source_to_code(data, self.path)


def changed_file(source: ModelSource) -> str:
    """Return the name of a file that has changed since it was read; "" if no file has.

    Sources are not checked if the version is loaded again, because they are in memory. Files that the model's code has
    written are never checked.

    Raises:
        HandlerFailed: A file cannot be read now.
    """
    loaded = source.loaded
    if loaded is None:
        return ""
    for mark in loaded.marks:
        path = Path(mark.path)
        if path.suffix in _PROSE or (source.again and mark.path in loaded.sources):
            continue
        if not _is_same(mark) and not is_own_write(mark.path, loaded.notes):
            return path.name
    return ""


def _is_same(mark: FileMark) -> bool:
    """Tell whether a file is unchanged: by size and time, or by size and digest if it was copied again."""
    try:
        status = os.stat(mark.path)
        if (status.st_size, status.st_mtime_ns) == (mark.size, mark.mtime_ns):
            return True
        if not mark.digest or status.st_size != mark.size:
            return False
        return content_digest(Path(mark.path).read_bytes()) == mark.digest
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:  # such as of a network file system; the next try may succeed
        raise HandlerFailed(
            f"the file {Path(mark.path).name} cannot be compared with what was loaded: {error.strerror}"
        ) from error
