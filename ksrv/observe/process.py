"""The resources of a worker process, for the metrics page."""

import os
from pathlib import Path

import msgspec

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.memory_budget import PROCESS


class ProcessValues(msgspec.Struct):
    """The values of one worker, or the sums of several.

    Attributes:
        in_flight: Bytes that requests and answers hold, from their first byte to their last.
        leased: Bytes of the buffer pool's blocks in use.
        pooled: Bytes of the buffer pool's blocks kept ready.
        resident: Bytes of memory.
        copied: Tensor bytes that were copied so far.
    """

    in_flight: int = 0
    leased: int = 0
    pooled: int = 0
    resident: int = 0
    copied: int = 0

    def add(self, other: "ProcessValues", *, lives: bool) -> None:
        """Add another worker's values.

        Args:
            other: Its values.
            lives: Whether it still holds what it said; what it has counted stays in any case.
        """
        self.copied += other.copied
        if lives:
            self.in_flight += other.in_flight
            self.leased += other.leased
            self.pooled += other.pooled
            self.resident += other.resident


def process_values() -> ProcessValues:
    """Return the values of this process."""
    held = buffer_pool.statistics()
    return ProcessValues(
        PROCESS.held,
        held["leased_bytes"],
        held["pooled_bytes"],
        resident_bytes(),
        held["copied_bytes"],
    )


def resident_bytes() -> int:
    """Return how much memory this process occupies; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
