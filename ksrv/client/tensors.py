"""Converts Python values to tensors of the protocol and back.

The bytes of a tensor are little-endian and in row-major order. Each element of BYTES follows its length in four bytes.
numpy has no BF16, so such outputs become float32, which has every value of BF16.
"""

import base64
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ksrv._native.tensor import bytes_tensor
from ksrv.model.datatypes import DTYPES as ALL_DTYPES
from ksrv.model.datatypes import NAME_BY_DTYPE, cast, widen_bfloat16

Array: TypeAlias = NDArray[Any]

Block: TypeAlias = bytes | memoryview

DTYPES = {name: dtype for dtype, name in NAME_BY_DTYPE.items()}
"""numpy's type of each datatype that it has."""


@dataclass(frozen=True)
class Tensor:
    """One input of a request.

    Attributes:
        blocks: The bytes as parts, in order.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    blocks: tuple[Block, ...]

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return sum(len(block) for block in self.blocks)


@dataclass(frozen=True)
class Declared:
    """One input in a model's metadata. -1 in `shape` is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


def declared_inputs(metadata: Mapping[str, Any]) -> dict[str, Declared]:
    """Return the inputs of a model's metadata by name."""
    return {
        entry["name"]: Declared(entry["name"], entry["datatype"], tuple(entry["shape"]))
        for entry in metadata.get("inputs", ())
    }


def encode(name: str, value: Any, declared: Declared | None) -> Tensor:
    """Convert a value to an input of a request.

    Bytes, texts and paths (whose files are read) become BYTES. All other values become numbers in the declared
    datatype, if no value changes by more than rounding. A value with one dimension fewer than declared is taken as one
    row.

    Args:
        value: An array, a number, bytes, a text, a path, or nested lists of these.
        declared: The input in the model's metadata, or None if it is not declared.

    Raises:
        ValueError: The protocol cannot express the value, or the value does not fit the declared datatype.
        OSError: A file cannot be read.
    """
    if _is_bytes(value):
        return _encode_bytes(name, value, declared)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"the input {name!r} is not an array: {error}; give rows of one shape, or one request for each shape"
        ) from error
    if array.dtype.kind in "OSU":
        return _encode_bytes(name, array, declared)
    if declared is not None and array.ndim + 1 == len(declared.shape):
        array = array[np.newaxis]
    if declared is None or declared.datatype == "BYTES":
        datatype, array = _with_datatype(name, array)
    else:
        datatype, array = declared.datatype, _cast(name, array, declared.datatype)
    array = np.ascontiguousarray(array)
    block = array.data.cast("B") if array.size else memoryview(b"")
    return Tensor(name, datatype, array.shape, (block,) if block.nbytes else ())


def _is_bytes(value: Any) -> bool:
    """Return whether a value, or the first element of nested lists, is bytes, text or a path."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, bytes | bytearray | memoryview | str | Path)


def _encode_bytes(name: str, value: Any, declared: Declared | None) -> Tensor:
    """Convert bytes, texts, paths, or nested lists of these to a BYTES input."""
    if isinstance(value, np.ndarray):
        shape, elements = value.shape, value.reshape(-1).tolist()
    else:
        shape, elements = _flatten(name, value)
    if not shape:
        shape = (1,)
    if declared is not None and declared.datatype == "BYTES":
        # A batch of elements fits inputs such as [-1, 1], whose other dimensions can be 1.
        missing = len(declared.shape) - len(shape)
        if missing > 0 and all(size in (1, -1) for size in declared.shape[len(shape) :]):
            shape = (*shape, *[1] * missing)
    blocks: list[Block] = []
    for element in elements:
        content = _element(name, element, declared)
        blocks += [struct.pack("<I", len(content)), content]
    return Tensor(name, "BYTES", tuple(shape), tuple(blocks))


def _flatten(name: str, value: Any) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape and the elements of nested lists."""
    if not isinstance(value, list | tuple):
        return (), [value]
    parts = [_flatten(name, part) for part in value]
    shapes = {shape for shape, _ in parts}
    if len(shapes) > 1:
        raise ValueError(f"the input {name!r} has lists of different lengths")
    elements = [element for _, part in parts for element in part]
    return (len(value), *(shapes.pop() if shapes else ())), elements


def _element(name: str, value: Any, declared: Declared | None) -> bytes:
    """Return the bytes of one element of BYTES."""
    if isinstance(value, Path):
        return value.read_bytes()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        if declared is not None and declared.datatype != "BYTES":
            raise ValueError(
                f"the input {name!r} takes {declared.datatype}, got a text; give numbers, or a "
                f"file as pathlib.Path({value[:40]!r})"
            )
        return value.encode()
    raise ValueError(f"the input {name!r} has an element of type {type(value).__name__}; expected "
                     f"numbers, bytes, texts or paths")  # fmt: skip


def _with_datatype(name: str, array: Array) -> tuple[str, Array]:
    """Return the protocol's datatype of an array, and the array in little-endian order (BF16 as uint16)."""
    if array.dtype.name == "bfloat16":  # of the package ml_dtypes
        return "BF16", array.view(np.uint16)
    dtype = array.dtype.newbyteorder("<")
    if dtype not in NAME_BY_DTYPE:
        raise ValueError(f"the input {name!r} is an array of {array.dtype}, which the protocol "
                         f"has no datatype for")  # fmt: skip
    return NAME_BY_DTYPE[dtype], array.astype(dtype, copy=False)


def _cast(name: str, array: Array, datatype: str) -> Array:
    """Return an array in the declared datatype; raise if that changes values by more than rounding."""
    if datatype not in ALL_DTYPES:
        raise ValueError(f"the input {name!r} has the datatype {datatype}, which is unknown here")
    if not array.size:
        return array.astype(ALL_DTYPES[datatype])
    if array.dtype == bool and datatype != "BOOL":
        array = array.astype(np.int8)  # `cast` takes no BOOL
    if array.dtype == np.uint16:  # `cast` would take them for bit patterns of BF16
        array = array.astype(np.uint32)
    given, array = _with_datatype(name, array)
    try:
        return cast(array, given, datatype)
    except ValueError as error:
        raise ValueError(f"the input {name!r} takes {datatype}: {error}") from error


def decode(datatype: str, shape: Sequence[int], block: memoryview) -> Array:
    """Return the bytes of an output as an array, which may be a read-only view of the bytes.

    Raises:
        ValueError: The bytes do not fit datatype and shape.
    """
    count = math.prod(shape)
    if count < 0:
        raise ValueError(f"the answer has the shape {list(shape)}")
    if datatype == "BYTES":
        return _decode_bytes(shape, count, block)
    if datatype == "BF16":
        return widen_bfloat16(np.frombuffer(block, "<u2", count)).reshape(shape)
    if datatype not in DTYPES:
        raise ValueError(f"the answer has the datatype {datatype}, which is unknown here")
    return np.frombuffer(block, DTYPES[datatype], count).reshape(shape)


def _decode_bytes(shape: Sequence[int], count: int, block: memoryview) -> Array:
    try:
        received = bytes_tensor.read(block, count, None, False, "")
    except bytes_tensor.ElementsError:
        raise ValueError(
            f"the answer's {count} elements do not fill its {len(block)} bytes"
        ) from None
    elements = np.empty(count, object)
    elements[:] = [bytes(element) for element in received]
    return elements.reshape(shape)


def _json_element(value: Any) -> bytes:
    """Return an element of BYTES from its JSON form: a text, or `{"b64": ...}` for bytes that are not UTF-8."""
    if isinstance(value, dict):
        return base64.b64decode(value["b64"], validate=True)
    return str(value).encode()


def from_json(datatype: str, shape: Sequence[int], data: Any, *, is_base64: bool = False) -> Array:
    """Return an output of a JSON answer as an array. null becomes NaN.

    Args:
        data: The values, flat or nested.
        is_base64: Whether the texts of BYTES are in base64.

    Raises:
        ValueError: The values do not fit datatype and shape.
    """
    if not isinstance(data, list):
        raise ValueError(f"the answer's data are {data!r:.40}; expected an array")
    if datatype == "BYTES":
        flat = data
        while flat and isinstance(flat[0], list):
            flat = [element for part in flat for element in part]
        elements = np.empty(len(flat), object)
        if is_base64:
            flat = [{"b64": element} for element in flat]
        elements[:] = [_json_element(element) for element in flat]
        return elements.reshape(shape)
    if datatype != "BF16" and datatype not in DTYPES:
        raise ValueError(f"the answer has the datatype {datatype!r:.40}, which is unknown here")
    dtype = DTYPES.get(datatype, DTYPES["FP32"])
    if dtype.kind == "f":
        return np.array(data, object).reshape(shape).astype(np.float64).astype(dtype)
    return np.array(data, dtype).reshape(shape)
