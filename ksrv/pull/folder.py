"""Puts the files of a source into a folder, which appears whole, and compares a folder with its lock file.

A pull into `models/cats/1` downloads into the hidden folder `models/cats/.1.pull`, which ksrv serves no model from.
When each file has its size and digest and is on the disk, the lock file `models/cats/.1.pull.lock` is written, and the
folder gets its name. After an end at any moment, the next pull continues.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ksrv.errors import quote
from ksrv.pull.source import PullError, RemoteFile, Source, check_names, without_secrets

CHECKSUMS = "SHA256SUMS"
"""A file of the source with the digests of its other files, as `sha256sum` writes them."""


def pull(
    uri: str,
    folder: Path,
    open_source: Callable[[str], Source],
    show: Callable[[int, int], None] = lambda arrived, total: None,
) -> str:
    """Copy a model into a folder. Waits while another process pulls into the same folder.

    Args:
        uri: The address of the model.
        folder: The folder to make. Nothing is done if the lock file says that it has this revision already.
        open_source: Lists the files of an address.
        show: Is given the number of bytes that have arrived, and the number of all bytes.

    Returns:
        A sentence that says what was done.

    Raises:
        PullError: The source or the folder cannot be used, or a digest is wrong.
        OSError: A file cannot be written.
    """
    folder = Path(os.path.abspath(folder))
    if folder.is_mount():
        raise PullError(
            f"{folder} is a mount point, which cannot appear whole; pull into a folder below it"
        )
    staging = folder.with_name(f".{folder.name}.pull")
    with _locked(staging):
        source = open_source(uri)
        check_names(source.files)
        if os.path.lexists(folder) and not _is_empty(folder):
            shutil.rmtree(staging)
            return _unchanged(source, folder)
        tree = staging / hashlib.sha256(repr((source.uri, source.revision)).encode()).hexdigest()
        for path in staging.iterdir():  # what is left of an earlier pull
            if path.is_dir() and path != tree:
                shutil.rmtree(path)
        tree.mkdir(exist_ok=True)
        total, arrived = sum(file.size for file in source.files), 0
        free = shutil.disk_usage(tree).free + sum(
            file.stat().st_size for file in _files(tree).values()
        )
        if total > free:
            raise PullError(
                f"{uri} has {total:,} bytes, and the disk of {folder} has room for {free:,}"
            )

        def advance(count: int) -> None:
            nonlocal arrived
            arrived += count
            show(arrived, total)

        source.fetch(tree, advance)
        digests = _checked(tree, source.files)
        document = {"uri": source.uri, "revision": source.revision, "files": digests}
        lock = staging / "lock"
        lock.write_text(json.dumps(document, indent=2) + "\n")
        _sync(lock)
        lock.replace(lock_of(folder))
        tree.rename(folder)
        _sync(folder.parent)
        shutil.rmtree(staging)
        return f"{folder} has {len(digests)} files, {total:,} bytes, of revision {source.revision}"


def verify(uri: str, folder: Path) -> list[str]:
    """Return how a folder differs from its lock file, a line for each file. Uses no network.

    Raises:
        PullError: The folder has no lock file, or was pulled from another address.
    """
    folder = Path(os.path.abspath(folder))
    lock = _read_lock(folder)
    if lock["uri"] != without_secrets(uri):
        raise PullError(f"{folder} was pulled from {lock['uri']}, not from {without_secrets(uri)}")
    expected, found = lock["files"], _files(folder)
    lines = [f"{quote(name)} is missing" for name in expected.keys() - found.keys()]
    lines += [f"{quote(name)} was not pulled" for name in found.keys() - expected.keys()]
    for name in expected.keys() & found.keys():
        is_file = found[name].is_file() and not found[name].is_symlink()
        if not is_file or _digest(found[name], "sha256:") != expected[name]["digest"]:
            lines.append(f"{quote(name)} has another content")
    return sorted(lines)


def lock_of(folder: Path) -> Path:
    """Return the lock file of a folder. It is beside the folder, so that a signature of the folder stays valid."""
    return folder.with_name(f".{folder.name}.pull.lock")


def _read_lock(folder: Path) -> dict[str, Any]:
    path = lock_of(folder)
    try:
        lock = json.loads(path.read_bytes())
        entries = [entry["digest"] for entry in lock["files"].values()]
        if all(isinstance(text, str) for text in (lock["uri"], lock["revision"], *entries)):
            return dict(lock)
        raise TypeError
    except FileNotFoundError:
        raise PullError(
            f"{folder} was not pulled: {path} is missing; choose another folder, or remove it"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PullError(f"{path} is damaged; remove it and {folder}, and pull again") from None


def _unchanged(source: Source, folder: Path) -> str:
    """Return that a folder has the revision of a source already.

    Raises:
        PullError: It has not, and files that may be served do not change.
    """
    lock = _read_lock(folder)
    if (lock["uri"], lock["revision"]) == (source.uri, source.revision):
        return f"{folder} has revision {source.revision} already; --verify compares its files"
    raise PullError(
        f"{folder} has revision {lock['revision']} of {lock['uri']}, and {source.uri} is at {source.revision}; pull "
        f"into another folder, such as the next version, or remove the folder"
    )


@contextmanager
def _locked(staging: Path) -> Iterator[None]:
    """Make a folder that only this process uses; wait while another process uses it."""
    while True:
        staging.mkdir(parents=True, exist_ok=True)
        opened = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
            if staging.exists() and os.path.samestat(os.fstat(opened), staging.stat()):
                yield
                return
        finally:
            os.close(opened)  # another process has removed the folder, or this process is done


def _checked(tree: Path, files: Sequence[RemoteFile]) -> dict[str, dict[str, Any]]:
    """Compare the files of a tree with the source, remove others, and write everything to the disk.

    Returns:
        Size and digest of each file, for the lock file.
    """
    found = _files(tree)
    wanted = {file.name: [file.digest] for file in files}
    for name, path in found.items():
        if name not in wanted:
            path.unlink()
    for name, digest in _checksums(tree / CHECKSUMS):
        if name not in wanted:
            raise PullError(f"{CHECKSUMS} names {quote(name)}, which the source lacks")
        wanted[name].append(digest)
    entries = {}
    for file in files:
        path = tree / file.name
        size = path.stat().st_size
        if size != file.size:
            path.unlink()
            raise PullError(f"{quote(file.name)} has {size:,} bytes; the source says {file.size:,}")
        for expected in filter(None, wanted[file.name]):
            actual = _digest(path, expected)
            if actual != expected:
                path.unlink()
                raise PullError(f"{quote(file.name)} has the digest {actual}; expected {expected}")
        _sync(path)
        entries[file.name] = {"size": size, "digest": _digest(path, "sha256:")}
    for at, folders, names in os.walk(tree, topdown=False):
        if not folders and not names:
            os.rmdir(at)
        else:
            _sync(Path(at))
    return entries


def _checksums(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and digests of a file that `sha256sum` wrote, or nothing if it is missing."""
    if path.is_file():
        for line in path.read_text("utf-8", "replace").splitlines():
            match = re.fullmatch(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)", line)
            if match is None:
                raise PullError(
                    f"{CHECKSUMS} has the line {quote(line)}; expected a digest and a name"
                )
            yield match[2], f"sha256:{match[1].lower()}"


def _digest(path: Path, like: str) -> str:
    """Return the digest of a file in the form of another digest."""
    with path.open("rb") as opened:
        if like.startswith("git:"):
            start = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
            return f"git:{hashlib.file_digest(opened, lambda: start).hexdigest()}"
        return f"sha256:{hashlib.file_digest(opened, 'sha256').hexdigest()}"


def _files(tree: Path) -> dict[str, Path]:
    """Return the files and links below a folder by name. Links are not followed."""
    found = {}
    for at, folders, names in os.walk(tree):
        links = [name for name in folders if os.path.islink(os.path.join(at, name))]
        for path in (Path(at, name) for name in (*names, *links)):
            found[path.relative_to(tree).as_posix()] = path
    return found


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
