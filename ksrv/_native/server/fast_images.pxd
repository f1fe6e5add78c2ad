"""The images of fast-path requests, for the batches that they join."""

from native.images.image_input cimport ImageRules

from ksrv._native.images.decode_pool cimport DecodePool
from ksrv._native.images.jpeg_batch cimport PlanTable


cdef class FastImages:
    cdef ImageRules rules
    cdef PlanTable plans
    cdef DecodePool pool
