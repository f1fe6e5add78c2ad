"""The counters of native servers, for their Cython shells."""

from libc.stdint cimport uint64_t


cdef extern from "reactor/counters.hpp" namespace "ksrv" nogil:
    cdef enum class ServerCounter(int):
        REFUSALS
        COUNT

    const char *COUNTER_NAMES[]
    const int LEAST_ERROR
    const int STATUSES

    cdef cppclass ServerCounters:
        uint64_t counted(ServerCounter which) noexcept
        uint64_t errors(int status) noexcept


cdef dict counted(const ServerCounters *counters)
cdef dict counted_errors(const ServerCounters *counters)
