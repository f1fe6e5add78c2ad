from libc.stdint cimport uint8_t, uint32_t


cdef extern from "images/decode/jpeg_decoder.hpp" namespace "ksrv" nogil:
    cdef enum class PixelOrder(int):
        grey
        bgr
        rgb

    cdef enum class Decoded(int):
        whole
        no_memory

    cdef cppclass JpegJob:
        const unsigned char *data
        size_t size
        PixelOrder order
        unsigned int reduction
        uint32_t height
        uint32_t width
        bint codes_by_library

    cdef cppclass RowReceiver:
        void take(uint32_t row, const uint8_t *pixels) noexcept

    cdef cppclass WholePicture(RowReceiver):
        WholePicture(uint8_t *pixels, Py_ssize_t row_bytes)

    bint has_jpeg_decoder() noexcept
    const char *jpeg_decoder_version() noexcept
    Decoded decode_jpeg(const JpegJob &job, RowReceiver &receiver) noexcept
