"""Finds out whether the files of a model version have changed, and reads the files that a load uses.

`fingerprint` returns sizes and times of all files: a reload loads a version again if its fingerprint differs.
`read_files` returns the content of the Python files, and digests of other small files (`LoadedFiles`), so that a
process that replaces an ended process loads the same version.
"""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from ksrv.model.config import FileMark, LoadedFiles, ModelSource, content_digest
from ksrv.repository.settings.keys import CONFIG_NAME
from ksrv.repository.versions import version_folders

KEPT_BYTES = 4 << 20
"""The most bytes of Python files whose content is kept for a version."""
HASHED_FILE_BYTES = 1 << 20
"""Larger files have no digest, only size and time, because hashing weights would take as long as loading them."""
HASHED_BYTES = 16 << 20
"""The most bytes of a version's files that are hashed."""
MOST_FILES = 10_000
"""The most files of a folder that are examined, because a link may lead to a data set."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The state of the files of one version.

    Attributes:
        files: Path, size in bytes and time of the last change in nanoseconds of each file.
        error: Why the version cannot be served, or None.
    """

    files: frozenset[tuple[str, int, int]]
    error: str | None = None


def fingerprint(source: ModelSource) -> Fingerprint:
    """Return the fingerprint of a version.

    Args:
        source: The version on disk, or a version whose files were read before (`loaded`).
    """
    if source.loaded is not None:
        marks = {(mark.path, mark.size, mark.mtime_ns) for mark in source.loaded.marks}
        return Fingerprint(frozenset(marks), source.error)
    try:
        files = _files(source)
    except (OSError, RecursionError) as error:  # the load will report the fault
        return Fingerprint(frozenset(), f"{type(error).__name__} {source.error}")
    marks = set()
    for path in files:
        try:
            status = path.stat()
        except OSError:
            continue  # removed since it was listed; the next fingerprint lacks it
        marks.add((str(path), status.st_size, status.st_mtime_ns))
    return Fingerprint(frozenset(marks), source.error)


def read_files(source: ModelSource, notes: str = "") -> LoadedFiles | None:
    """Read the Python files of a version, and the size, time and digest of the other files.

    Args:
        notes: See `LoadedFiles`.

    Returns:
        The files; None if the folder cannot be read. The load will report the fault.
    """
    try:
        files = sorted(_files(source))
    except (OSError, RecursionError):
        return None
    marks: list[FileMark] = []
    sources: dict[str, bytes] = {}
    kept = hashed = 0
    for path in files:
        try:
            str(path).encode()  # raises for a name that is not UTF-8
            status = path.stat()
            size, digest = status.st_size, ""
            is_source = path.suffix == ".py" or path.name == CONFIG_NAME
            if is_source and kept + size <= KEPT_BYTES:
                content = sources[str(path)] = path.read_bytes()
                kept += len(content)
                digest = content_digest(content)
            elif size <= HASHED_FILE_BYTES and hashed + size <= HASHED_BYTES:
                digest = content_digest(path.read_bytes())
                hashed += size
        except (OSError, UnicodeEncodeError):
            continue  # removed since it was listed, unreadable, or with a name that no message can carry
        marks.append(FileMark(str(path), size, status.st_mtime_ns, digest))
    return LoadedFiles(marks=tuple(marks), sources=sources, notes=notes)


def changed_files(before: Iterable[Fingerprint], after: Iterable[Fingerprint]) -> list[str]:
    """Return the names of the files that were added, changed or removed."""
    marks = [{mark for taken in prints for mark in taken.files} for prints in (before, after)]
    return sorted({Path(path).name for path, _, _ in marks[0] ^ marks[1]})


def _files(source: ModelSource) -> set[Path]:
    """Return the files of a version."""
    config = source.config
    if source.files:
        return {Path(name) for name in source.files}
    if config is None or config.handler is not None or config.model is None:
        return set(files_below(source))
    model = Path(config.model)
    if model.parent == source.folder and not (source.root / "model.yaml").exists():
        # The folder of a model file without model.yaml may have other models.
        return {model, *_parts(model)}
    return {model, *files_below(source)}


def _parts(model: Path) -> list[Path]:
    """Return the files beside a bare model file that hold its weights."""
    names = [f"{model.name}.data", f"{model.name}_data"]
    if model.suffix == ".xml":
        names.append(f"{model.stem}.bin")
    return [path for path in map(model.with_name, names) if path.is_file()]


def files_below(source: ModelSource) -> list[Path]:
    """Return the files of the version's folder, and of the model's folder without its version folders."""
    folder, root = source.folder, source.root
    if root == folder:
        return _walk(folder)
    return _walk(folder) + _walk(root, skipped=version_folders(root).keys())


def _walk(folder: Path, skipped: Collection[str] = ()) -> list[Path]:
    """Return the files below a folder. Links are followed, but each folder is listed once.

    Args:
        skipped: Names of folders directly in the folder that are left out.
    """
    found: list[Path] = []
    seen = set()
    for at, folders, files in os.walk(folder, followlinks=True):
        status = os.stat(at)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        left_out = skipped if len(seen) == 1 else ()  # only at the top
        folders[:] = sorted(name for name in folders if _counts(name) and name not in left_out)
        paths = (Path(at, name) for name in sorted(files) if _counts(name))
        found += [path for path in paths if path.is_file()]
        if len(found) > MOST_FILES:
            return found[:MOST_FILES]
    return found


def _counts(name: str) -> bool:
    """Tell whether a file or folder of this name belongs to a version."""
    return not name.startswith(".") and name != "__pycache__"
