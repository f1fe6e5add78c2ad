# Needs the GIL: it makes Python objects.
"""The counters of native servers, by their names in native/reactor/counters.hpp."""

from native.reactor.counters cimport (
    COUNTER_NAMES, LEAST_ERROR, REFUSALS as REFUSAL_COUNT, STATUSES, ServerCounter,
)

REFUSALS: tuple[str, ...] = tuple(
    (<bytes>COUNTER_NAMES[index]).decode() for index in range(REFUSAL_COUNT)
)
"""The counters that are reasons of `ksrv_refused_requests_total`."""


cdef dict counted(const ServerCounters *counters):
    """Return the counters by name."""
    return {
        (<bytes>COUNTER_NAMES[index]).decode(): counters.counted(<ServerCounter>index)
        for index in range(<int>ServerCounter.COUNT)
    }


cdef dict counted_errors(const ServerCounters *counters):
    """Return how many answers were errors, by status."""
    return {
        status: counters.errors(status)
        for status in range(LEAST_ERROR, LEAST_ERROR + STATUSES)
        if counters.errors(status)
    }
