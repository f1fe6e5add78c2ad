"""Fingerprints of model versions on disk: a version that was changed has another one."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ksrv.source import ModelSource


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The files of one version as they were when they were looked at.

    Attributes:
        files: Path, size in bytes and time of the last change in nanoseconds of each file.
        error: What is wrong with the version, or None.
    """

    files: frozenset[tuple[str, int, int]]
    error: str | None = None


def fingerprint(source: ModelSource) -> Fingerprint:
    """Look at the files of a version.

    Args:
        source: The version on disk.
    """
    try:
        files = _files(source)
    except (OSError, RecursionError) as error:  # loading says what is wrong with the folder
        return Fingerprint(frozenset(), f"{type(error).__name__} {source.error}")
    marks = set()
    for path in files:
        try:
            status = path.stat()
        except OSError:
            continue  # gone between listing and looking: the next look sees that
        marks.add((str(path), status.st_size, status.st_mtime_ns))
    return Fingerprint(frozenset(marks), source.error)


def changed_files(before: Iterable[Fingerprint], after: Iterable[Fingerprint]) -> list[str]:
    """Return the names of the files that were added, changed or removed.

    Args:
        before: The fingerprints of a model's versions.
        after: Those of the same model, later.
    """
    marks = [{mark for one in prints for mark in one.files} for prints in (before, after)]
    return sorted({Path(path).name for path, _, _ in marks[0] ^ marks[1]})


def _files(source: ModelSource) -> set[Path]:
    config = source.config
    if source.files:
        return {Path(name) for name in source.files}
    if config is None or config.handler is not None or config.model is None:
        return set(_below(source))
    model = Path(config.model)
    if model.parent == source.folder and not (source.root / "model.yaml").exists():
        return {model}  # a bare file's folder holds other models
    return {model, *_below(source)}


def _below(source: ModelSource) -> list[Path]:
    found = [path for path in source.folder.rglob("*") if path.is_file() and _counts(path)]
    if source.root != source.folder:
        found += [path for path in source.root.iterdir() if path.is_file() and _counts(path)]
    return found


def _counts(path: Path) -> bool:
    return "__pycache__" not in path.parts and not path.name.startswith(".")
