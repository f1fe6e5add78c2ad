# Safe without the GIL: the module holds only constants.
# cython: freethreading_compatible = True
"""The datatype table and the checked size computation, for Python."""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from native.tensor.datatype cimport (
    DATATYPES, DT_COUNT, DT_INVALID, Datatype, MAX_DIMENSION as DIMENSION_LIMIT,
    MAX_RANK as RANK_LIMIT, checked_nbytes, datatype_of, item_size_of,
)

import numpy

if not cython.compiled:
    from collections.abc import Sequence
    from typing import Any

MAX_RANK: int = RANK_LIMIT
MAX_DIMENSION: int = DIMENSION_LIMIT

NAMES: tuple[str, ...] = tuple([
    (<bytes>DATATYPES[i].name).decode() for i in range(<int>DT_COUNT)
])

DTYPES: tuple[numpy.dtype[Any] | None, ...] = tuple([
    numpy.dtype((<bytes>DATATYPES[i].dtype).decode()) if DATATYPES[i].dtype[0] else None
    for i in range(<int>DT_COUNT)
])
"""The numpy dtypes of NAMES: BF16 as its bit patterns (uint16), BYTES as None."""

TENSOR_NAMES: dict[str, str] = {
    name: (<bytes>DATATYPES[i].tensor_name).decode()
    for i, name in enumerate(NAMES) if DTYPES[i] is not None
}
"""The names of the datatypes in torch and ONNX, without BYTES."""

CONTENTS: dict[str, int] = {
    name: DATATYPES[i].contents for i, name in enumerate(NAMES) if DATATYPES[i].contents
}
"""The fields of InferTensorContents. FP16 and BF16 have no field, and no JSON form."""


class ShapeError(ValueError):
    """The shape has too many dimensions, an invalid dimension, or a size above the limit."""


def sizes(
    str datatype not None,
    shape: Sequence[int],
    uint64_t limit=<uint64_t>0xFFFFFFFFFFFFFFFF,
) -> tuple[int, int]:
    """Return the number of elements and of bytes of a tensor of this shape.

    Args:
        datatype: A KServe v2 datatype. For BYTES each element counts as one byte.
        shape: At most 32 integers, each from 0 to 2^31 - 1.
        limit: The most bytes that are accepted.

    Returns:
        The elements and the bytes.

    Raises:
        KeyError: Unknown datatype.
        ShapeError: The shape is invalid or exceeds the limits.
    """
    cdef bytes encoded = datatype.encode("utf-8", "surrogatepass")
    cdef Datatype dt = datatype_of(encoded, <size_t>len(encoded))
    cdef int64_t dims[RANK_LIMIT]
    cdef uint64_t elements = 0
    cdef uint64_t nbytes = 0
    cdef size_t rank = 0
    cdef object entry
    if dt == DT_INVALID:
        raise KeyError(datatype)
    shape = tuple(shape)  # the `__len__` of any other sequence may not be the number of its entries
    if len(shape) > RANK_LIMIT:
        raise ShapeError(
            f"the shape has {len(shape)} dimensions, and at most {RANK_LIMIT} are allowed"
        )
    for entry in shape:
        if type(entry) is not int:
            raise ShapeError(f"dimension {rank} is a {type(entry).__name__}, not an integer")
        if entry < 0:
            raise ShapeError(f"dimension {rank} is negative")
        if entry > DIMENSION_LIMIT:
            raise ShapeError(f"dimension {rank} is above {DIMENSION_LIMIT}")
        dims[rank] = entry
        rank += 1
    cdef size_t width = item_size_of(dt)
    cdef bint fits = checked_nbytes(dims, rank, width if width else 1, &elements, &nbytes)
    if not fits or nbytes > limit:
        raise ShapeError(f"the product of the shape exceeds the limit of {limit} bytes")
    return elements, nbytes
