"""Shared memory in place of registered regions."""

from typing import Any

import numpy as np

from ksrv.dialects.triton.extensions.shared_memory.tensors import CallerMemory
from ksrv.request import SharedMemoryRef


class Regions:
    """Each region has the numbers 0 to 3 as FP32. Writes are recorded."""

    def __init__(self) -> None:
        self.written: list[tuple[SharedMemoryRef, bytes]] = []

    def read(self, ref: SharedMemoryRef, user: object) -> memoryview:
        values = np.arange(4, dtype=np.float32).tobytes()
        return memoryview(values)[ref.offset : ref.offset + ref.byte_size]

    def write(self, ref: SharedMemoryRef, data: Any, user: object) -> None:
        self.written.append((ref, bytes(data)))


def caller_memory(regions: Any = None) -> CallerMemory:
    """Return the memory as a caller sees it."""
    memory: Any = regions or Regions()
    return CallerMemory(memory, lambda: None)
