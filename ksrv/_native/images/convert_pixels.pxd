cdef extern from "images/convert_pixels.hpp" namespace "ksrv" nogil:
    cdef enum PixelType:
        PIXEL_U8
        PIXEL_U16
        PIXEL_I16
        PIXEL_F32
        PIXEL_F64

    cdef enum Arithmetic:
        ARITHMETIC_NONE
        ARITHMETIC_FAST
        ARITHMETIC_EXACT

    cdef cppclass Coefficients:
        int arithmetic
        double scale
        double mean[4]
        double std[4]

    cdef cppclass PixelSource:
        const unsigned char *data
        int type
        size_t height
        size_t width
        size_t channels
        Py_ssize_t row_bytes

    cdef cppclass PixelTarget:
        unsigned char *data
        int datatype
        size_t channels
        int from_ "from" [4]
        Py_ssize_t row_bytes

    void convert_pixels(const PixelSource &source, const PixelTarget &target, const Coefficients &c)


cdef enum:
    MAX_SIDE = 1 << 24


cdef class Plane:
    cdef Py_buffer view
    cdef bint held
    cdef Py_ssize_t height, width, channels, row_bytes
    cdef str format


cdef class Conversion:
    cdef Coefficients coefficients
    cdef tuple order
    cdef Py_ssize_t values

    cdef double _value(self, tuple values, Py_ssize_t i, double default)
    cdef int aim(self, Plane b, Py_ssize_t channels, bint bfloat16, PixelTarget *to) except -1
