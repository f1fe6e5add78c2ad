"""The Cython class of the HTTP server; server.pyx has its code."""

from native.server.server cimport HttpServer as CHttpServer

from ksrv._native.reactor.event_loop cimport EventLoop


cdef class HttpServer:
    # Deleted with this object; leaked while requests in queues refer to it.
    cdef CHttpServer *server
    cdef EventLoop loop  # kept alive as long as the server
    cdef object handler  # called with an Exchange for each infer request
    cdef object check  # whether the caller of a head may send its body; None: every caller may
    cdef list endpoints  # the ModelEndpoints to which routes or requests refer

    # Sets the answer of the readiness route while the server is not ready.
    cdef int _set_unready(self, tuple answer) except -1
