"""Checks the files of external data that an ONNX file names, before ONNX Runtime opens them.

An ONNX file may keep its large tensors in other files. Each must be a regular file inside the model's folder, reached
without symbolic links, and without a second hard link. Otherwise a model could make the server read any file that the
server's user can read. The names are found by reading the protobuf of the file; the tensors are skipped.
"""

import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ksrv.loaders.loaded import ModelLoadError

# For each kind of message in onnx.proto, the numbers of the fields that lead to tensors, with the kinds of their
# messages. An "entry" is a StringStringEntryProto of a tensor's `external_data`.
_BELOW = {
    "model": {7: "graph", 25: "function", 20: "training"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_MAX_DEPTH = 64
"""The most levels of nested messages."""


def check_external_data(path: Path, root: Path) -> None:
    """Refuse an ONNX file that names external data which ksrv does not read.

    Args:
        root: The folder in which the data must be. The names in the file are relative to the file's folder.

    Raises:
        ModelLoadError: The file is not protobuf, or names data outside the folder, a link, or a file
            with several names.
    """
    if path.stat().st_size == 0:
        raise ModelLoadError(f"{path} is empty")
    with path.open("rb") as file:
        # Not closed here: after an error, views of the mmap live in the traceback, and close() would raise.
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        names = set(_locations(data, "model", 0))
    except (ValueError, IndexError):
        raise ModelLoadError(f"{path} is not an ONNX file; copy it or export it again") from None
    for name in sorted(names):
        _check_location(path, root, name)


def _check_location(path: Path, root: Path, name: str) -> None:
    relative = PurePosixPath(name)
    shown = f"{path} keeps data in {name[:128]!r}"
    if relative.is_absolute() or ".." in relative.parts or "\0" in name or not relative.parts:
        raise ModelLoadError(
            f"{shown}, which leaves the model's folder; put the data beside the file, and save the model again"
        )
    if not path.parent.resolve().is_relative_to(root.resolve()):
        raise ModelLoadError(f"{shown}, and the file itself lies outside {root}")
    at = path.parent
    for part in relative.parts:
        at = at / part
        try:
            state = os.lstat(at)
        except OSError as error:
            raise ModelLoadError(
                f"{shown}, which cannot be read ({error.strerror}); copy that file beside the model"
            ) from None
        if stat.S_ISLNK(state.st_mode):
            raise ModelLoadError(f"{shown}, which is reached through a link; copy the file itself")
    if not stat.S_ISREG(state.st_mode) or state.st_nlink != 1:
        raise ModelLoadError(
            f"{shown}, which is not a plain file with one name; copy it, without hard links"
        )


def _locations(data: memoryview, kind: str, depth: int) -> Iterator[str]:
    """Yield the names of the external files in a message of a kind in `_BELOW`."""
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    below = _BELOW[kind]
    for number, value in _fields(data):
        if number not in below or value is None:
            continue
        if below[number] == "entry":
            entry = {key: text for key, text in _fields(value) if text is not None}
            if bytes(entry.get(1, b"")) == b"location":
                yield bytes(entry.get(2, b"")).decode("utf-8")
        else:
            yield from _locations(value, below[number], depth + 1)


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """Yield number and value of each field of a message; the value is None unless it is length-delimited."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 2:
            length, at = _varint(data, at)
            if length > end - at:
                raise ValueError("a field reaches beyond its message")
            yield key >> 3, data[at : at + length]
            at += length
        elif wire == 0:
            _, at = _varint(data, at)
            yield key >> 3, None
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
            if at > end:
                raise ValueError("a field reaches beyond its message")
            yield key >> 3, None
        else:
            raise ValueError("a wire type that ONNX does not use")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return a variable-length integer, and the offset after it."""
    result = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
    raise ValueError("a number of more than ten bytes")
