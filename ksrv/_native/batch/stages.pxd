"""The running batch of a handler, for the other compiled modules."""

from ksrv._native.batch.batch cimport StageTimes


cdef class BoundContext:
    cdef public object owner
    cdef public object inputs
    cdef public object made


cdef class RunContext:
    cdef public str stage
    cdef public bint passes_outputs_through
    cdef StageTimes times         # of the default stages, while `timings_by_stage` is None
    cdef dict timings_by_stage
    cdef object inputs            # the running batch as `ExecutorInputs`, else None
    # The running batch as handlers see it; None until a stage reads it.
    cdef object made
    cdef object make_batch
    cdef unsigned long thread     # the thread that runs the batch
    # Shared with the threads that the batch has started; None if it started none.
    cdef BoundContext bound

    cdef BoundContext bind(self)
    cdef bint is_here(self) noexcept
    cdef BoundContext bound_here(self)
