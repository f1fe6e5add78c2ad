"""Computes how much memory this process may use, and how much of it requests in flight may take."""

import os

from ksrv.limits import Limits
from ksrv.machine.cgroups import cgroup_memory

_SHARE = 4  # a quarter of the memory, if the setting does not say otherwise


def machine_memory() -> int:
    """Return the bytes of memory that the machine or the container of this process has."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(physical, cgroup_memory() or physical)


def bytes_in_flight(limits: Limits) -> int:
    """Return the most bytes that requests in flight may take: the setting, or by default a quarter of the memory."""
    return limits.in_flight or machine_memory() // _SHARE
