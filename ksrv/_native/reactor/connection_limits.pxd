"""The limits of connections that settings choose, for the Cython shells of both servers."""

from native.reactor.connection_limits cimport ConnectionLimits as CConnectionLimits


cdef class ConnectionLimits:
    cdef CConnectionLimits limits
