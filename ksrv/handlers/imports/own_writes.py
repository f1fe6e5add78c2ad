"""Tracks which files of its folder a model's code writes, because such a change is no sign of a new deployment.

Python's audit hook reports each file before it is opened for writing, removed or renamed. A note about it is kept in
this process, and as an empty file in a folder that all processes of the server share. So the note exists before the
file changes. Writes by compiled code, or by a program that the handler starts, are not seen.
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

# By every path of a file: the file's path and the folder of notes.
_watched: dict[str, tuple[str, str]] = {}
_written: set[str] = set()
_lock = threading.Lock()
_listening = False


def watch(paths: Iterable[str], notes: str) -> None:
    """Begin to note writes of these files by this process.

    Args:
        notes: The folder for notes that the processes of the server share; "" for none.
    """
    global _listening
    with _lock:
        for path in paths:
            _watched[path] = _watched[os.path.realpath(path)] = path, notes
        if not _listening:
            sys.addaudithook(_listen)
            _listening = True


def is_own_write(path: str, notes: str) -> bool:
    """Tell whether a model's code, in any process that shares `notes`, has written, removed or renamed a watched file.

    Args:
        notes: See `watch`.
    """
    return path in _written or (bool(notes) and _note(path, notes).exists())


def _note(path: str, notes: str) -> Path:
    """Return the path of the note about a file."""
    return Path(notes, hashlib.blake2b(path.encode(), digest_size=16).hexdigest())


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    """The audit hook. Python calls it for every event of the process, so it must be quick."""
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
    """Note that a file is about to be written, if it is watched."""
    if not isinstance(path, str | bytes):
        return
    try:
        name = os.path.abspath(os.fsdecode(path))
    except (OSError, ValueError):
        return  # no current folder, or an invalid name: opening the file fails as well
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
    """Return the folder for the notes of a server. It is created with the first note.

    Args:
        token: A text that no other server uses.
    """
    return str(Path(tempfile.gettempdir()) / f"ksrv-written-{token}")
