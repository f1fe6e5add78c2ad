"""Model endpoints, for the HTTP server."""

from native.http.connection cimport Connection
from native.infer.model_signature cimport ModelSignature
from native.queue.request_queue cimport Push
from native.server.fast_path cimport FastRequest
from native.server.server cimport HttpServer as CHttpServer

from ksrv._native.queue.request_handle cimport NativeHandle
from ksrv._native.queue.request_queue cimport Queue


cdef enum:
    TOGETHER = 64             # the most requests that are pushed together


cdef class FastHandle(NativeHandle):
    pass


cdef class ModelEndpoint:
    cdef ModelSignature *signature  # a counted reference; routes and requests have others
    cdef readonly Queue queue
    cdef object spec
    # For each input the fields of `ksrv.engine.batches.padding.RowForm`, and the shape of one row
    # that is not padded.
    cdef list inputs
    cdef list images  # for each input: its FastImages, or None
    cdef object route
    cdef list runs
    cdef str length  # the name of the length along which rows are padded, or None


# Pushes a fast-path request and the requests after it, and runs them if a slot is claimed. Needs
# the GIL. Each request is answered, even after errors.
cdef void ksrv_serve_fast_requests(CHttpServer *server, Connection *connection) noexcept

# Pushes requests to one model, and runs the requests that claim a slot. The caller keeps refused
# requests. Needs the GIL.
cdef void ksrv_push_fast(FastRequest **fast, size_t count, Push *results) noexcept

# The request that a handler sees.
cdef object ksrv_request_of(FastRequest *request)
