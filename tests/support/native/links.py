"""Both ends of the link between a worker and a handler process, in one process."""

from collections.abc import Iterator
from contextlib import contextmanager

from ksrv._native.process.channel import Channel, Link


@contextmanager
def linked() -> Iterator[tuple[Link, Link]]:
    """Yield the ends, and close them."""
    near, far = Channel.pair()
    ends = Link(near), Link(Channel(far))
    try:
        yield ends
    finally:
        for end in ends:
            end.close()
