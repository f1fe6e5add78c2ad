"""Keeps the cache of unpacked archives from growing for ever.

A process that uses an unpacked archive holds a shared lock on the archive's folder until the process
ends; the folder's time is that of its last opening. A folder that no process has locked, or opened for
`KEPT_DAYS`, is removed when another archive is unpacked. It would only have to be unpacked again.
"""

import fcntl
import logging
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("ksrv.repository")

KEPT_DAYS = 30
ABANDONED_DAYS = 1
PARTIAL = ".unpacking-"
REMOVED = ".removed-"

_DAY_SECONDS = 24 * 3600
_DIGEST = re.compile(r"[0-9a-f]{64}")
_held: dict[Path, int] = {}


def lock_folder(place: Path) -> bool:
    """Keep a folder of the cache from being removed while this process lives.

    Returns:
        False when it is not there, or was removed this moment.
    """
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(place)
        same = os.path.samestat(os.fstat(descriptor), place.stat())
    except FileNotFoundError:
        same = False
    if not same:
        os.close(descriptor)
        return False
    earlier = _held.pop(place, None)
    if earlier is not None:
        os.close(earlier)
    _held[place] = descriptor
    return True


def evict(home: Path) -> None:
    """Remove unused folders: old archives, and folders that killed processes left half unpacked."""
    now = time.time()
    for place in list(home.iterdir()):
        if _DIGEST.fullmatch(place.name):
            days = KEPT_DAYS
        elif place.name.startswith((PARTIAL, REMOVED)):
            days = ABANDONED_DAYS
        else:
            continue
        try:
            if now - place.lstat().st_mtime > days * _DAY_SECONDS:
                _remove(place)
        except OSError as error:  # another process may evict as well
            log.info("%s is left in the cache of archives: %s", place.name, error)


def _remove(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with suppress(BlockingIOError):  # a process uses it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            aside = place.with_name(f"{REMOVED}{place.name.removeprefix(REMOVED)}")
            place.rename(aside)  # no process finds it half removed
            shutil.rmtree(aside)
            log.info("the unpacked archive %s was not used any more and is removed", place.name)
    finally:
        os.close(descriptor)
