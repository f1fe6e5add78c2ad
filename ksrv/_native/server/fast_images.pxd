"""The images of fast-path requests, for the batches that they join."""

from libc.stdint cimport uint32_t, uint64_t
from libcpp cimport bool as cbool

from ksrv._native.images.decode_pool cimport CDecodePool, DecodePool
from ksrv._native.images.jpeg_batch cimport CRowPlans, PlanTable


cdef extern from "images/image_input.hpp" namespace "ksrv" nogil:
    cdef cppclass ImageRules:
        ImageRules()
        cbool accepted
        cbool strict
        cbool upright
        cbool resized
        int channels
        uint32_t height
        uint32_t width
        uint64_t image_pixels
        uint64_t request_pixels
        uint32_t scans
        uint32_t scans_per_component
        CRowPlans *plans
        CDecodePool *pool

    cdef struct EncodedImage:
        size_t offset
        size_t length


cdef class FastImages:
    cdef ImageRules rules
    cdef PlanTable plans
    cdef DecodePool pool
