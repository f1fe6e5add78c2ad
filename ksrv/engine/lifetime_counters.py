"""The counts of a model version over its reloads, so that no total ever goes down."""

import threading

from ksrv._native.queue.stats import Stats
from ksrv.engine.instances.host import InstanceHost
from ksrv.statistics import ModelStatistics, total


class LifetimeCounters:
    """The counts of all loads of one version, ended and running."""

    def __init__(self, first: InstanceHost) -> None:
        self._lock = threading.Lock()
        self._living: list[InstanceHost] = [first]
        self._stats = Stats()
        self._counts: dict[str, int] = {}
        self._records: dict[str, int] = {}

    def begin(self, load: InstanceHost) -> None:
        """Count another load as well.

        Args:
            load: The load; those before it may still be finishing.
        """
        with self._lock:
            self._living.append(load)

    def end(self, load: InstanceHost) -> None:
        """Keep the counts of a load that has ended, and let the load go.

        Args:
            load: The load; nothing counts on it any longer.
        """
        with self._lock:
            self._living.remove(load)
            for stats in load.all_stats:
                self._stats.absorb(stats)
            for reason, number in load.queue.counts().items():
                self._counts[reason] = self._counts.get(reason, 0) + number

    def count_record(self, outcome: str, count: int = 1) -> None:
        """Count a record of a request; 0 has it shown."""
        with self._lock:
            self._records[outcome] = self._records.get(outcome, 0) + count

    def statistics(self, name: str, version: str) -> ModelStatistics:
        """Return the sum of all loads."""
        with self._lock:
            records = dict(self._records)
            stats = [self._stats, *(one for load in self._living for one in load.all_stats)]
            counts = [self._counts, *(load.queue.counts() for load in self._living)]
            made = total(name, version, stats, counts)
        made.records = records
        return made
