"""The running batch of a handler, for the other compiled modules."""

from libc.stdint cimport int64_t


cdef class RunningBatch:
    cdef public str stage
    cdef public dict timings
    cdef object inputs
    cdef object made
    cdef object make_batch

    cdef int note(self, str name, int64_t nanoseconds) except -1
