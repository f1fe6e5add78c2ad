"""The rules and resize plans for the images of fast-path requests, for their batches."""

from libc.stdint cimport uint32_t

from native.images.image_input cimport ImageRules
from native.images.resize.jpeg_batch cimport RowPlans

from ksrv._native.images.decode_pool cimport DecodePool


cdef class FastImages:
    cdef ImageRules rules
    cdef RowPlans plans
    cdef object make      # makes a plan; see `FastImages`
    cdef DecodePool pool  # kept alive, because `rules` refers to it

    cdef int plan(self, uint32_t height, uint32_t width, uint32_t channels) except -1
