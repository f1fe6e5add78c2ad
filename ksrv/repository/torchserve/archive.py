"""Opens TorchServe archives: `.mar` zips, `.tar.gz` files and unpacked folders.

Strategy: everything is checked from the archive's own listing before the first byte is written; the
files go to a fresh folder that is renamed into place only when it is complete. The place is named by
the archive's SHA-256, so that the same archive is unpacked once and a changed one never meets the
files of its predecessor.
"""

import copy
import gzip
import hashlib
import lzma
import os
import re
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import msgspec

from ksrv.repository.entry import is_model_name
from ksrv.repository.torchserve.cache import PARTIAL, evict, lock_folder

MANIFEST = PurePosixPath("MAR-INF/MANIFEST.json")
ARCHIVE_SUFFIXES = (".mar", ".model", ".tar.gz", ".tgz")
CHUNK = 1024 * 1024
SETTINGS_BYTES = 1024 * 1024
"""A manifest, settings or requirements may have so many: all of them is read into memory."""
TAR_HEADER_BYTES = 8 * 1024 * 1024
"""A header of a tar may have so many: tarfile reads all of it into memory."""
TAR_HEADERS_BYTES = 64 * 1024 * 1024
"""All headers of a tar and what fills its blocks may have so many beside the files' bytes."""
MAX_DEPTH = 64
"""Folders one in the other: removing them takes a Python frame for each."""

DAMAGE = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError,
    NotImplementedError,  # a compression, or an encryption, that zipfile does not know
    RuntimeError,  # a password is needed; RecursionError: headers that describe headers
    ValueError,  # a name that is not UTF-8, a number that is none
    OverflowError, MemoryError,
)  # fmt: skip
"""What zipfile and tarfile raise for the bytes of a damaged archive."""

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


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


FILE_KEYS = (
    "handler", "serialized_file", "model_file", "requirements_file", "config_file", "source_vocab",
)  # fmt: skip
"""The keys that name a file of the archive."""


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
    if not path.is_file():
        raise ArchiveError(f"{path} is neither a file nor a folder")
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
        ArchiveError: It is missing, is not valid, names a file outside the archive, or has a name or a version that
            no model can have.
    """
    try:
        manifest = msgspec.json.decode(read_settings(folder, str(MANIFEST)), type=Manifest)
    except FileNotFoundError:
        raise ArchiveError(f"there is no {MANIFEST}: it is no TorchServe archive") from None
    except OSError as error:
        raise ArchiveError(f"{MANIFEST} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ArchiveError(f"{MANIFEST} is nested too deep to be read") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArchiveError(f"{MANIFEST} cannot be read: {error}") from None
    model = manifest.model
    if not is_model_name(model.model_name) or not _VERSION.fullmatch(model.model_version):
        # Both become parts of paths and routes.
        raise ArchiveError(
            f"the manifest's modelName {model.model_name!r} or modelVersion {model.model_version!r} cannot be served"
        )
    for key in FILE_KEYS:
        name = getattr(model, key)
        path = PurePosixPath(name)
        if name and (path.is_absolute() or ".." in path.parts or "\0" in name):
            raise ArchiveError(f"{MANIFEST}: {key} names {name!r}, which is not inside the archive")
    return manifest


def read_settings(folder: Path, name: str) -> bytes:
    """Return the content of a file that describes the model.

    Raises:
        ArchiveError: It is longer than such files are.
        OSError: It cannot be read.
    """
    with (folder / name).open("rb") as file:
        content = file.read(SETTINGS_BYTES + 1)
    if len(content) > SETTINGS_BYTES:
        raise ArchiveError(f"{name} is longer than {SETTINGS_BYTES} bytes")
    return content


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
            read_manifest(partial)
        except ArchiveError as error:
            raise ArchiveError(f"{archive}: {error}") from None
        try:
            partial.rename(place)
        except OSError:
            if not place.is_dir():  # another process may have been first with the same archive
                raise
    except DAMAGE as error:
        if isinstance(error, ArchiveError):
            raise
        raise ArchiveError(f"{archive.name} cannot be unpacked: {_reason(error)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, RecursionError):
        return "its headers are nested too deep"
    return str(error) or type(error).__name__


def _unpack_zip(archive: Path, folder: Path, limits: ArchiveLimits) -> None:
    with zipfile.ZipFile(archive) as opened:
        _write(archive, list(_zip_members(archive, opened)), folder, limits)


def _zip_members(archive: Path, opened: zipfile.ZipFile) -> Iterator[Member]:
    for info in opened.infolist():
        path = _inside(archive, info.filename)
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ArchiveError(f"{archive.name}: {info.filename!r} is a link or a device")
        if info.flag_bits & 1:
            raise ArchiveError(f"{archive.name}: {info.filename!r} is encrypted")
        if kind and info.is_dir() != (kind == stat.S_IFDIR):
            raise ArchiveError(
                f"{archive.name}: {info.filename!r} is a folder by its name or by its attributes, but not by both"
            )
        if info.is_dir() and info.file_size:
            raise ArchiveError(f"{archive.name}: {info.filename!r} is a folder, but has content")

        def content(info: zipfile.ZipInfo = info) -> IO[bytes]:
            # The data are read to their own end, or one byte beyond what is listed: zipfile would
            # cut them without a word where the listing is too short.
            longer = copy.copy(info)
            longer.file_size += 1
            return opened.open(longer)

        yield Member(path, info.file_size, info.is_dir(), content)


def _unpack_tar(archive: Path, folder: Path, limits: ArchiveLimits) -> None:
    with gzip.open(archive) as stream:
        bounded = _BoundedStream(archive, stream, limits)
        with tarfile.open(fileobj=cast(Any, bounded), mode="r:") as opened:
            members = list(_tar_members(archive, opened, limits))
            # tarfile takes a header that it cannot read for the end.
            bounded.seek(opened.offset)
            if any(bounded.read(tarfile.BLOCKSIZE)):
                raise ArchiveError(
                    f"{archive.name} is damaged behind its {len(members)} first entries"
                )
            while bounded.read(CHUNK):
                pass  # gzip's checksum stands at the end
            _write(archive, _without_top_folder(members), folder, limits)


class _BoundedStream:
    """The bytes of a compressed tar, as tarfile reads them, which bounds neither headers nor what they claim.

    Args:
        stream: Its bytes, inflated.
        limits: How much the archive may hold.
    """

    def __init__(self, archive: Path, stream: gzip.GzipFile, limits: ArchiveLimits) -> None:
        self._archive, self._stream, self._limits = archive, stream, limits
        self.tell = stream.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= TAR_HEADER_BYTES:
            raise ArchiveError(
                f"{self._archive.name}: a header of {size} bytes behind byte {self.tell()} is no header"
            )
        content = self._stream.read(size)
        _hold(self._archive, 0, self.tell() - TAR_HEADERS_BYTES, self._limits)
        return content

    def seek(self, position: int) -> int:
        if position < 0:
            raise ArchiveError(f"{self._archive.name}: an entry has less than no bytes")
        _hold(self._archive, 0, position - TAR_HEADERS_BYTES, self._limits)
        return self._stream.seek(position)


def _tar_members(archive: Path, opened: tarfile.TarFile, limits: ArchiveLimits) -> Iterator[Member]:
    # Listing a compressed tar inflates it: the bounds are held while listing, too.
    total = 0
    for count, info in enumerate(opened):
        if not (info.isfile() or info.isdir()):
            raise ArchiveError(f"{archive.name}: {info.name!r} is a link or a device")
        if info.size < 0:
            raise ArchiveError(f"{archive.name}: {info.name!r} has less than no bytes")
        size = 0 if info.isdir() else info.size
        total += size
        _hold(archive, count + 1, total, limits)

        def content(info: tarfile.TarInfo = info) -> IO[bytes]:
            stream = opened.extractfile(info)
            assert stream is not None
            return stream

        yield Member(_inside(archive, info.name), size, info.isdir(), content)


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
    if len(path.parts) > MAX_DEPTH:
        raise ArchiveError(f"{archive.name}: {name!r} lies deeper than {MAX_DEPTH} folders")
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
    written: set[PurePosixPath] = set()
    for member in members:
        if not member.is_folder and member.path in written:
            raise ArchiveError(f"{archive.name} has two entries {str(member.path)!r}")
        written.add(member.path)
        try:
            _write_member(member, folder / member.path)
        except DAMAGE as error:
            raise ArchiveError(
                f"{archive.name}: {str(member.path)!r} cannot be unpacked: {_reason(error)}"
            ) from error


def _write_member(member: Member, target: Path) -> None:
    if member.is_folder:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with member.open() as source, target.open("xb") as file:
        written = 0
        while piece := source.read(CHUNK):
            written += len(piece)
            if written > member.size:
                raise ArchiveError(f"it is larger than the {member.size} bytes that are listed")
            file.write(piece)
    if written < member.size:
        raise ArchiveError(f"it has {written} bytes, and {member.size} are listed")
