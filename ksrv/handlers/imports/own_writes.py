"""Tracks which files of its folder a model's code writes, because they are no sign of a new deployment.

Python's audit hook reports each file that is opened for writing, removed or renamed before that happens, and a note is
kept: in this process, and in a folder that all processes of the server share. So the note exists before the file
changes. Writes of compiled code, or of a program that the handler starts, are not seen.
"""

import hashlib
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

log = logging.getLogger("ksrv.handlers")

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = frozenset({"os.remove", "os.rename", "os.truncate", "os.utime", "os.link", "os.symlink"})
_SQLITE_FILES = ("", "-wal", "-shm", "-journal")

_watched: dict[
    str, tuple[str, str]
] = {}  # by every path of a file: the file's path and the folder of notes
_written: set[str] = set()
_lock = threading.Lock()
_listening = False


def watch(paths: Iterable[str], notes: str) -> None:
    """Note from now on which of some files this process writes.

    Args:
        notes: The folder that the processes of the server share for this; "" for none.
    """
    global _listening
    with _lock:
        for path in paths:
            _watched[path] = _watched[os.path.realpath(path)] = path, notes
        if not _listening:
            sys.addaudithook(_listen)
            _listening = True


def is_own_write(path: str, notes: str) -> bool:
    """Whether the code of a model has written, removed or renamed a file that was watched.

    Args:
        notes: See `watch`.
    """
    return path in _written or (bool(notes) and _note(path, notes).exists())


def _note(path: str, notes: str) -> Path:
    return Path(notes, hashlib.blake2b(path.encode(), digest_size=16).hexdigest())


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        flags = arguments[2]
        if type(flags) is int and flags & _WRITES:
            _see(arguments[0])
    elif event in _CHANGES:
        for path in arguments[:2]:
            _see(path)
    elif event == "sqlite3.connect":
        database = arguments[0]
        if isinstance(database, str | os.PathLike):
            for ending in _SQLITE_FILES:
                _see(os.fsdecode(database) + ending)


def _see(path: object) -> None:
    if not isinstance(path, str | bytes):
        return
    try:
        name = os.path.abspath(os.fsdecode(path))
    except (
        OSError,
        ValueError,
    ):  # no current folder, or an invalid name: opening the file fails as well
        return
    path, notes = _watched.get(name) or _watched.get(os.path.realpath(name), ("", ""))
    if not path or path in _written:
        return
    _written.add(path)
    if notes:
        try:
            Path(notes).mkdir(mode=0o700, exist_ok=True)
            _note(path, notes).touch()
        except OSError as error:
            log.warning("the note that %s was written cannot be kept: %s", name, error)


def notes_folder(token: str) -> str:
    """Return a folder for notes; it is made with the first note.

    Args:
        token: Distinguishes the server's folder from the folders of other servers.
    """
    return str(Path(tempfile.gettempdir()) / f"ksrv-written-{token}")
