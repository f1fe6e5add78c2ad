"""Stands for the module by which Triton's suites see how full the shared memory of its Python models is.

ksrv has no such memory of a fixed size, so that nothing of it can leak.
"""


class SharedMemoryManager:
    """Always says the same."""

    def __init__(self, name):
        self.name = name

    def free_memory(self):
        return 1 << 20
