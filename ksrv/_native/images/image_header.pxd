from libc.stdint cimport uint32_t, uint64_t


cdef extern from "images/image_header.hpp" namespace "ksrv" nogil:
    cdef enum class ImageFault(int):
        none
        unknown_format
        truncated
        damaged
        chunk
        texts

    const int COMPRESSED_TEXTS

    cdef cppclass ImageHeader:
        int format
        uint32_t width
        uint32_t height
        int channels
        int bit_depth
        int orientation
        int stored_bits
        int coding
        bint separate
        int components
        uint32_t scans
        int pixel_bytes
        size_t chunk
        size_t announced
        size_t left

    ImageFault read_image_header(const unsigned char *data, size_t size, ImageHeader *header)

cdef extern from "images/decode/cost.hpp" namespace "ksrv" nogil:
    const uint64_t DECODED_APART "ksrv::DECODED_APART_NS"
    uint64_t decode_ns(const ImageHeader &header) noexcept
    uint64_t row_decoder_bytes(const ImageHeader &header) noexcept
