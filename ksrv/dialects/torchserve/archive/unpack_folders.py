"""The folders that archives are unpacked into: each process has separate folders, and unused folders are removed.

A handler may change files in its model's folder. Neither a later server nor another server on the machine
must find that, so a process never takes the folder of another. It holds a lock on each of its folders, which
the system releases when the process ends, however it ends. The next process that unpacks an archive
removes the folders that nobody has locked.
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
"""A folder without a lock is left alone so long: its process may be about to lock it."""

_NAME = re.compile(r"[0-9a-f]{64}-.*")


@dataclass(frozen=True, slots=True)
class _Held:
    """The folder of an archive, and the descriptor whose lock keeps it."""

    digest: str
    folder: Path
    descriptor: int


_held: dict[Path, _Held] = {}


def held_folder(archive: Path, digest: str) -> Path | None:
    """Return the folder into which this process has unpacked an archive, or None.

    Args:
        digest: The SHA-256 of the archive as it is now.
    """
    held = _held.get(archive)
    if held is None or held.digest != digest or not held.folder.is_dir():
        return None
    return held.folder


def new_folder(home: Path, digest: str) -> Path:
    """Make an empty folder for an archive, after removing the folders of processes that have ended."""
    home.mkdir(parents=True, exist_ok=True)
    remove_abandoned(home)
    return Path(tempfile.mkdtemp(prefix=f"{digest}-", dir=home))


def hold(archive: Path, digest: str, folder: Path) -> None:
    """Keep the folder of an archive while this process lives."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    # The lock on the folder of an archive that has changed stays: its model may still be served.
    _held[archive] = _Held(digest, folder, descriptor)


def remove_abandoned(home: Path) -> None:
    """Remove the folders of processes that have ended."""
    newest = time.time() - YOUNG_SECONDS
    for place in list(home.iterdir()):
        try:
            if _NAME.fullmatch(place.name) and place.lstat().st_mtime < newest:
                _remove(place)
        except OSError as error:  # another process may remove it as well
            log.info("the folder of unpacked archives %s stays: %s", place, error)


def _remove(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with suppress(BlockingIOError):  # a process uses it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(place)
    finally:
        os.close(descriptor)
