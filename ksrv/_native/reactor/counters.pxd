"""The counters of native servers as Python dicts, for `HttpServer` and `GrpcServer`."""

from native.reactor.counters cimport ServerCounters


cdef dict counted(const ServerCounters *counters)
cdef dict counted_errors(const ServerCounters *counters)
