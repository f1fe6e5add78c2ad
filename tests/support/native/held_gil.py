"""A thread of a server that keeps the GIL, for as long as a test wants it to."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from typing import Any

MOST_IN_A_PIPE = 1 << 20


def hold_gil(pipe: str) -> None:
    """Keep the GIL from when a reader opens a named pipe until it closes it; run by the server."""
    end = os.open(pipe, os.O_WRONLY)
    # Unlike CDLL, PyDLL keeps the GIL during a call, and this call blocks: nobody reads so much.
    ctypes.PyDLL(None).write(end, bytes(2 * MOST_IN_A_PIPE), ctypes.c_size_t(2 * MOST_IN_A_PIPE))
    os.close(end)


@contextlib.contextmanager
def held_gil(pipe: str) -> Iterator[Any]:
    """While this context is open, the thread of a server that is in `hold_gil` keeps its GIL."""
    with open(pipe, "rb", buffering=0) as end:
        assert end.read(1)
        yield
