"""Pictures in memory, and the conversion of their pixels, for the other compiled modules."""

from native.images.convert_pixels cimport Coefficients, PixelTarget


cdef enum:
    MAX_SIDE = 1 << 24  # pixels of a picture's height or width


cdef class Plane:
    cdef Py_buffer view
    cdef bint held  # `view` must be released
    cdef Py_ssize_t height, width, channels, row_bytes
    cdef str format  # the struct format of a sample, such as "B"


cdef class Conversion:
    cdef Coefficients coefficients
    cdef tuple order  # the `channels` argument
    cdef Py_ssize_t values  # how many values mean and std have for the channels; 0: one for all

    cdef double _value(self, tuple values, Py_ssize_t i, double default)
    cdef int aim(self, Plane b, Py_ssize_t channels, bint bfloat16, PixelTarget *to) except -1
