"""Finds files of models that other users of the machine can change.

The server runs the code in handlers and models. So their folders and files should belong to root or to the server's
user, and other users should not be able to write to them.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

MOST_FILES = 10_000
"""The most files of a model that are checked."""


def insecure_paths(path: Path) -> Iterator[str]:
    """Yield the paths of a model that another user could change.

    Args:
        path: The folder, which is checked with all files in it, or the file.

    Yields:
        One sentence for each insecure file or folder.
    """
    for count, at in enumerate(_below(path)):
        if count == MOST_FILES:
            return
        try:
            state = at.stat()
        except OSError:
            continue  # removed meanwhile, or a dangling link: the load will report it
        if state.st_uid not in (0, os.geteuid()):
            yield f"{at} belongs to user {state.st_uid}, who is neither root nor the server's user"
        elif state.st_mode & stat.S_IWOTH and not state.st_mode & stat.S_ISVTX:
            yield f"{at} can be written by every user of this machine"


def _below(path: Path) -> Iterator[Path]:
    yield path
    if path.is_dir():
        for folder, _, files in os.walk(path):
            if Path(folder) != path:
                yield Path(folder)
            yield from (Path(folder, name) for name in files)
