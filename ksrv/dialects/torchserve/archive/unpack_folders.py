"""The folders that archives are unpacked into: each process has separate folders, and unused folders are removed.

A handler may change files in its model's folder. No other process may find such changes, so a process never uses the
folder of another process. It holds a shared flock on each of its folders, which the kernel releases when the process
ends, however it ends. The next process that unpacks an archive removes the folders that nobody has locked.
"""

import fcntl
import logging
import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("ksrv.repository")

YOUNG_SECONDS = 60
"""Younger folders without a lock are kept, because a process may have made one and not locked it yet."""

_NAME = re.compile(r"[0-9a-f]{64}-.*")


@dataclass(frozen=True, slots=True)
class LockedFolder:
    """The folder of an archive, and the descriptor whose lock keeps it."""

    digest: str
    path: Path
    descriptor: int

    def remove(self) -> None:
        """Remove the folder, because the archive could not be unpacked."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.descriptor)


_held: dict[Path, LockedFolder] = {}  # by the path of the archive


def held_folder(archive: Path, digest: str) -> Path | None:
    """Return the folder into which this process has unpacked an archive, or None.

    Args:
        digest: The SHA-256 of the archive as it is now.
    """
    held = _held.get(archive)
    if held is None or held.digest != digest or not held.path.is_dir():
        return None
    return held.path


def new_folder(home: Path, digest: str) -> LockedFolder:
    """Make an empty folder for an archive, after removing the folders of processes that have ended."""
    home.mkdir(parents=True, exist_ok=True)
    remove_abandoned(home)
    path = Path(tempfile.mkdtemp(prefix=f"{digest}-", dir=home))
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return LockedFolder(digest, path, descriptor)


def hold(archive: Path, folder: LockedFolder) -> None:
    """Keep the folder of an archive while this process lives."""
    # If the archive has changed, the lock on its earlier folder stays, because the old model may still be served.
    _held[archive] = folder


def remove_abandoned(home: Path) -> None:
    """Remove the folders of processes that have ended."""
    oldest_kept = time.time() - YOUNG_SECONDS
    for folder in list(home.iterdir()):
        try:
            if _NAME.fullmatch(folder.name) and folder.lstat().st_mtime < oldest_kept:
                _remove(folder)
        except OSError as error:  # another process may remove it as well
            log.info("the folder of unpacked archives %s stays: %s", folder, error)


def _remove(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with suppress(BlockingIOError):  # a process has locked it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    finally:
        os.close(descriptor)
