"""Opens TorchServe archives: `.mar` zips, `.tar.gz` files and unpacked folders.

The whole listing of an archive is checked before the first byte is written, because an archive may be made to harm the
server. Each process unpacks an archive into a separate folder (`unpack_folders.py`), because a handler may change its
files: once, and again after the archive has changed.
"""

import copy
import errno
import gzip
import hashlib
import json
import lzma
import os
import re
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import msgspec

from ksrv.dialects.torchserve.archive.unpack_folders import held_folder, hold, new_folder
from ksrv.repository.entry import is_model_name

MANIFEST = PurePosixPath("MAR-INF/MANIFEST.json")
ARCHIVE_SUFFIXES = (".mar", ".model", ".tar.gz", ".tgz")
CHUNK = 1024 * 1024
SETTINGS_BYTES = 1024 * 1024
"""The largest manifest, settings or requirements file, because the whole file is read into memory."""
TAR_HEADER_BYTES = 8 * 1024 * 1024
"""The largest header of a tar, because tarfile reads the whole header into memory."""
TAR_HEADERS_BYTES = 64 * 1024 * 1024
"""The most bytes of all headers and padding of a tar, besides the bytes of the files."""
MAX_DEPTH = 64
"""The deepest nesting of folders, because `shutil.rmtree` takes a Python frame for each level."""

DAMAGE = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError,
    NotImplementedError,  # a compression, or an encryption, that zipfile does not know
    RuntimeError,  # a password is needed; RecursionError: headers that describe headers
    ValueError,  # a name that is not UTF-8, an invalid number
    OverflowError, MemoryError,
)  # fmt: skip
"""The errors that zipfile and tarfile raise for the bytes of a damaged archive."""

_MAKE_AGAIN = "copy the archive again, or make it again with torch-model-archiver"
_LINK_OR_DEVICE = "a link or a device; make the archive of files and folders alone"
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


class ArchiveError(ValueError):
    """An archive that cannot be opened, or that must not be."""


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """The limits on an archive's content.

    Attributes:
        entries: Files and folders.
        size: Bytes of all files, unpacked.
        ratio: Unpacked bytes for each byte of the archive; an archive below 1 MiB counts as 1 MiB.
    """

    entries: int = 10_000
    size: int = 64 * 1024**3
    ratio: int = 200

    def check(self, archive: Path, entries: int, size: int) -> None:
        """Check the number of entries, and the bytes of their files, against the limits.

        Raises:
            ArchiveError: A limit is exceeded.
        """
        packed = max(archive.stat().st_size, CHUNK)
        if entries > self.entries:
            excess = f"has more than {self.entries} entries, the most that ksrv unpacks"
        elif size > self.size:
            excess = f"unpacks to more than {self.size} bytes, the most that ksrv unpacks"
        elif size > packed * self.ratio:
            excess = (
                f"unpacks to more than {self.ratio} times its size of {packed} bytes, as only an archive does that "
                f"is made to fill disks"
            )
        else:
            return
        raise ArchiveError(
            f"the archive {excess}; unpack a trusted archive yourself, and serve the folder"
        )


class ManifestModel(msgspec.Struct, rename="camel", kw_only=True):
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
    """The parts of MAR-INF/MANIFEST.json that ksrv reads."""

    model: ManifestModel
    runtime: str = "python"
    archiver_version: str = ""
    created_on: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """One file or folder in the listing of an archive."""

    path: PurePosixPath
    size: int
    is_folder: bool
    open: Callable[[], IO[bytes]]


def open_archive(
    path: Path, cache: Path | None = None, limits: ArchiveLimits | None = None
) -> Path:
    """Return this process's folder with the archive's files, unpacking them if it has none yet.

    Args:
        path: A `.mar`, `.model`, `.tar.gz` or `.tgz` file, or an unpacked folder, which is served
            in place.
        cache: The parent of the folders; a private folder below the system's temporary directory by
            default.
        limits: The limits on the archive's content.

    Raises:
        ArchiveError: The archive is damaged, too large, or has an entry that would leave its folder.
    """
    if path.is_dir():
        if not (path / MANIFEST).is_file():
            raise ArchiveError(
                f"{path} has no {MANIFEST}; expected an archive's folder, or a .mar file"
            )
        return path
    if not path.is_file():
        raise ArchiveError(
            f"{path} is neither a file nor a folder; expected {', '.join(ARCHIVE_SUFFIXES)} or an archive's folder"
        )
    if path.stat().st_size == 0:
        raise ArchiveError(f"{path} is empty (0 bytes); {_MAKE_AGAIN}")
    digest = digest_of(path)
    if (held := held_folder(path, digest)) is not None:
        return held
    folder = new_folder(default_cache() if cache is None else cache, digest)
    try:
        unpack(path, folder.path, limits or ArchiveLimits())
    except BaseException:
        folder.remove()
        raise
    hold(path, folder)
    return folder.path


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of an unpacked archive.

    Raises:
        ArchiveError: The manifest is missing or not valid, names a file outside the archive, or has a name or a version
            that no model can have.
    """
    try:
        manifest = _manifest_of(read_settings(folder, str(MANIFEST)))
    except FileNotFoundError:
        raise ArchiveError(
            f"{MANIFEST} is missing, so it is not a TorchServe archive; make the archive with torch-model-archiver"
        ) from None
    except OSError as error:
        raise ArchiveError(f"{MANIFEST} cannot be read: {error.strerror}; {_MAKE_AGAIN}") from None
    except RecursionError:
        raise ArchiveError(f"{MANIFEST} is nested too deep to be read; {_MAKE_AGAIN}") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise ArchiveError(f"{MANIFEST} cannot be read: {error}; {_MAKE_AGAIN}") from None
    model = manifest.model
    # Name and version become parts of paths and routes.
    if not is_model_name(model.model_name):
        raise ArchiveError(
            f"{MANIFEST}: modelName is {model.model_name[:128]!r}; a name has 1 to 128 letters, digits, '.', '_' and "
            f"'-', and begins with a letter or a digit"
        )
    if not _VERSION.fullmatch(model.model_version):
        raise ArchiveError(
            f"{MANIFEST}: modelVersion is {model.model_version[:128]!r}; a version has 1 to 64 letters, digits, '.', "
            f"'_', '+' and '-', and begins with a letter or a digit"
        )
    keys = {known.name: known.encode_name for known in msgspec.structs.fields(model)}
    for field in FILE_KEYS:
        name = getattr(model, field)
        path = PurePosixPath(name)
        if name and (path.is_absolute() or ".." in path.parts or "\0" in name):
            raise ArchiveError(
                f"{MANIFEST}: {keys[field]} names {name!r}, which is not inside the archive; expected a path from its root, "
                f"without .."
            )
    return manifest


def _manifest_of(content: bytes) -> Manifest:
    """Convert a manifest as TorchServe's gson does: a number becomes a text, and null means a key that is left out."""
    document = json.loads(content, parse_int=str, parse_float=str)
    if isinstance(document, dict):
        document = _without_nulls(document)
        if isinstance(model := document.get("model"), dict):
            document["model"] = _without_nulls(model)
    return msgspec.convert(document, Manifest)


def _without_nulls(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}


def read_settings(folder: Path, name: str) -> bytes:
    """Return the content of a file that describes the model.

    Raises:
        ArchiveError: The file is longer than `SETTINGS_BYTES`.
        OSError: The file cannot be read.
    """
    with (folder / name).open("rb") as file:
        content = file.read(SETTINGS_BYTES + 1)
    if len(content) > SETTINGS_BYTES:
        raise ArchiveError(
            f"{name} is longer than {SETTINGS_BYTES} bytes, the most that ksrv reads of such a file"
        )
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
        raise ArchiveError(
            f"{folder.parent}, where archives are unpacked, must be a folder that only this user may write to; "
            f"remove it, or set TMPDIR to another folder"
        )
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def digest_of(path: Path) -> str:
    """Return the SHA-256 of the file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack(archive: Path, folder: Path, limits: ArchiveLimits) -> None:
    """Write the archive's files into an empty folder.

    Raises:
        ArchiveError: As `open_archive`; the folder may hold a part of the files.
    """
    try:
        if archive.name.endswith((".tar.gz", ".tgz")):
            _unpack_tar(archive, folder, limits)
        else:
            _unpack_zip(archive, folder, limits)
        read_manifest(folder)
    except ArchiveError as error:
        raise ArchiveError(f"{archive}: {error}") from error
    except DAMAGE as error:
        raise ArchiveError(
            f"{archive} cannot be unpacked: {_reason(error)}; {_remedy(error)}"
        ) from error


def _remedy(error: BaseException) -> str:
    """Return advice about a failure to unpack: about the machine's disk, or about the archive."""
    if isinstance(error, OSError) and error.errno in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EACCES,
        errno.EROFS,
    ):
        return f"archives are unpacked below {tempfile.gettempdir()}, which TMPDIR sets"
    return _MAKE_AGAIN


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, RecursionError):
        return "its headers are nested too deep"
    return str(error) or type(error).__name__


def _unpack_zip(archive: Path, folder: Path, limits: ArchiveLimits) -> None:
    with zipfile.ZipFile(archive) as opened:
        members = [_zip_member(opened, info) for info in opened.infolist()]
        limits.check(archive, len(members), sum(member.size for member in members))
        _write(members, folder)


def _zip_member(opened: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    path = _inside(info.filename)
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ArchiveError(f"{info.filename!r} is {_LINK_OR_DEVICE}")
    if info.flag_bits & 1:
        raise ArchiveError(f"{info.filename!r} is encrypted; make the archive without a password")
    if kind and info.is_dir() != (kind == stat.S_IFDIR):
        raise ArchiveError(
            f"{info.filename!r} is a folder by its name or by its attributes, but not by both; {_MAKE_AGAIN}"
        )
    if info.is_dir() and info.file_size:
        raise ArchiveError(f"{info.filename!r} is a folder, but has content; {_MAKE_AGAIN}")
    # zipfile would silently stop at the listed size. Listed as one byte longer, data that are too long are noticed.
    longer = copy.copy(info)
    longer.file_size += 1
    return Member(path, info.file_size, info.is_dir(), lambda: opened.open(longer))


def _unpack_tar(archive: Path, folder: Path, limits: ArchiveLimits) -> None:
    with gzip.open(archive) as stream:
        bounded = _BoundedStream(archive, stream, limits)
        with tarfile.open(fileobj=cast(Any, bounded), mode="r:") as opened:
            members = list(_tar_members(archive, opened, limits))
            # tarfile treats a header that it cannot read as the end of the archive.
            bounded.seek(opened.offset)
            if any(bounded.read(tarfile.BLOCKSIZE)):
                raise ArchiveError(
                    f"the archive is damaged after its first {len(members)} entries; {_MAKE_AGAIN}"
                )
            while bounded.read(CHUNK):
                pass  # read to the end, where gzip checks its checksum
            _write(_without_top_folder(members), folder)


class _BoundedStream:
    """The file object that tarfile reads a compressed tar from.

    It bounds the size of headers and of the whole content, because tarfile itself believes any size in a header.

    Args:
        stream: The inflated bytes.
        limits: The limits on the archive's content.
    """

    def __init__(self, archive: Path, stream: gzip.GzipFile, limits: ArchiveLimits) -> None:
        self._archive, self._stream, self._limits = archive, stream, limits
        self.tell = stream.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= TAR_HEADER_BYTES:
            raise ArchiveError(
                f"the header at byte {self.tell()} claims {size} bytes, and the most is {TAR_HEADER_BYTES}; {_MAKE_AGAIN}"
            )
        content = self._stream.read(size)
        self._limits.check(self._archive, 0, self.tell() - TAR_HEADERS_BYTES)
        return content

    def seek(self, position: int) -> int:
        if position < 0:
            raise ArchiveError(f"an entry has a negative size; {_MAKE_AGAIN}")
        self._limits.check(self._archive, 0, position - TAR_HEADERS_BYTES)
        return self._stream.seek(position)


def _tar_members(archive: Path, opened: tarfile.TarFile, limits: ArchiveLimits) -> Iterator[Member]:
    # Listing a compressed tar inflates it, so the limits are checked after each entry, not at the end.
    total = 0
    for count, info in enumerate(opened):
        if not (info.isfile() or info.isdir()):
            raise ArchiveError(f"{info.name!r} is {_LINK_OR_DEVICE}")
        if info.size < 0:
            raise ArchiveError(f"{info.name!r} has a negative size; {_MAKE_AGAIN}")
        size = 0 if info.isdir() else info.size
        total += size
        limits.check(archive, count + 1, total)

        def content(info: tarfile.TarInfo = info) -> IO[bytes]:
            stream = opened.extractfile(info)
            assert stream is not None
            return stream

        yield Member(_inside(info.name), size, info.isdir(), content)


def _without_top_folder(members: list[Member]) -> list[Member]:
    """Drop the folder that torch-model-archiver puts around all files in its tgz format."""
    if not members or any(member.path == MANIFEST for member in members):
        return members
    tops = {member.path.parts[0] for member in members if member.path.parts}
    if len(tops) != 1:
        return members
    return [
        replace(member, path=PurePosixPath(*member.path.parts[1:]))
        for member in members
        if len(member.path.parts) > 1
    ]


def _inside(name: str) -> PurePosixPath:
    """Return the path of an entry, or raise ArchiveError if the path leaves the folder or is too deep."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise ArchiveError(
            f"{name!r} would leave the archive's folder; expected a path from its root, without .."
        )
    if len(path.parts) > MAX_DEPTH:
        raise ArchiveError(
            f"{name!r} lies deeper than {MAX_DEPTH} folders, the most that ksrv unpacks"
        )
    return path


def _write(members: list[Member], folder: Path) -> None:
    written: set[PurePosixPath] = set()
    for member in members:
        if not member.is_folder and member.path in written:
            raise ArchiveError(f"the archive has two entries {str(member.path)!r}; {_MAKE_AGAIN}")
        written.add(member.path)
        try:
            _write_member(member, folder / member.path)
        # Also an ArchiveError, whose text continues after the name of the entry.
        except DAMAGE as error:
            raise ArchiveError(
                f"{str(member.path)!r} cannot be unpacked: {_reason(error)}; {_remedy(error)}"
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
