"""Padding, for the other compiled modules."""

from libc.stdint cimport uint32_t, uint64_t


cdef extern from "tensor/padding.hpp" namespace "ksrv" nogil:
    const uint64_t FIRST_LENGTH_KEY

    cdef cppclass CLengthBuckets "ksrv::LengthBuckets":
        CLengthBuckets(uint32_t multiple, double waste, uint32_t most) except +
        CLengthBuckets(const CLengthBuckets &other) except +
        uint64_t padded(uint64_t length) noexcept
        uint64_t bucket(uint64_t length) noexcept


cdef enum:
    WITHOUT_GIL_BYTES = 131072  # rows of this size or more are copied without the GIL


cdef class LengthBuckets:
    cdef CLengthBuckets *native
