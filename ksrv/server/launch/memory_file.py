"""Files without a name, for settings that no other user of the machine may read.

Every user can read a command line in the process list, and a file on a disk stays behind if its process is killed.
A memfd has neither fault: child processes inherit its descriptor, and it ends with the last of them.
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
