"""Processes that do not outlive the process that started them, however it ends."""

import os
import signal
import sys
from collections.abc import Sequence

_SET_PARENT_DEATH_SIGNAL = 1

# This program runs first, sets the signal, and then replaces itself with the command, which inherits the
# setting (prctl(2), PR_SET_PDEATHSIG). It starts nothing if the parent ended before the call of prctl. `preexec_fn` of
# subprocess is not an alternative: with it Python forks, and the fork handlers of the parent's libraries
# run in the child, and grpc's may abort it.
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
