"""Resize plans for the rows of a batch."""

from native.images.resize.jpeg_batch cimport JpegRow

from ksrv._native.images.convert_pixels cimport Conversion


cdef class RowPlan:
    cdef JpegRow job
    cdef Conversion conversion
    cdef tuple shape
