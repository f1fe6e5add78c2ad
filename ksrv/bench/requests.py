"""The requests of a load: the contents of files, or values generated from the model's metadata."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ksrv.client.operations import Operation
from ksrv.client.tensors import DTYPES, Declared, Tensor, declared_inputs, encode

FREE_SIZE = 8
"""The size of generated values in a dimension of any size, except for the first."""


def operations_of(
    metadata: Mapping[str, Any],
    version: str,
    files: Sequence[str],
    rows: int,
    shapes: Mapping[str, tuple[int, ...]],
) -> list[Operation]:
    """Return the requests, which are sent in turn.

    Args:
        version: The model's version, or "" for the default.
        files: NAME=FILE is the value of an input in every request. Each FILE without a name is a separate request: it
            is the value of the only input that has no NAME=FILE.
        rows: Rows of every request with generated values. The value of a file is repeated as often; each row of a .npy
            file by itself.
        shapes: Shapes of inputs by name, for generated values.

    Raises:
        ValueError: A file or a shape is for an unknown input, or is missing for an input that needs it.
        OSError: A file cannot be read.
    """
    declared = declared_inputs(metadata)
    name = str(metadata["name"])
    unknown = [key for key in shapes if declared and key not in declared]
    if unknown:
        raise ValueError(f"the model {name} has no input {unknown[0]!r}; it has {_names(declared)}")
    named: dict[str, Tensor] = {}
    unnamed: list[str] = []
    for text in files:
        key, equals, path = text.partition("=")
        # The name of a file may itself contain "=".
        if equals and (key in declared or not Path(text).is_file()):
            named[key] = _of_file(key, Path(path), rows, declared.get(key))
        else:
            unnamed.append(text)
    unset = [entry for key, entry in declared.items() if key not in named]
    if unnamed and len(unset) != 1:
        raise ValueError(f"{unnamed[0]}: expected NAME=FILE, for the inputs are {_names(declared)}")
    if not declared and not named:
        raise ValueError(
            f"the model {name} declares no inputs; give each as NAME=FILE, such as image=cat.jpg"
        )
    if unnamed:
        only = unset[0]
        choices = [_of_file(only.name, Path(path), rows, only) for path in unnamed]
    else:
        named |= {entry.name: _generated(entry, rows, shapes.get(entry.name)) for entry in unset}
        choices = []
    fixed = tuple(named.values())
    operation = Operation("ModelInfer", name, version, fixed)
    if not choices:
        return [_with_bytes(operation)]
    return [_with_bytes(replace(operation, inputs=(*fixed, choice))) for choice in choices]


def _names(declared: Mapping[str, Declared]) -> str:
    return ", ".join(declared) or "not declared"


def _of_file(name: str, path: Path, rows: int, declared: Declared | None) -> Tensor:
    """Return the value of an input: the array of a .npy file, or the bytes of any other file, for each row."""
    if path.suffix == ".npy":
        array = np.load(path, allow_pickle=False)
        return encode(name, np.repeat(array, rows, axis=0) if rows > 1 else array, declared)
    return encode(name, [path] * rows, declared)


def _generated(declared: Declared, rows: int, shape: tuple[int, ...] | None) -> Tensor:
    """Return random values for an input, in the given shape or else in the declared shape."""
    if shape is None:
        sizes = [size if size >= 0 else FREE_SIZE for size in declared.shape]
        if declared.shape and declared.shape[0] < 0:
            sizes[0] = rows
        shape = tuple(sizes)
    name = declared.name
    if declared.datatype == "BYTES":
        return encode(name, np.full(shape, "a text of some words", object), declared)
    random = np.random.default_rng(0)
    dtype = np.dtype(DTYPES.get(declared.datatype, "<f4"))
    if dtype.kind == "f":
        return encode(name, random.random(shape, np.float32).astype(dtype), declared)
    # 0 and 1 are valid as booleans and as most indexes.
    return encode(name, random.integers(0, 2, shape).astype(dtype), declared)


def _with_bytes(operation: Operation) -> Operation:
    """Return the operation with one block of bytes for each input, because memoryviews cannot be pickled."""
    joined = tuple(
        replace(tensor, blocks=(b"".join(tensor.blocks),)) for tensor in operation.inputs
    )
    return replace(operation, inputs=joined)


def rows_of(operation: Operation) -> int:
    """Return the rows of a request: the first dimension of its first input."""
    shape = operation.inputs[0].shape
    return shape[0] if shape else 1
