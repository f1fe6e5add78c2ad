"""Processes that do not outlive the process that started them, however it ends."""

import os
import signal
import sys
from collections.abc import Sequence

_SET_PARENT_DEATH_SIGNAL = 1

# Run in front of the command: has the kernel end this process with its parent's thread. Setting
# that in the fork itself would run the hooks of the parent's libraries in the child, and grpc's may
# abort it there.
_PROGRAM = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(int(sys.argv[1]), int(sys.argv[2]))
if os.getppid() == int(sys.argv[3]):
    os.execvp(sys.argv[4], sys.argv[4:])
"""


def ending_with_parent(command: Sequence[str]) -> list[str]:
    """Return a command whose process gets SIGTERM as soon as the thread that starts it has ended.

    The kernel watches the thread that forks, not its process, so that thread must live as long as
    the command shall run.
    """
    numbers = (_SET_PARENT_DEATH_SIGNAL, int(signal.SIGTERM), os.getpid())
    return [sys.executable, "-ISc", _PROGRAM, *map(str, numbers), *command]
