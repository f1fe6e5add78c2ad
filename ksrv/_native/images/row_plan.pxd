"""Resize plans for the rows of a batch."""

from native.images.resize.jpeg_batch cimport JpegRow

from ksrv._native.images.convert_pixels cimport Conversion


cdef class RowPlan:
    cdef JpegRow job  # what all pictures of a size share; copied for each picture
    cdef Conversion conversion
    cdef tuple shape  # of a row
