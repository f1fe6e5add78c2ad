"""The memory that this process may use, and how much of it requests in flight may hold."""

import os
from pathlib import Path

from ksrv.limits import Limits

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_SHARE = 4


def machine_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or its container's."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        container = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        return physical
    return min(physical, int(container)) if container.isdigit() else physical


def bytes_in_flight(limits: Limits) -> int:
    """Return the bound on what requests in flight hold: a quarter of the memory unless set.

    Args:
        limits: Where it may be set.
    """
    return limits.in_flight or machine_memory() // _SHARE
