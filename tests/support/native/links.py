"""Both ends of the link between a worker and a handler process, in one process."""

from collections.abc import Iterator
from contextlib import contextmanager

from ksrv._native.process.batch_ring import ProcessRing, WorkerRing
from ksrv.engine.processes.link import Link, WhenFull


@contextmanager
def linked(when_full: WhenFull = "wait") -> Iterator[tuple[Link, Link]]:
    """Yield the ends, which share memory, and close them.

    Args:
        when_full: The policy of the first end while the socket has no room.
    """
    near, far = Link.pair(when_full)
    ends = near, Link(far)
    near.shared = ring = WorkerRing(near.fileno())
    ends[1].shared = ProcessRing(ring.fileno(), ends[1].fileno())
    try:
        yield ends
    finally:
        for end in ends:
            end.close()
