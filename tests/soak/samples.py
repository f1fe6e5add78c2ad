"""Samples of the memory and descriptors of servers' processes, and of the time of calls."""

import os
import statistics
from contextlib import suppress
from pathlib import Path

from tests.soak.traffic import Tally, Target
from tests.soak.trend import Series
from tests.support.faults.health import descendants
from tests.support.processes import children

MEMORY_MIB = 5.0
"""MiB by which a process may grow, as docs/performance.md promises: 5 MB or 1 % over a million requests."""
DESCRIPTORS = 12.0
THREADS = 4.0
LATENCY_SHARE = 1.0
"""Calls may take twice as long at the end as at the begin: the machine has other work, too."""


def memory_mib(pid: int) -> tuple[float, float]:
    """Return a process's resident and proportional memory; 0 for one that has ended."""
    found = {"Rss": 0.0, "Pss": 0.0}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) / 1024
    return found["Rss"], found["Pss"]


def entries(pid: int, folder: str) -> int:
    """Return how many descriptors or threads a process has; 0 for one that has ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/{folder}"))
    except (FileNotFoundError, ProcessLookupError):
        return 0


class Sampler:
    """Takes samples of servers, whose workers stay.

    Args:
        targets: The servers by name.
        tallies: The calls to each.

    Attributes:
        series: The samples by panel and name.
    """

    def __init__(self, targets: dict[str, Target], tallies: dict[str, Tally]) -> None:
        self._targets, self._tallies = targets, tallies
        self._workers = {
            name: children(target.server.pid) for name, target in self._targets.items()
        }
        self.series: dict[tuple[str, str], Series] = {}
        self._count = 0

    def _note(
        self, panel: str, name: str, value: float, allowed: float, share: float = 0.0
    ) -> None:
        if (panel, name) not in self.series:
            made = Series(panel, name, allowed, share, [None] * self._count)
            self.series[panel, name] = made
        self.series[panel, name].values.append(value)

    def look(self) -> None:
        """Take a sample of everything.

        Raises:
            AssertionError: A worker has been replaced.
        """
        for name, target in self._targets.items():
            found = children(target.server.pid)
            assert found == self._workers[name], (
                f"{name}: workers {self._workers[name]} are {found}"
            )
            self._look_at(name, target.server.pid, found)
            for client, seconds in list(self._tallies[name].seconds.items()):
                taken, seconds[:] = seconds[:], []
                if taken:
                    protocol, milliseconds = (
                        client.partition(":")[0],
                        1000 * statistics.median(taken),
                    )
                    self._note("median ms", f"{name}, {protocol}", milliseconds, 1.0, LATENCY_SHARE)
        self._count += 1
        for one in self.series.values():
            one.values += [None] * (self._count - len(one.values))

    def _look_at(self, name: str, master: int, workers: list[int]) -> None:
        named = {f"{name}, master": [master]}
        named |= {f"{name}, worker {at + 1}": [pid] for at, pid in enumerate(workers)}
        known = {master, *workers}
        named[f"{name}, handlers"] = [pid for pid in descendants(master) if pid not in known]
        for label, processes in named.items():
            memory = [memory_mib(pid) for pid in processes]
            # Handler processes are killed and replaced all the time: what one of them takes is what may not grow.
            each = max(1, sum(resident > 0 for resident, _ in memory)) if len(memory) > 1 else 1
            self._note(
                "resident MiB", label, sum(one[0] for one in memory) / each, MEMORY_MIB, 0.01
            )
            self._note(
                "proportional MiB", label, sum(one[1] for one in memory) / each, MEMORY_MIB, 0.01
            )
            self._note(
                "descriptors", label, sum(entries(pid, "fd") for pid in processes), DESCRIPTORS
            )
            self._note("threads", label, sum(entries(pid, "task") for pid in processes), THREADS)
