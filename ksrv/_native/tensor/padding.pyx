# Needs no locks: objects do not change after construction.
"""Rows of different lengths: which rows share a batch, and how they are padded."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.vector cimport vector

cimport cython
cimport numpy as cnp

from ksrv._native.tensor.datatype cimport RANK_LIMIT

if not cython.compiled:
    from typing import Any

    import numpy.typing as npt

cnp.import_array()


LENGTH_KEYS: int = FIRST_LENGTH_KEY
"""The batch key of a request whose rows have one length is LENGTH_KEYS + 4 * bucket."""


cdef struct Part:
    const unsigned char *source  # NULL for a mask that ksrv generates
    int64_t shape[RANK_LIMIT]
    unsigned char *target
    int64_t target_shape[RANK_LIMIT]


@cython.final
cdef class LengthBuckets:
    """Which row lengths share a batch, and how far they are padded.

    Args:
        multiple: Padded lengths are multiples of this number.
        waste: The largest share of padding in a row, in addition to rounding up to `multiple`.
        most: The longest row.
    """

    def __cinit__(self, uint32_t multiple, double waste, uint32_t most):
        self.native = new CLengthBuckets(multiple, waste, most)

    def __dealloc__(self):
        del self.native

    def padded(self, uint64_t length) -> int:
        """Return the padded row length of a batch whose longest row has this length."""
        return self.native.padded(length)

    def bucket(self, uint64_t length) -> int:
        """Return the bucket of a length. Rows of the same bucket share batches."""
        return self.native.bucket(length)


def join_padded(
    list parts not None: list[npt.NDArray[Any] | tuple[int, int]],
    cnp.ndarray out not None: npt.NDArray[Any],
    bytes padding not None,
    bytes value not None,
) -> None:
    """Copy the rows of requests into the rows of a batch, and fill the rest with padding.

    Args:
        parts: For each request its array, or rows and length of a mask that is filled with `value`.
        out: The rows of the batch, in C order. No dimension is smaller than a request's.
        padding: The bytes of one element of padding.
        value: The bytes of one element of a mask.

    Raises:
        ValueError: A shape or a size does not match.
    """
    cdef vector[Part] made
    cdef Part part
    cdef cnp.ndarray array
    cdef Py_ssize_t at, rank = cnp.PyArray_NDIM(out)
    cdef size_t item = <size_t>cnp.PyArray_ITEMSIZE(out)
    cdef unsigned char *target = <unsigned char *>cnp.PyArray_DATA(out)
    cdef int64_t row_bytes, row = 0
    cdef int64_t nbytes = cnp.PyArray_NBYTES(out)
    cdef int64_t rows = cnp.PyArray_DIMS(out)[0] if rank else 0
    cdef const unsigned char *fill = padding
    cdef const unsigned char *ones = value
    if (rank == 0 or rank > RANK_LIMIT or not cnp.PyArray_ISCARRAY(out)
            or <size_t>len(padding) != item or <size_t>len(value) != item):
        raise ValueError("the rows of a batch are a writable array in C order")
    row_bytes = nbytes // rows if rows else 0
    for given in parts:
        shape = given if type(given) is tuple else given.shape
        if len(shape) != rank:
            raise ValueError(f"rows of the shape {shape} for a batch of {rank} dimensions")
        for at in range(rank):
            part.shape[at] = shape[at]
            part.target_shape[at] = cnp.PyArray_DIMS(out)[at] if at else part.shape[0]
            if part.shape[at] < 0 or part.shape[at] > part.target_shape[at]:
                raise ValueError(f"rows of the shape {shape} in a batch that is smaller")
        if type(given) is tuple:
            if rank != 2:
                raise ValueError("a mask has two dimensions")
            part.source = NULL
        else:
            array = given
            if (not cnp.PyArray_IS_C_CONTIGUOUS(array)
                    or <size_t>cnp.PyArray_ITEMSIZE(array) != item):
                raise ValueError(f"rows of the type {array.dtype} in a batch of {out.dtype}")
            part.source = <const unsigned char *>cnp.PyArray_DATA(array)
        part.target = target + row * row_bytes
        row += part.shape[0]
        made.push_back(part)
    if row != rows:
        raise ValueError(f"{row} rows in a batch of {rows}")
    if nbytes > WITHOUT_GIL_BYTES:
        with nogil:
            _join(made, <size_t>rank, fill, ones, item)
    else:
        _join(made, <size_t>rank, fill, ones, item)


cdef void _join(
    vector[Part] &parts, size_t rank, const unsigned char *padding, const unsigned char *value,
    size_t item
) noexcept nogil:
    cdef size_t i
    cdef Part *part
    for i in range(parts.size()):
        part = &parts[i]
        if part.source != NULL:
            copy_padded(
                part.source, part.shape, part.target, part.target_shape, rank, padding, item
            )
        else:
            fill_mask(
                part.target, part.shape[0], <size_t>part.shape[1], <size_t>part.target_shape[1],
                value, padding, item
            )
