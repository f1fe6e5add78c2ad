"""The limits of this process's control groups: the quota of processors, and memory.

A group's limits also apply to the groups below it, so the smallest limit counts, from the process's group up to
the root that is mounted. Version 2 has one hierarchy (cpu.max, memory.max), version 1 one for each controller.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def usable_cores() -> int:
    """Return how many threads can run at the same time: the cores of the affinity, or fewer by a quota.

    A part of a core counts as one, as for the JVM and Go.
    """
    cores = len(os.sched_getaffinity(0))
    quota = cgroup_cores()
    return cores if quota is None else min(cores, max(1, math.ceil(quota)))


def cgroup_cores() -> float | None:
    """Return the cores that the quota of the process's groups allows, or None without one."""
    quotas = []
    for group in _groups("cpu"):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if not quota:
            quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def cgroup_memory() -> int | None:
    """Return the bytes of memory that the process's groups allow, or None without a limit."""
    names = ("memory.max", "memory.limit_in_bytes")
    texts = [_read(group / name) for group in _groups("memory") for name in names]
    return min((int(text) for text in texts if text.isdigit()), default=None)


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of the process's group and of the groups around it.

    A container may see its group as the mounted root, while /proc has the path on the host. So some of these folders
    may not exist; `_read` returns "" for their files.
    """
    mount = ROOT / "sys/fs/cgroup"
    for line in _read(ROOT / "proc/self/cgroup").splitlines():
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        group = PurePosixPath(path.lstrip("/"))
        if ".." in group.parts:  # a group outside of this process's cgroup namespace
            group = PurePosixPath()
        for root in (mount / controller,) if controllers else (mount, mount / "unified"):
            yield from (root / folder for folder in (group, *group.parents))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
