"""Batches for the other compiled modules."""

from libc.stdint cimport int64_t


# Nanoseconds for each default stage of a batch. NOT_RUN for a stage that was not run.
cdef struct StageTimes:
    int64_t preprocess
    int64_t inference
    int64_t postprocess


cdef enum:
    NOT_RUN = -1


cdef dict ksrv_timings(const StageTimes &times)

# batch.pyx describes the attributes of both classes.
cdef class ExecutorInputs:
    cdef public dict tensors
    cdef public Py_ssize_t rows
    cdef readonly object requests
    cdef public bint explain
    cdef public object emit
    cdef public list handles
    cdef public bint beside_others
    cdef public object inherited


cdef class ExecutorOutputs:
    cdef public list tensors
    cdef public bint exclusive, last
    cdef public object only
    cdef public dict parts
    cdef StageTimes times
    # Behind the properties `timings`, `failures`, `headers`, `parameters` and `dialect_facts`, in
    # this order. None until first read, because most are empty (`timings` is then made from
    # `times`).
    cdef dict timings_by_stage, failed, fields, extra, dialect_facts

    # Whether the answer has only tensors: no failures, headers, parameters or dialect facts.
    cdef bint is_bare(self) noexcept


cdef ExecutorOutputs ksrv_batch_outputs(list tensors, StageTimes times, dict timings)
