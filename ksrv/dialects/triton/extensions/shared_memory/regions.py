"""The regions of POSIX shared memory that clients have registered: `--allow-shared-memory`.

A client could otherwise make the server read or write files for it, so these rules apply:

- Only regular files directly in /dev/shm are opened, by a name without a slash and without following links. They must
  belong to the server's user.
- A caller without the control token acts as the user at the other end of its unix socket. This user needs the right to
  read and write the file, because the server must not lend its rights to every local user.
- A region is read and written through its descriptor and never mapped. A file that shrinks while it is mapped would end
  the process by SIGBUS. Offsets and sizes are compared with the size of the file on every use.

The descriptor stays open until the region is unregistered and the last request that uses it is done.
"""

import os
import stat
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

from ksrv._native.memory import buffer_pool
from ksrv.errors import InvalidRequest, NotFound, quote
from ksrv.limits import show_limit
from ksrv.request import SharedMemoryRef

FOLDER = "/dev/shm"
LONGEST_NAME = 255
"""Bytes of a file name in /dev/shm, and characters of a region's name."""


class MemoryUser(NamedTuple):
    """The user whose rights a caller has for shared memory.

    Attributes:
        gid: The primary group of the user; other groups do not count.
    """

    uid: int
    gid: int

    def may_use(self, about: os.stat_result) -> bool:
        """Whether the user may read and write a file, by its owner, group and mode."""
        if self.uid == about.st_uid:
            needed = stat.S_IRUSR | stat.S_IWUSR
        elif self.gid == about.st_gid:
            needed = stat.S_IRGRP | stat.S_IWGRP
        else:
            needed = stat.S_IROTH | stat.S_IWOTH
        return self.uid == 0 or about.st_mode & needed == needed


class _Descriptor:
    """Owns a file descriptor, and closes it when the last reference is gone, unless `close` was called."""

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def size(self) -> int:
        return os.fstat(self.number).st_size

    def close(self) -> None:
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True)
class _Region:
    """A registered region; `key` is the name of the file in /dev/shm."""

    name: str
    key: str
    offset: int
    byte_size: int
    descriptor: _Descriptor

    def status(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "key": self.key,
            "offset": self.offset,
            "byte_size": self.byte_size,
        }


def _open(key: str, user: MemoryUser | None) -> _Descriptor:
    """Open the memory that a key names.

    Args:
        user: The user whose rights count; None for a caller who has the server's rights.

    Raises:
        InvalidRequest: The key is not a plain name, or names no memory that the caller may use.
    """
    plain = key.removeprefix("/")
    if (
        not plain
        or "/" in plain
        or "\0" in plain
        or plain in (".", "..")
        or len(os.fsencode(plain)) > LONGEST_NAME
    ):
        raise InvalidRequest(
            f"the key {quote(key)} is not a name in shared memory; expected at most "
            f"{LONGEST_NAME} bytes without a slash but one in front"
        )
    refusal = InvalidRequest(
        f"this server and the caller may read and write no shared memory with the key {quote(key)}"
    )
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    folder = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        opened = _Descriptor(os.open(plain, flags, dir_fd=folder))
    except OSError:
        raise refusal from None
    finally:
        os.close(folder)
    about = os.fstat(opened.number)
    # As root, the server could open the memory of every other program.
    owned = about.st_uid == os.geteuid()
    allowed = user is None or user.may_use(about)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1 or not owned or not allowed:
        opened.close()
        raise refusal
    return opened


class Regions:
    """The regions of one server.

    Args:
        most: The most regions at a time, because each keeps a descriptor open.
        kind: "system" or "cuda", for error texts.
    """

    def __init__(self, most: int, kind: str = "system") -> None:
        self._most = most
        self._kind = kind
        self._lock = threading.Lock()
        self._regions: dict[str, _Region] = {}

    def register(
        self, name: str, key: str, offset: int, byte_size: int, user: MemoryUser | None = None
    ) -> None:
        """Register a region.

        Args:
            key: The name of the memory, as for `shm_open`.
            offset: The offset in that memory at which the region begins.
            byte_size: The size of the region.
            user: The user whose rights count; None for a caller who has the server's rights.

        Raises:
            InvalidRequest: The name is taken, or the memory does not exist or is smaller.
        """
        if not name or len(name) > LONGEST_NAME:
            raise InvalidRequest(
                f"a shared memory region needs a name of 1 to {LONGEST_NAME} characters, got "
                f"{quote(name)}"
            )
        descriptor = _open(key, user)
        try:
            self._add(_Region(name, key, offset, byte_size, descriptor))
        except InvalidRequest:
            descriptor.close()  # at once, because the traceback keeps a reference
            raise

    def _add(self, region: _Region) -> None:
        size = region.descriptor.size
        if region.byte_size < 1 or region.offset + region.byte_size > size:
            raise InvalidRequest(
                f"a region of {region.byte_size} bytes from offset {region.offset} does not fit into "
                f"the {size} bytes of the shared memory {quote(region.key)}"
            )
        with self._lock:
            if region.name in self._regions:
                raise InvalidRequest(
                    f"shared memory region {quote(region.name)} is already registered"
                )
            if len(self._regions) >= self._most:
                raise InvalidRequest(
                    f"shared memory region {quote(region.name)}: {len(self._regions)} regions are "
                    f"registered, which reaches the {show_limit('regions', self._most)}"
                )
            self._regions[region.name] = region

    def unregister(self, name: str = "") -> None:
        """Unregister a region, or all regions. An unknown name is ignored.

        Args:
            name: The region's name, or "" for all.
        """
        with self._lock:
            if name:
                self._regions.pop(name, None)
            else:
                self._regions.clear()

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """Return the registered regions, with their fields by name.

        Args:
            name: A region's name, or "" for all.

        Raises:
            NotFound: The region is unknown.
        """
        with self._lock:
            if not name:
                return [region.status() for region in self._regions.values()]
            found = self._regions.get(name)
        if found is None:
            raise NotFound(f"Unable to find {self._kind} shared memory region: {quote(name)}")
        return [found.status()]

    def _locate(self, ref: SharedMemoryRef, user: MemoryUser | None) -> tuple[_Descriptor, int]:
        """Return the descriptor for a reference, and the offset in the file at which the reference begins."""
        with self._lock:
            found = self._regions.get(ref.region)
        if found is not None and user is not None:
            found = found if user.may_use(os.fstat(found.descriptor.number)) else None
        if found is None:
            raise InvalidRequest(
                f"Unable to find shared memory region: {quote(ref.region)}; register it first"
            )
        end = ref.offset + ref.byte_size
        if end > found.byte_size:
            raise InvalidRequest(
                f"Invalid offset + byte size for shared memory region: {quote(ref.region)}; "
                f"{ref.offset} + {ref.byte_size} exceed its {found.byte_size} bytes"
            )
        if found.offset + end > found.descriptor.size:
            raise _shrunk(ref)
        return found.descriptor, found.offset + ref.offset

    def read(self, ref: SharedMemoryRef, user: MemoryUser | None = None) -> memoryview:
        """Return a copy of the bytes of a reference.

        Args:
            user: The user whose rights count; None for a caller who has the server's rights.

        Raises:
            InvalidRequest: The reference is not inside of a registered region.
        """
        descriptor, start = self._locate(ref, user)
        view = memoryview(buffer_pool.lease(ref.byte_size))[: ref.byte_size]
        filled = 0
        while filled < len(view):
            got = os.preadv(descriptor.number, [view[filled:]], start + filled)
            if got == 0:
                raise _shrunk(ref)
            filled += got
        buffer_pool.count_copy(filled)
        return view

    def write(
        self, ref: SharedMemoryRef, data: bytes | memoryview, user: MemoryUser | None = None
    ) -> None:
        """Write bytes from the beginning of a reference.

        Args:
            user: The user whose rights count; None for a caller who has the server's rights.

        Raises:
            InvalidRequest: The reference is not inside of a registered region.
        """
        descriptor, position = self._locate(ref, user)
        view = memoryview(data).cast("B")
        buffer_pool.count_copy(len(view))
        while view:
            written = os.pwrite(descriptor.number, view, position)
            position += written
            view = view[written:]


def _shrunk(ref: SharedMemoryRef) -> InvalidRequest:
    return InvalidRequest(
        f"the memory of shared memory region {quote(ref.region)} has shrunk since it was "
        f"registered and no longer holds {ref.byte_size} bytes at offset {ref.offset}"
    )
