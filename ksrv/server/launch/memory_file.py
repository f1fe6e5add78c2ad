"""Files without a name, for settings that no other user of the machine may read.

A command line is in the process list for everybody to see. A file on a disk outlives a process that
is killed. A descriptor of memory has neither fault: it is inherited, and ends with its processes.
"""

import os


def memory_file(content: bytes) -> int:
    """Return the descriptor of a file in memory that commands inherit."""
    descriptor = os.memfd_create("ksrv-settings", 0)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return descriptor


def path_of(descriptor: int) -> str:
    """Return the path by which a process that inherits a descriptor opens its file, from the beginning."""
    return f"/proc/self/fd/{descriptor}"
