"""The running batch of a handler, for the other compiled modules."""

from ksrv._native.batch.batch cimport StageTimes


cdef class RunningBatch:
    cdef public str stage
    cdef public bint passes_outputs_through
    cdef StageTimes times         # of the default stages, until `timings` is asked for
    cdef dict timings_by_stage
    cdef object inputs
    cdef object made
    cdef object make_batch
