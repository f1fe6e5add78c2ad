"""Adds up the counts of a model version over its reloads, because a counter of a metric must never go down."""

import threading
from collections import Counter

from ksrv._native.queue.stats import Stats
from ksrv.engine.instances.host import InstanceHost
from ksrv.statistics import ModelStatistics, SampledCounts, summed, total


class LifetimeCounters:
    """The counts of all loads of one version, ended and running."""

    def __init__(self, first: InstanceHost) -> None:
        self._lock = threading.Lock()
        self._living: list[InstanceHost] = [first]
        self._stats = Stats()
        self._counts: Counter[str] = Counter()
        self._sampled = SampledCounts()

    def begin(self, load: InstanceHost) -> None:
        """Count a further load. Earlier loads may still be finishing their requests."""
        with self._lock:
            self._living.append(load)

    def end(self, load: InstanceHost) -> None:
        """Keep the counts of a load that has ended, and drop the load. Nothing may count on it any more."""
        with self._lock:
            self._living.remove(load)
            for stats in load.all_stats:
                self._stats.absorb(stats)
            self._counts.update(load.queue.counts())

    def count(self, field: str, outcome: str, count: int = 1) -> None:
        """Count sampled requests by their outcome. A count of 0 makes the outcome appear in the metrics.

        Args:
            field: The field of `SampledCounts`.
        """
        with self._lock:
            counts = getattr(self._sampled, field)
            counts[outcome] = counts.get(outcome, 0) + count

    def statistics(self, name: str, version: str) -> ModelStatistics:
        """Return the sum of all loads."""
        with self._lock:
            stats = [self._stats, *(counts for load in self._living for counts in load.all_stats)]
            counts = [self._counts, *(load.queue.counts() for load in self._living)]
            made = total(name, version, stats, counts)
            made.sampled = summed(self._sampled, SampledCounts())  # a copy
        return made
