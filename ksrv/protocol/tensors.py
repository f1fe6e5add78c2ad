"""From a declared datatype and shape and received bytes to an array, and the errors on that way.

Both front ends measure and view tensors here, so that the same mistake gets the same sentence
whichever protocol carried it.
"""

from collections.abc import Sequence

import numpy as np

from ksrv._native.arena import count_copy
from ksrv._native.datatype import NAMES, ShapeError, dtype_string, is_datatype, sizes
from ksrv.errors import InvalidRequest, quote
from ksrv.limits import Limits
from ksrv.request import Array

DTYPES = {name: np.dtype(dtype_string(name)) for name in NAMES if name != "BYTES"}


def measure(name: str, datatype: str, shape: Sequence[int], limits: Limits) -> tuple[int, int]:
    """Return how many elements and bytes an input of this datatype and shape has.

    Args:
        name: The input's name, for the error's text.
        datatype: What the client says; for BYTES each element counts as one byte.
        shape: The dimensions as received.
        limits: The body limit bounds the product.

    Raises:
        InvalidRequest: There is no such datatype, or the shape has no size within the limits.
    """
    if not is_datatype(datatype):
        raise InvalidRequest(
            f"input {quote(name)} has the unknown datatype {quote(datatype)}; "
            f"expected one of {', '.join(NAMES)}"
        )
    try:
        return sizes(datatype, shape, limits.body)
    except ShapeError as error:
        raise InvalidRequest(f"input {quote(name)}: {error}") from error


def byte_size_mismatch(name: str, model: str, expected: int, got: int) -> InvalidRequest:
    """Return the error for a tensor whose bytes are more or fewer than its shape says."""
    return InvalidRequest(
        f"input byte size mismatch for input {quote(name)} for model {quote(model)}. "
        f"Expected {expected}, got {got}"
    )


def count_mismatch(name: str, shape: Sequence[int], expected: int, got: int) -> InvalidRequest:
    """Return the error for a tensor whose values are more or fewer than its shape says."""
    return InvalidRequest(
        f"input {quote(name)} has {got} values, but its shape {list(shape)} has {expected} elements"
    )


def view(
    buffer: bytes | bytearray | memoryview,
    offset: int,
    datatype: str,
    shape: Sequence[int],
    elements: int,
) -> Array:
    """Return the tensor that lies at `offset` of a received buffer.

    The array refers to the buffer itself where its address is a multiple of the item size;
    otherwise the bytes are copied, and counted. It is writable as the buffer is.

    Args:
        buffer: The received bytes.
        offset: Where the tensor begins.
        datatype: Any datatype but BYTES.
        shape: The tensor's dimensions.
        elements: Their product.
    """
    dtype = DTYPES[datatype]
    if elements == 0:
        return np.empty(shape, dtype)
    found: Array = np.ndarray(shape, dtype, buffer, offset)
    if not found.flags.aligned:
        count_copy(found.nbytes)
        found = found.copy()
    return found
