"""Opens TorchServe archives: `.mar` zips, `.tar.gz` files and unpacked folders.

Strategy: everything is checked from the archive's own listing before the first byte is written; the
files go to a fresh folder that is renamed into place only when it is complete. The place is named by
the archive's SHA-256, so that the same archive is unpacked once and a changed one never meets the
files of its predecessor.
"""

import hashlib
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from ksrv.repository.torchserve.cache import PARTIAL, evict, lock_folder

MANIFEST = PurePosixPath("MAR-INF/MANIFEST.json")
ARCHIVE_SUFFIXES = (".mar", ".model", ".tar.gz", ".tgz")
CHUNK = 1024 * 1024


class ArchiveError(ValueError):
    """An archive that cannot be opened, or that must not be."""


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """How much an archive may hold.

    Attributes:
        entries: Files and folders.
        size: Bytes of all files, unpacked.
        ratio: Unpacked bytes for each byte of the archive; smaller archives than 1 MiB count as
            that large.
    """

    entries: int = 10_000
    size: int = 64 * 1024**3
    ratio: int = 200


class Part(msgspec.Struct, rename="camel", kw_only=True):
    """The `model` section of MANIFEST.json; file names are relative to the archive's root."""

    model_name: str
    model_version: str = "1.0"
    handler: str = ""
    serialized_file: str = ""
    model_file: str = ""
    requirements_file: str = ""
    config_file: str = ""
    source_vocab: str = ""


class Manifest(msgspec.Struct, rename="camel", kw_only=True):
    """MAR-INF/MANIFEST.json as far as ksrv reads it."""

    model: Part
    runtime: str = "python"
    archiver_version: str = ""
    created_on: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """One file or folder of an archive, before it is written."""

    path: PurePosixPath
    size: int
    is_folder: bool
    open: Callable[[], IO[bytes]]


def open_archive(
    path: Path, cache: Path | None = None, limits: ArchiveLimits | None = None
) -> Path:
    """Return the folder that holds the archive's files, unpacking them where that is needed.

    Args:
        path: A `.mar`, `.model`, `.tar.gz` or `.tgz` file, or an unpacked folder, which is served
            in place.
        cache: Where unpacked archives are kept; a private folder below the system's temporary
            directory by default.
        limits: How much the archive may hold.

    Raises:
        ArchiveError: The archive is damaged, too large, or has an entry that would leave its folder.
    """
    if path.is_dir():
        if not (path / MANIFEST).is_file():
            raise ArchiveError(f"{path} has no {MANIFEST}")
        return path
    home = default_cache() if cache is None else cache
    place = home / digest_of(path)
    if not lock_folder(place):
        home.mkdir(parents=True, exist_ok=True)
        unpack(path, place, limits or ArchiveLimits())
        lock_folder(place)
        evict(home)
    return place


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of an unpacked archive.

    Raises:
        ArchiveError: It is missing, is not valid, or names a file outside the archive.
    """
    file = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise ArchiveError(f"there is no {MANIFEST}: it is no TorchServe archive") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArchiveError(f"{MANIFEST} cannot be read: {error}") from None
    model = manifest.model
    for key in ("handler", "serialized_file", "model_file", "requirements_file", "config_file"):
        name = getattr(model, key)
        if name and (PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts):
            raise ArchiveError(f"{MANIFEST}: {key} names {name!r}, which is not inside the archive")
    return manifest


def default_cache() -> Path:
    """Return the default cache folder, readable and writable by this user only.

    Raises:
        ArchiveError: The folder exists and belongs to another user, or other users may write to it.
    """
    folder = Path(tempfile.gettempdir()) / f"ksrv-{os.getuid()}" / "archives"
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    facts = folder.parent.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        raise ArchiveError(f"{folder.parent} must be a folder that only this user may write to")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def digest_of(path: Path) -> str:
    """Return the SHA-256 of the file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack(archive: Path, place: Path, limits: ArchiveLimits) -> None:
    """Write the archive's files below `place`, which appears only when all of them are there.

    Raises:
        ArchiveError: As `open_archive`; nothing is left behind.
    """
    partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=place.parent))
    try:
        if archive.name.endswith((".tar.gz", ".tgz")):
            _unpack_tar(archive, partial, limits)
        else:
            _unpack_zip(archive, partial, limits)
        try:
            partial.rename(place)
        except OSError:
            if not place.is_dir():  # another process may have been first with the same archive
                raise
    except (
        OSError
    ) as error:  # two entries of one name, a file where a folder is needed, a full disk
        raise ArchiveError(f"{archive.name} cannot be unpacked: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unpack_zip(archive: Path, folder: Path, limits: ArchiveLimits) -> None:
    try:
        with zipfile.ZipFile(archive) as opened:
            members = list(_zip_members(archive, opened))
            _write(archive, members, folder, limits)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise ArchiveError(f"{archive.name} cannot be unpacked: {error}") from None


def _zip_members(archive: Path, opened: zipfile.ZipFile) -> Iterator[Member]:
    for info in opened.infolist():
        path = _inside(archive, info.filename)
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ArchiveError(f"{archive.name}: {info.filename!r} is a link or a device")
        yield Member(path, info.file_size, info.is_dir(), lambda info=info: opened.open(info))  # type: ignore[misc]


def _unpack_tar(archive: Path, folder: Path, limits: ArchiveLimits) -> None:
    try:
        with tarfile.open(archive, "r:gz") as opened:
            members = list(_tar_members(archive, opened, limits))
            _write(archive, _without_top_folder(members), folder, limits)
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise ArchiveError(f"{archive.name} cannot be unpacked: {error}") from None


def _tar_members(archive: Path, opened: tarfile.TarFile, limits: ArchiveLimits) -> Iterator[Member]:
    # Listing a compressed tar inflates it: the bounds are held while listing, too.
    total = 0
    for count, info in enumerate(opened):
        if not (info.isfile() or info.isdir()):
            raise ArchiveError(f"{archive.name}: {info.name!r} is a link or a device")
        total += info.size
        _hold(archive, count + 1, total, limits)

        def content(info: tarfile.TarInfo = info) -> IO[bytes]:
            stream = opened.extractfile(info)
            assert stream is not None
            return stream

        yield Member(_inside(archive, info.name), info.size, info.isdir(), content)


def _without_top_folder(members: list[Member]) -> list[Member]:
    """Drop the one folder that the archiver puts around everything in its tgz format."""
    if not members or any(member.path == MANIFEST for member in members):
        return members
    tops = {member.path.parts[0] for member in members if member.path.parts}
    if len(tops) != 1:
        return members
    return [
        Member(PurePosixPath(*member.path.parts[1:]), member.size, member.is_folder, member.open)
        for member in members
        if len(member.path.parts) > 1
    ]


def _inside(archive: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise ArchiveError(f"{archive.name}: {name!r} would leave the archive's folder")
    return path


def _hold(archive: Path, entries: int, total: int, limits: ArchiveLimits) -> None:
    if entries > limits.entries:
        raise ArchiveError(f"{archive.name} has more than {limits.entries} entries")
    if total > limits.size:
        raise ArchiveError(f"{archive.name} unpacks to more than {limits.size} bytes")
    packed = max(archive.stat().st_size, CHUNK)
    if total > packed * limits.ratio:
        raise ArchiveError(
            f"{archive.name} unpacks to more than {limits.ratio} times its size of {packed} bytes"
        )


def _write(archive: Path, members: list[Member], folder: Path, limits: ArchiveLimits) -> None:
    _hold(archive, len(members), sum(member.size for member in members), limits)
    for member in members:
        target = folder / member.path
        if member.is_folder:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with member.open() as source, target.open("xb") as file:
            written = 0
            while piece := source.read(CHUNK):
                written += len(piece)
                if written > member.size:  # the listing lied
                    raise ArchiveError(
                        f"{archive.name}: {str(member.path)!r} is larger than listed"
                    )
                file.write(piece)
