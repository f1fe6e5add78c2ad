"""When bytes came, by the kernel's clock, and a server that finds many of them at once."""

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from tests.support.wait_until import wait_until

SO_TIMESTAMPNS = 35
"""Linux's option, which Python does not name: a socket's bytes come with the time when the kernel got them."""


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process whose threads all stand still meanwhile."""

    def states() -> set[str]:
        return {path.read_text().rpartition(")")[2].split()[0] for path in tasks.glob("*/stat")}

    tasks = Path(f"/proc/{pid}/task")
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: states() == {"T"})
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def note_arrivals(client: socket.socket) -> None:
    """Have the kernel note when bytes come."""
    client.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def came_at(client: socket.socket) -> int:
    """Return when the bytes that wait for a connection's reader came, in nanoseconds."""
    with socket.socket(fileno=os.dup(client.fileno())) as plain:
        plain.settimeout(60)
        ((_, _, time),) = plain.recvmsg(1, 64, socket.MSG_PEEK)[1]
    seconds, nanoseconds = struct.unpack("@ll", time)
    return int(seconds * 10**9 + nanoseconds)
