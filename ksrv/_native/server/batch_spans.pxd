"""The spans of a batch, for the other compiled modules."""

from native.trace.batch_trace cimport BatchTrace, TracedRun, TraceRules

from ksrv._native.server.request_batch cimport RequestBatch


cdef class ModelTracing:
    cdef TraceRules rules
    cdef object current  # the module `ksrv.observe.current_span`


cdef class BatchSpans:
    cdef ModelTracing model
    cdef RequestBatch batch
    cdef list handles
    cdef BatchTrace trace
    cdef TracedRun run
    cdef object span, token, result


# The spans of a batch; None if none of its requests is traced.
cdef BatchSpans ksrv_spans_of(RequestBatch batch, ModelTracing model)
