"""The resources of a worker process, for the metrics page."""

import os
import resource
import time
from pathlib import Path

import msgspec

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.memory_budget import PROCESS


class ProcessValues(msgspec.Struct):
    """The values of one worker, or the sums of several.

    Attributes:
        in_flight: Bytes of requests and answers, from their first byte to their last.
        leased: Bytes of the buffer pool's blocks in use.
        pooled: Bytes of the buffer pool's blocks kept ready.
        resident: Bytes of memory.
        copied: Tensor bytes that were copied so far.
        virtual: Bytes of address space.
        cpu_ns: Nanoseconds of processor time so far, of user and system.
        open_files: Open descriptors.
        most_files: Open descriptors that are allowed at most; 0 without a bound.
    """

    in_flight: int = 0
    leased: int = 0
    pooled: int = 0
    resident: int = 0
    copied: int = 0
    virtual: int = 0
    cpu_ns: int = 0
    open_files: int = 0
    most_files: int = 0

    def add(self, other: "ProcessValues", *, lives: bool) -> None:
        """Add another worker's values.

        Args:
            lives: Whether it still holds what it said; what it has counted stays in any case.
        """
        self.copied += other.copied
        self.cpu_ns += other.cpu_ns
        if lives:
            self.in_flight += other.in_flight
            self.leased += other.leased
            self.pooled += other.pooled
            self.resident += other.resident
            self.virtual += other.virtual
            self.open_files += other.open_files
            self.most_files += other.most_files


def process_values() -> ProcessValues:
    """Return the values of this process."""
    held = buffer_pool.statistics()
    virtual, resident = _memory()
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ProcessValues(
        PROCESS.held,
        held["leased_bytes"],
        held["pooled_bytes"],
        resident,
        held["copied_bytes"],
        virtual,
        time.process_time_ns(),
        _open_files(),
        0 if most_files == resource.RLIM_INFINITY else most_files,
    )


def _memory() -> tuple[int, int]:
    """Return the bytes of this process's address space and memory; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0, 0
    page = os.sysconf("SC_PAGE_SIZE")
    return int(fields[0]) * page, int(fields[1]) * page


def _open_files() -> int:
    """Return how many descriptors this process has open; 0 where the system does not say."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
