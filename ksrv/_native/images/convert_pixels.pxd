from native.images.convert_pixels cimport Coefficients, PixelTarget


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
