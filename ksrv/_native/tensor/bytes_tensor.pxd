"""C declarations of native/tensor/bytes_tensor.hpp for the other compiled modules."""

from libc.stdint cimport uint32_t, uint64_t


cdef extern from "tensor/bytes_tensor.hpp" namespace "ksrv" nogil:
    const size_t PREFIX_BYTES

    cdef struct ElementFault:
        uint64_t index
        uint64_t offset
        uint64_t claimed
        uint64_t remaining
        bint short_prefix
        bint trailing

    cdef enum BytesForm:
        BYTES_PREFIXED
        BYTES_BARE

    uint32_t element_length(const unsigned char *prefix)
    void write_element_length(unsigned char *prefix, uint32_t length)
    bint walk_prefixed(
        const unsigned char *data, size_t length, uint64_t count, ElementFault *fault
    )
    BytesForm bytes_form(
        const unsigned char *data, size_t length, uint64_t count, bint is_image,
        ElementFault *fault
    )


cdef extern from "tensor/image_signature.hpp" namespace "ksrv" nogil:
    cdef enum ImageFormat:
        FIRST_NOT_DECODED "ksrv::IMAGE_JPEG2000"

    ImageFormat image_signature(const unsigned char *data, size_t length)
    const char *image_format_name(ImageFormat format)
