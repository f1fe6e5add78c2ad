"""Puts the files of a source into a folder, which appears whole, and compares a folder with its lock file.

A pull into `models/cats/1` downloads into the hidden folder `models/cats/.1.pull`, which ksrv serves no model from.
When each file has its size and digest and is on the disk, the lock file `models/cats/.1.pull.lock` is written, and the
folder gets its name. After an end at any moment, the next pull continues.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ksrv.errors import quote
from ksrv.pull.source import PullError, RemoteFile, Source, check_names, redacted


class Lock(msgspec.Struct):
    """The lock file of a folder.

    Attributes:
        uri: The address without credentials.
        revision: The revision of the source.
        files: "sha256:HEX" of each file.
    """

    uri: str
    revision: str
    files: dict[str, str]


def pull_into(folder: Path, source: Source, show: Callable[[int, int], None]) -> str:
    """Copy a model into a folder. Waits while another process pulls into the same folder.

    Args:
        folder: The folder to make. Nothing is done if the lock file says that it has this revision already.
        show: Is given the number of bytes that have arrived, and the number of all bytes.

    Returns:
        A sentence that says what was done.

    Raises:
        PullError: The source or the folder cannot be used, or a digest is wrong.
        OSError: A file cannot be written.
    """
    folder = Path(os.path.abspath(folder))
    if folder.is_mount():
        raise PullError(f"{folder} is a mount point; pull into a folder below it")
    staging = folder.with_name(f".{folder.name}.pull")
    check_names(source.files)
    with _locked(staging):
        if os.path.lexists(folder) and (not folder.is_dir() or os.listdir(folder)):
            shutil.rmtree(staging)
            return _unchanged(source, folder)
        tree = staging / hashlib.sha256(repr((source.uri, source.revision)).encode()).hexdigest()
        for path in staging.iterdir():  # what is left of an earlier pull
            if path.is_dir() and path != tree:
                shutil.rmtree(path)
        tree.mkdir(exist_ok=True)
        total = sum(file.size for file in source.files)
        present = sum(path.lstat().st_size for path in _files(tree).values())
        if total > (free := shutil.disk_usage(tree).free + present):
            raise PullError(f"the model has {total:,} bytes, the disk {free:,} free")
        sizes = dict.fromkeys((file.name for file in source.files), 0)

        def arrived(name: str, size: int) -> None:
            sizes[name] = size
            show(sum(sizes.values()), total)

        source.fetch(tree, arrived)
        lock = Lock(source.uri, source.revision, _checked(tree, source.files))
        written = staging / "lock"
        written.write_bytes(msgspec.json.format(msgspec.json.encode(lock)))
        _sync(written)
        written.replace(lock_of(folder))
        tree.rename(folder)
        _sync(folder.parent)
        shutil.rmtree(staging)
        return f"{folder} has {len(lock.files)} files, {total:,} bytes, of revision {lock.revision}"


def differences(folder: Path, uri: str) -> list[str]:
    """Return how a folder differs from its lock file, a line for each file. Uses no network.

    Raises:
        PullError: The folder has no lock file, or was pulled from another address.
    """
    lock, found = _read_lock(folder), _files(folder)
    if lock.uri != redacted(uri):
        raise PullError(f"{folder} was pulled from {lock.uri}, not from {redacted(uri)}")
    lines = [f"{quote(name)} is missing" for name in lock.files.keys() - found.keys()]
    lines += [f"{quote(name)} was not pulled" for name in found.keys() - lock.files.keys()]
    for name in lock.files.keys() & found.keys():
        is_file = found[name].is_file() and not found[name].is_symlink()
        if not is_file or _digest(found[name], "sha256:") != lock.files[name]:
            lines.append(f"{quote(name)} has another content")
    return sorted(lines)


def lock_of(folder: Path) -> Path:
    """Return the lock file of a folder. It is beside the folder, so that a signature of the folder stays valid."""
    folder = Path(os.path.abspath(folder))
    return folder.with_name(f".{folder.name}.pull.lock")


def _read_lock(folder: Path) -> Lock:
    path = lock_of(folder)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Lock)
    except FileNotFoundError:
        raise PullError(f"{folder} was not pulled: {path} is missing; use another folder") from None
    except ValueError:
        raise PullError(f"{path} is damaged; remove it and {folder}, and pull again") from None


def _unchanged(source: Source, folder: Path) -> str:
    """Return that a folder has the revision of a source already.

    Raises:
        PullError: It has not, and files that may be served do not change.
    """
    lock = _read_lock(folder)
    if (lock.uri, lock.revision) == (source.uri, source.revision):
        return f"{folder} has revision {source.revision} already; --verify compares its files"
    found = f"{folder} has {lock.uri} at {lock.revision}, and {source.uri} is at {source.revision}"
    raise PullError(f"{found}; pull into another folder, such as the next version")


@contextmanager
def _locked(staging: Path) -> Iterator[None]:
    """Make a folder that only this process uses; wait while another process uses it."""
    while True:
        staging.mkdir(parents=True, exist_ok=True)
        opened = os.open(staging, os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
            if staging.exists() and os.path.samestat(os.fstat(opened), staging.stat()):
                yield
                return
        finally:
            os.close(opened)  # another process has removed the folder, or this process is done


def _checked(tree: Path, files: list[RemoteFile]) -> dict[str, str]:
    """Compare the files of a tree with the source, remove others, and write everything to the disk.

    Returns:
        The digest of each file.
    """
    for name in _files(tree).keys() - {file.name for file in files}:
        (tree / name).unlink()
    digests = {}
    for file in files:
        path = tree / file.name
        digests[file.name] = _digest(path, "sha256:")
        digest = file.digest and _digest(path, file.digest)
        actual, expected = (path.stat().st_size, digest), (file.size, file.digest)
        if actual != expected:
            path.unlink()  # so that the next pull takes all of it again
            raise PullError(f"{quote(file.name)} has size and digest {actual}; expected {expected}")
        _sync(path)
    for at, _, _ in os.walk(tree, topdown=False):
        if os.listdir(at):
            _sync(Path(at))
        else:
            os.rmdir(at)
    return digests


def _digest(path: Path, like: str) -> str:
    """Return the digest of a file in the form of another digest."""
    start = hashlib.sha256()
    if like.startswith("git:"):
        start = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as opened:
        return f"{like.partition(':')[0]}:{hashlib.file_digest(opened, lambda: start).hexdigest()}"


def _files(tree: Path) -> dict[str, Path]:
    """Return the files and links below a folder by name. Links are not followed."""
    found = {}
    for at, folders, names in os.walk(tree):
        for path in (Path(at, name) for name in (*names, *folders)):
            if path.is_symlink() or not path.is_dir():
                found[path.relative_to(tree).as_posix()] = path
    return found


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
