"""Turns the signature of an `MLmodel` into inputs, outputs and parameters of ksrv.

The signature has JSON texts: columns `{"name": "age", "type": "long"}`, or tensors `{"type": "tensor", "tensor-spec":
{"dtype": "float32", "shape": [-1, 4]}}`. A column becomes an input [-1]. Texts, dates and bytes are BYTES; a column of a
composite type (array, object, map, any) is BYTES with one JSON text for each row.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ksrv.model.datatypes import NAME_BY_DTYPE
from ksrv.model.fault import Fault, KeyPath
from ksrv.model.spec import Dimension, TensorSpec, read_dimension

COLUMNS = {
    "boolean": "BOOL",
    "integer": "INT32",
    "long": "INT64",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
    "binary": "BYTES",
    "datetime": "BYTES",
    "array": "BYTES",
    "object": "BYTES",
    "map": "BYTES",
    "any": "BYTES",
}
"""The datatype of each type of a column."""
INPUT, OUTPUT = "input", "predict"
"""The names of an input and an output that the signature does not name."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature; without a signature, all parts are empty.

    Attributes:
        params: The defaults of the parameters of `predict`, by name.
    """

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)


def read_signature(value: object) -> Signature:
    """Return the signature of an `MLmodel`.

    Args:
        value: The value of the key `signature`.

    Raises:
        Fault: The value is not a signature.
    """
    if value is None:
        return Signature()
    if not isinstance(value, dict):
        raise Fault(
            ("signature",), "expected the keys inputs, outputs and params; save the model again"
        )
    params = _entries(value, "params")
    return Signature(
        _tensors(value, "inputs", INPUT),
        _tensors(value, "outputs", OUTPUT),
        {str(entry.get("name")): entry.get("default") for entry in params},
    )


def _entries(signature: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the entries of one part of the signature, which is a JSON text."""
    text = signature.get(key)
    if text is None:
        return []
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        raise Fault(("signature", key), f"is not JSON: {error}; save the model again") from None
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise Fault(("signature", key), "is not a JSON list of objects; save the model again")
    return found


def _tensors(signature: dict[str, Any], key: str, unnamed: str) -> tuple[TensorSpec, ...]:
    """Return the inputs or the outputs.

    Args:
        unnamed: The name of an only entry that has no name; several are numbered.
    """
    entries = _entries(signature, key)
    found: list[TensorSpec] = []
    for index, entry in enumerate(entries):
        path = ("signature", key, index)
        name = str(entry.get("name", unnamed if len(entries) == 1 else f"{unnamed}_{index}"))
        if any(known.name == name for known in found):
            raise Fault(path, f"the name {name!r} is there twice")
        datatype, shape = _form(entry, path)
        optional = entry.get("required") is False or entry.get("optional") is True
        found.append(TensorSpec(name, datatype, shape, optional=optional and key == "inputs"))
    return tuple(found)


def _form(entry: dict[str, Any], path: KeyPath) -> tuple[str, tuple[Dimension, ...]]:
    """Return the datatype and the shape of an entry."""
    kind = entry.get("type")
    if kind != "tensor":
        if kind not in COLUMNS:
            known = ", ".join(("tensor", *COLUMNS))
            raise Fault(path, f"unknown type {kind!r}; known are {known}")
        return COLUMNS[kind], (-1,)
    tensor = entry.get("tensor-spec")
    tensor = tensor if isinstance(tensor, dict) else {}
    try:
        dtype = np.dtype(tensor.get("dtype") or "")
        shape = tuple(read_dimension(size) for size in tensor["shape"])
    except (KeyError, TypeError) as error:
        raise Fault(path, f"is not a tensor: {error}; save the model again") from None
    datatype = NAME_BY_DTYPE.get(dtype, "BYTES" if dtype.kind in "OSU" else "")
    sizes = [size for size in shape if size is not None]
    if not datatype or len(sizes) < len(shape):
        raise Fault(path, f"KServe v2 has no tensors of {dtype} {tensor['shape']}")
    return datatype, tuple(sizes)
