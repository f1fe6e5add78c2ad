"""Makes arrays from received bytes, and bytes from arrays, for REST and gRPC; also the errors of datatypes and shapes.

The parsers of both protocols use these functions, so that the same mistake gets the same text.
"""

from collections.abc import Sequence

import numpy as np

from ksrv._native.memory.buffer_pool import block_under, count_copy
from ksrv._native.tensor import bytes_tensor
from ksrv._native.tensor.datatype import NAMES, ShapeError, sizes
from ksrv.errors import InvalidRequest, quote
from ksrv.limits import Limits
from ksrv.model.datatypes import DTYPES, NAME_BY_DTYPE
from ksrv.request import Array, Tensor

_OTHER_NAMES = {dtype.name: name for dtype, name in NAME_BY_DTYPE.items()} | {
    "float": "FP32",
    "int": "INT64",
    "str": "BYTES",
    "string": "BYTES",
}
"""The datatype for names of Python and numpy, for hints in errors."""


def no_datatype(subject: str, given: str) -> str:
    """Return the error text for a name that is not a datatype."""
    upper = given.upper()
    meant = upper if upper in NAMES else _OTHER_NAMES.get(given.lower(), "")
    expected = meant or f"one of {', '.join(NAMES)}"
    return f"{subject}: {quote(given)} is not a datatype; expected {expected}"


def subject(name: str, index: int) -> str:
    """Return how an error names an input."""
    return f"input {quote(name)} (index {index})"


def measure(
    name: str, index: int, datatype: str, shape: Sequence[int], limits: Limits
) -> tuple[int, int]:
    """Return how many elements and bytes an input of this datatype and shape has.

    Args:
        name: The input's name, for the error's text.
        datatype: The client's datatype; for BYTES each element counts as one byte.

    Raises:
        InvalidRequest: The datatype is unknown, or the shape has no size within the limits.
    """
    if datatype not in NAMES:
        raise InvalidRequest(no_datatype(subject(name, index), datatype))
    try:
        return sizes(datatype, shape, limits.body)
    except ShapeError as error:
        raise InvalidRequest(f"{subject(name, index)}: {error}") from None


def check_bool(name: str, index: int, values: Array) -> None:
    """Refuse a BOOL tensor with a byte that is neither 0 nor 1.

    Raises:
        InvalidRequest: The tensor has such a byte. The text names the first.
    """
    patterns = values.view(np.uint8).reshape(-1)
    if patterns.size and patterns.max() > 1:
        at = int(np.argmax(patterns > 1))
        raise InvalidRequest(
            f"{subject(name, index)}: byte {at} is {patterns[at]}; a BOOL byte must be 0 or 1"
        )


def view(
    buffer: bytes | bytearray | memoryview,
    offset: int,
    datatype: str,
    shape: Sequence[int],
    elements: int,
) -> Array:
    """Return the tensor at `offset` of a received buffer.

    The array is a view of the buffer if its address is a multiple of the item size; otherwise the bytes are copied, and
    the copy is counted. A view is writable if the buffer is.

    Args:
        buffer: The received bytes.
        offset: The offset of the tensor's first byte.
        datatype: Any datatype but BYTES.
    """
    dtype = DTYPES[datatype]
    if elements == 0:
        return np.empty(shape, dtype)
    # With the block as its base, the array can be recognised as memory of the buffer pool.
    owner, begin = block_under(buffer)
    found: Array = np.ndarray(shape, dtype, owner, begin + offset)
    if not found.flags.aligned:
        count_copy(found.nbytes)
        found = found.copy()
    return found


def contiguous(array: Array) -> Array:
    """Return the array flat, C-ordered and little-endian. If that needs a copy, the copy is counted."""
    if not (array.flags.c_contiguous and array.dtype.isnative):
        count_copy(array.nbytes)
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return array.reshape(-1)


def tensor_bytes(tensor: Tensor) -> bytes | memoryview:
    """Return the bytes of a tensor in the binary data format."""
    if isinstance(tensor.data, list):
        return bytes_tensor.encode(tensor.data)
    flat = contiguous(tensor.data)
    return flat.view(np.uint8).data if flat.size else b""
