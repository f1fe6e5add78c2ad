"""Resize plans for the rows of a batch, used by fast-path batches."""

from native.images.resize.jpeg_batch cimport JpegRow, RowPlans as CRowPlans

from ksrv._native.images.convert_pixels cimport Conversion


cdef class RowPlan:
    cdef JpegRow job
    cdef Conversion conversion
    cdef tuple shape


cdef class PlanTable:
    cdef object make
    cdef CRowPlans native
