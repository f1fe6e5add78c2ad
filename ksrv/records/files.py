"""Writes the records of a model to files that are rotated by their size; the oldest files are removed.

Several workers write into the same folder, each into another file. A worker holds a lock (flock) on the file that it
writes, so that no other worker removes or continues this file. When a worker dies, the kernel releases the lock.
"""

import fcntl
import os
import stat
import time
from pathlib import Path

from ksrv.records.reading import SUFFIX

_WRITING = os.O_RDWR | os.O_APPEND  # readable, because `_continue_newest` looks at the last byte


class RotatedFiles:
    """Appends lines to files in a folder.

    Args:
        folder: The folder, which is created when the first line is written.
        size: Bytes after which a file is full.
        count: Files that are kept, besides the files that other workers write.
    """

    def __init__(self, folder: Path, size: int, count: int) -> None:
        self._folder = folder
        self._size = size
        self._count = count
        self._file = -1  # the descriptor of the open file, or -1
        self._number = 0  # of the files that this object has created

    def write(self, line: bytes) -> None:
        """Append a line, whole or not at all.

        Raises:
            OSError: The disk is full, or the folder cannot be written to.
        """
        if self._file >= 0 and not self._has_room(len(line)):
            self.close()
        if self._file < 0:
            self._open(len(line))
        # Not counted by this object, because another program may truncate the file.
        before = os.fstat(self._file).st_size
        view = memoryview(line)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            os.ftruncate(self._file, before)  # half a line would spoil the next line
            raise

    def _has_room(self, needed: int) -> bool:
        """Tell whether the open file has room for the next line, and has not been deleted."""
        state = os.fstat(self._file)
        fits = state.st_size == 0 or state.st_size + needed <= self._size
        return fits and state.st_nlink > 0

    def close(self) -> None:
        """Close the file; the next line begins another file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _open(self, needed: int) -> None:
        """Open a file that has room for the next line."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._continue_newest(needed):
            return
        self._number += 1
        begun = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        # The names sort by time, even within a second.
        name = f"{begun}-{os.getpid()}-{self._number:08}{SUFFIX}"
        # Only the server's user may read the records, because they contain the data of clients.
        self._file = os.open(
            self._folder / name, _WRITING | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._remove_oldest()

    def _continue_newest(self, needed: int) -> bool:
        """Open and lock the newest file. Return False if it has no room, another worker writes it, or none exists."""
        newest = max(self._folder.glob(f"*{SUFFIX}"), key=lambda path: path.name, default=None)
        if newest is None:
            return False
        file = _locked(newest, _WRITING, fcntl.LOCK_EX)
        if file is None:
            return False
        size = os.fstat(file).st_size
        whole = size == 0 or os.pread(file, 1, size - 1) == b"\n"
        if size + needed > self._size or not whole:  # a worker was killed within a line
            os.close(file)
            return False
        self._file = file
        return True

    def _remove_oldest(self) -> None:
        """Remove the oldest files that no worker writes, so that `count` are left, including the new file."""
        idle = [path for path in self._folder.glob(f"*{SUFFIX}") if not _is_written(path)]
        idle.sort(key=lambda path: path.name)
        for path in idle[: max(0, len(idle) - (self._count - 1))]:
            path.unlink(missing_ok=True)


def _is_written(path: Path) -> bool:
    file = _locked(path, os.O_RDONLY, fcntl.LOCK_SH)
    if file is not None:
        os.close(file)
    return file is None


def _locked(path: Path, access: int, lock: int) -> int | None:
    """Open and lock a file. Return None if another worker writes it, or if it was removed or is not a regular file."""
    try:
        # A symbolic link could lead to any file, and opening a pipe would wait for its other end.
        file = os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        return None
    try:
        fcntl.flock(file, lock | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file
