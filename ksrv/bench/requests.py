"""The requests that a load consists of: files as they are, or values made from the metadata."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ksrv.client.operations import Operation
from ksrv.client.tensors import DTYPES, Declared, Tensor, declared_inputs, encode

FREE_SIZE = 8
"""The size of a dimension, other than the first, that may have any size."""


def operations_of(
    metadata: Mapping[str, Any],
    version: str,
    files: Sequence[str],
    rows: int,
    shapes: Mapping[str, tuple[int, ...]],
) -> list[Operation]:
    """Return the requests, which are sent in turn.

    Args:
        version: Its version, or "" for the default.
        files: FILE or NAME=FILE: with a name the value of that input, else each file a separate request
            for the model's only input.
        rows: Rows of every request; if values come from files, they are repeated.
        shapes: Shapes of inputs by name, for values that are made up.

    Raises:
        ValueError: A file or a shape is for an unknown input, or is missing for an input that needs it.
        OSError: A file cannot be read.
    """
    declared = declared_inputs(metadata)
    name = str(metadata["name"])
    unknown = [one for one in shapes if declared and one not in declared]
    if unknown:
        raise ValueError(f"the model {name} has no input {unknown[0]!r}; it has {_names(declared)}")
    named: dict[str, Tensor] = {}
    alone: list[str] = []
    for text in files:
        key, equals, path = text.partition("=")
        if equals and (key in declared or not Path(text).is_file()):
            named[key] = _of_file(key, Path(path), rows, declared.get(key))
        else:
            alone.append(text)
    free = [one for key, one in declared.items() if key not in named]
    if alone and len(free) != 1:
        raise ValueError(f"{alone[0]}: expected NAME=FILE, for the inputs are {_names(declared)}")
    if not declared and not named:
        raise ValueError(
            f"the model {name} declares no inputs; give each as NAME=FILE, such as image=cat.jpg"
        )
    if alone:
        only = free[0]
        choices = [_of_file(only.name, Path(path), rows, only) for path in alone]
    else:
        named |= {one.name: _made(one, rows, shapes.get(one.name)) for one in free}
        choices = []
    fixed = tuple(named.values())
    operation = Operation("ModelInfer", name, version, fixed)
    if not choices:
        return [_with_bytes(operation)]
    return [_with_bytes(replace(operation, inputs=(*fixed, one))) for one in choices]


def _names(declared: Mapping[str, Declared]) -> str:
    return ", ".join(declared) or "not declared"


def _of_file(name: str, path: Path, rows: int, declared: Declared | None) -> Tensor:
    if path.suffix == ".npy":
        array = np.load(path, allow_pickle=False)
        return encode(name, np.repeat(array, rows, axis=0) if rows > 1 else array, declared)
    return encode(name, [path] * rows, declared)


def _made(one: Declared, rows: int, shape: tuple[int, ...] | None) -> Tensor:
    """Return random values in an input's shape."""
    if shape is None:
        sizes = [size if size >= 0 else FREE_SIZE for size in one.shape]
        if one.shape and one.shape[0] < 0:
            sizes[0] = rows
        shape = tuple(sizes)
    if one.datatype == "BYTES":
        return encode(one.name, np.full(shape, "a text of some words", object), one)
    random = np.random.default_rng(0)
    dtype = np.dtype(DTYPES.get(one.datatype, "<f4"))
    if dtype.kind == "f":
        return encode(one.name, random.random(shape, np.float32).astype(dtype), one)
    return encode(one.name, random.integers(0, 2, shape).astype(dtype), one)


def _with_bytes(operation: Operation) -> Operation:
    """Return the operation with one block of bytes for each input, which another process can be given."""
    joined = tuple(replace(one, blocks=(b"".join(one.blocks),)) for one in operation.inputs)
    return replace(operation, inputs=joined)


def rows_of(operation: Operation) -> int:
    """Return the rows of a request: the first dimension of its first input."""
    shape = operation.inputs[0].shape
    return shape[0] if shape else 1
