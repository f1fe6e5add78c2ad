"""Model endpoints, for the HTTP server."""

from ksrv._native.server.server cimport CHttpServer, Connection, FastRequest, ModelSignature
from ksrv._native.queue.request_handle cimport CRequest, NativeHandle
from ksrv._native.queue.request_queue cimport Push, Queue


cdef class FastHandle(NativeHandle):
    pass


cdef class ModelEndpoint:
    cdef ModelSignature *signature
    cdef readonly Queue queue
    cdef object spec
    cdef list inputs  # for each input: name, datatype, dtype, further dimensions, shape of one row
    cdef list images  # for each input: its FastImages, or None
    cdef object route
    cdef list runs
    cdef str length  # the name of the length along which rows are padded, or None


# Pushes a fast-path request and the requests after it, and runs them if a slot is claimed. Needs
# the GIL. Each request is answered, even after errors.
cdef void ksrv_serve_fast_requests(CHttpServer *server, Connection *connection) noexcept

# Runs the requests with PUSH_INLINE, which claimed a slot. Each request ends, even after errors.
cdef void ksrv_run_inline(
    ModelEndpoint endpoint, size_t slot, CRequest **requests, Push *results, size_t count
) noexcept

# The request that a handler sees.
cdef object ksrv_request_of(FastRequest *request)
