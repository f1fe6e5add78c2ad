"""Checks where an ONNX file keeps its external data before ONNX Runtime opens any of it.

A model may name files that hold its large tensors. Each of them must be a plain file inside the
model's folder, reached without links, and with one name only: otherwise a model could make the
server read whatever it may read. The file's protobuf is walked just far enough to find the names.
"""

import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ksrv.loaders.loaded import ModelLoadError

# Field numbers of onnx.proto that lead to tensors, by kind of message.
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


def check_external_data(path: Path, root: Path) -> None:
    """Refuse an ONNX file whose external data is in a forbidden place.

    Args:
        root: The folder that its data must be in; names are relative to the file's folder.

    Raises:
        ModelLoadError: The file is no protobuf, or names data outside the folder, a link, or a file
            with several names.
    """
    if path.stat().st_size == 0:
        raise ModelLoadError(f"{path} is empty")
    with path.open("rb") as file:
        # Not closed by hand: views of it live in the frames of an error until that is handled.
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        names = set(_locations(data, "model", 0))
    except (ValueError, IndexError):
        raise ModelLoadError(f"{path} is no ONNX file; copy it or export it again") from None
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
            f"{shown}, which is no plain file with one name; copy it, without hard links"
        )


def _locations(data: memoryview, kind: str, depth: int) -> Iterator[str]:
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
    """The fields of a message; the value of a field without a length is None."""
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
    result = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
    raise ValueError("a number of more than ten bytes")
