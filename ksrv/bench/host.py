"""The CPU and memory of a server on this machine. Its processes are found in /proc by the port that they listen on."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"  # TCP_LISTEN, as /proc/net/tcp writes it


@dataclass(frozen=True)
class Usage:
    """The resources that a server's processes have used.

    Attributes:
        cpu: Seconds of CPU since they were started.
        memory: Bytes that they use now. Shared pages count once if the kernel has smaps_rollup, else in each process.
    """

    cpu: float
    memory: int


def server_processes(port: int) -> list[int]:
    """Return the processes of the server that listens on a port, its children included.

    Returns:
        The processes, without processes of other users; an empty list if nothing listens here.
    """
    sockets = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{words[9]}]")
    parents = _parents()
    found = {pid for pid in parents if sockets and _holds(pid, sockets)}
    grown = True
    while grown:  # add children until a round finds no more
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return sorted(found)


def _parents() -> dict[int, int]:
    """Return every process with its parent."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            text = (path / "stat").read_text()
        except OSError:
            continue
        # The name in parentheses may have spaces and parentheses. The state and the parent follow it (proc(5)).
        found[int(path.name)] = int(text.rpartition(")")[2].split()[1])
    return found


def _holds(pid: int, sockets: set[str]) -> bool:
    """Return whether a process has one of the sockets open."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            if os.readlink(f"/proc/{pid}/fd/{descriptor}") in sockets:
                return True
        except OSError:  # closed since the listing
            continue
    return False


def usage(pids: list[int]) -> Usage | None:
    """Return what processes have used, or None if all of them have ended or belong to another user."""
    ticks = os.sysconf("SC_CLK_TCK")
    cpu = memory = seen = 0
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        seen += 1
        cpu += int(words[11]) + int(words[12])  # utime and stime, in clock ticks
        memory += _memory(pid)
    return Usage(cpu / ticks, memory) if seen else None


def _memory(pid: int) -> int:
    """Return the bytes that a process uses now; 0 if it has ended."""
    for file, key in (("smaps_rollup", "Pss"), ("status", "VmRSS")):
        try:
            text = Path(f"/proc/{pid}/{file}").read_text()
        except OSError:
            continue
        if found := re.search(rf"^{key}:\s*(\d+) kB", text, re.MULTILINE):
            return int(found[1]) << 10
    return 0
