"""The limits of connections that settings choose, for the Cython shells of both servers."""

from libc.stdint cimport uint64_t


cdef extern from "reactor/connection_limits.hpp" namespace "ksrv" nogil:
    cdef cppclass CConnectionLimits "ksrv::ConnectionLimits":
        uint64_t connections

    cdef cppclass ConnectionSetting:
        const char *name
        void set(CConnectionLimits *limits, double value) noexcept

    const ConnectionSetting CONNECTION_SETTINGS[]
    const size_t CONNECTION_SETTINGS_COUNT


cdef class ConnectionLimits:
    cdef CConnectionLimits limits
