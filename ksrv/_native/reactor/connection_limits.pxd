"""The limits of connections that settings choose, for `HttpServer` and `GrpcServer`."""

from native.reactor.connection_limits cimport ConnectionLimits as CConnectionLimits


cdef class ConnectionLimits:
    cdef CConnectionLimits limits
