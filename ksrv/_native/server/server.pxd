"""The HTTP server's C++ classes, for its Cython shell."""

from native.server.server cimport HttpServer as CHttpServer

from ksrv._native.reactor.event_loop cimport EventLoop


cdef class HttpServer:
    cdef CHttpServer *server
    cdef EventLoop loop
    cdef object handler
    cdef object check
    cdef list endpoints

    cdef int _set_unready(self, tuple answer) except -1
