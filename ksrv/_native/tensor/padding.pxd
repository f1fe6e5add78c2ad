"""Padding, for the other compiled modules."""

from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef extern from "tensor/padding.hpp" namespace "ksrv" nogil:
    const uint64_t FIRST_LENGTH_KEY

    cdef cppclass CLengthBuckets "ksrv::LengthBuckets":
        CLengthBuckets(uint32_t multiple, double waste, uint32_t most) except +
        CLengthBuckets(const CLengthBuckets &other) except +
        uint64_t padded(uint64_t length) noexcept
        uint64_t bucket(uint64_t length) noexcept

    void copy_padded(
        const unsigned char *source, const int64_t *source_shape, unsigned char *target,
        const int64_t *target_shape, size_t rank, const unsigned char *element, size_t item_size
    ) noexcept
    void fill_mask(
        unsigned char *target, int64_t rows, size_t length, size_t padded_length,
        const unsigned char *value, const unsigned char *padding, size_t item_size
    ) noexcept


cdef enum:
    WITHOUT_GIL_BYTES = 131072  # rows of this size or more are copied without the GIL


cdef class LengthBuckets:
    cdef CLengthBuckets *native
