"""Padding of rows, for the other compiled modules."""

from native.tensor.padding cimport LengthBuckets as CLengthBuckets


cdef enum:
    WITHOUT_GIL_BYTES = 131072  # rows of this size or more are copied without the GIL


cdef class LengthBuckets:
    cdef CLengthBuckets *native
