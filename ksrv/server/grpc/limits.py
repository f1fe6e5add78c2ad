"""How much the gRPC server holds at a time, whichever library carries it."""

import resource

MAX_STREAMS = 64
"""Open streams of inference and reflection together; each holds a thread, an inference stream two."""

MAX_WATCHES = 64
"""Health watches that callers with credentials may have open; each holds a thread."""

MAX_OPEN_WATCHES = 32
"""The same bound for callers without credentials: health checks show no token."""

MAX_CALLS = 2048
"""Calls whose message is there that are held at a time, and as many whose message is not there. The
engine's queue is far shorter."""

CONCURRENT_STREAMS = 128
"""Calls of one connection that are open at a time."""

IDLE_CONNECTION_SECONDS = 300.0
"""A connection without a call is closed after so long; clients connect again for their next call."""

STREAM_TIMEOUT_SECONDS = 600.0
"""A stream on which nothing is asked and nothing is under way is ended after so long."""

DESCRIPTOR_SHARE = 4
"""One descriptor in so many may be a gRPC connection's, so that the others keep theirs."""

SMALL = 64 * 1024
"""The most bytes of a message of a method whose messages are always small."""

SPARE_THREADS = 4
HEALTH_THREADS = 32
CALL_THREADS = 4
CONTROL_THREADS = 2


def most_connections(wanted: int) -> int:
    """Return how many connections a server may hold open without starving its process of files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, files // DESCRIPTOR_SHARE))
