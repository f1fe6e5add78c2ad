"""The counters of native servers, for their Cython shells."""

from native.reactor.counters cimport ServerCounters


cdef dict counted(const ServerCounters *counters)
cdef dict counted_errors(const ServerCounters *counters)
