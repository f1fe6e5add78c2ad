"""Batches of fast-path requests, for the other compiled modules."""

from libc.stdint cimport int64_t

from ksrv._native.batch.batch cimport BatchInputs


cdef class FastBatches:
    cdef object lease
    cdef object read_requests
    cdef object answer_generally
    cdef bint copied


cdef class FastBatch(BatchInputs):
    cdef FastBatches source
    cdef object dispatched  # what is known of a batch that a handler process was given, else None
    cdef public int64_t spent_ns
    cdef public int64_t ran_ns
    cdef bint counted
    cdef list input_arrays
    cdef dict references


cdef FastBatch ksrv_fast_batch(list handles, FastBatches source)
cdef bint ksrv_are_fast(list handles) noexcept
