"""Limits of the gRPC servers, native and grpcio: calls, streams, connections, threads and times."""

import resource

MAX_STREAMS = 64
"""The most open streams of inference and reflection together. Each occupies a thread, an inference stream two."""

MAX_WATCHES = 64
"""The most open health watches of callers with credentials. Each occupies a thread."""

MAX_OPEN_WATCHES = 32
"""The most open health watches of callers without credentials, because health checks often have no token."""

MAX_CALLS = 2048
"""The most calls at a time whose message is complete, and the most calls whose message is incomplete. The queue of
the engine is far shorter."""

CONCURRENT_STREAMS = 128
"""The most open calls of a connection."""

IDLE_CONNECTION_SECONDS = 300.0
"""A connection is closed after this time without a call. Clients connect again for their next call."""

STREAM_TIMEOUT_SECONDS = 600.0
"""A stream is ended after this time without a message and without a running request."""

DESCRIPTOR_SHARE = 4
"""gRPC connections may take this fraction of the file descriptors (one in four), so that other uses keep some."""

SMALL = 64 * 1024
"""The most bytes of a message of a method whose messages are always small."""

SPARE_THREADS = 4
"""Threads of a pool for streams beyond its permits, so that a stream without a permit is refused at once."""
HEALTH_THREADS = 32
"""Threads for health and readiness calls; each of the two has a pool."""
CALL_THREADS = 4
"""Threads for calls that may take long, such as metadata; the native server has as many for compressed ModelInfer."""
CONTROL_THREADS = 2
"""Threads of a dialect for calls that change the server."""


def most_connections(wanted: int) -> int:
    """Return how many connections a server may have open, so that enough file descriptors are left.

    Args:
        wanted: The setting `max_connections`.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, files // DESCRIPTOR_SHARE))
