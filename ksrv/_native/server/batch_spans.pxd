"""The spans of a batch, for the other compiled modules."""

from libc.stdint cimport int64_t

from native.trace.batch_trace cimport BatchTrace, TraceRules

from ksrv._native.server.request_batch cimport RequestBatch


cdef class ModelTracing:
    cdef TraceRules rules
    cdef object current  # the module `ksrv.observe.current_span`


cdef class BatchSpans:
    cdef ModelTracing model
    cdef RequestBatch batch
    cdef list handles
    cdef BatchTrace trace
    cdef int64_t taken_ns, began_ns, ended_ns
    cdef object span, token, outputs
    cdef int _fail(self, size_t index, object error) except -1


# The spans of a batch; None if none of its requests is traced.
cdef BatchSpans ksrv_spans_of(RequestBatch batch, ModelTracing model)
