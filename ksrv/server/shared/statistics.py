"""The statistics of all workers, so that every worker can answer for the whole server.

Each worker writes its statistics into its slot of a file in memory, about once a second and when it
leaves; nothing is shared on a request's path. The counts of a worker outlive it: the next worker in
its slot continues them, so that no total goes down. Only the last second of a worker that was
killed is lost, and no count in it was ever shown: a worker writes before it answers with its
counts. A slot has two copies, of which at least one is whole at any time.
"""

import logging
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from ksrv.observe.handler_metrics import Family
from ksrv.observe.metrics import PageValues
from ksrv.observe.process import ProcessValues, ServerValues, process_values
from ksrv.observe.traffic import Traffic, own_traffic
from ksrv.server.shared.worker_table import WorkerTable
from ksrv.statistics import LazyCounts, ModelStatistics, add_counts

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

log = logging.getLogger(__name__)

COPY_BYTES = 4 << 20
_COPIES = 2
_HEADER = struct.Struct("=QQQ")
_TRIES = 20


def _checksum(number: int, text: bytes) -> int:
    return zlib.crc32(text, number & 0xFFFFFFFF)


class WorkerStatistics(msgspec.Struct):
    """The statistics of one worker, and of the workers that had its slot before it.

    Attributes:
        models: The statistics of each model version.
        unknown: How many requests named an unknown model or version.
        process: The memory of the process.
        traffic: Connections, refusals and error answers.
        handlers: The values that handlers report, by name.
        refused: See `Engine.refused_replacements`.
        lazy: Counts of models that requests load; None if all are loaded at the start.
    """

    models: list[ModelStatistics] = []
    unknown: int = 0
    process: ProcessValues = msgspec.field(default_factory=ProcessValues)
    traffic: Traffic = msgspec.field(default_factory=Traffic)
    handlers: dict[str, Family] = {}
    refused: dict[str, dict[str, int]] = {}
    lazy: LazyCounts | None = None


class StatisticsFile:
    """The file in memory; the master makes it before it forks, and workers inherit it.

    Args:
        slots: How many workers may live at a time.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._file = os.memfd_create("ksrv-statistics")

    def write(self, slot: int, statistics: WorkerStatistics) -> None:
        """Replace the older copy in a slot; only the slot's worker may.

        Args:
            statistics: The statistics to write; if they are too long for a copy, an error is logged instead.
        """
        text = msgspec.msgpack.encode(statistics)  # JSON has no form for a gauge of NaN
        if len(text) + _HEADER.size > COPY_BYTES:
            log.warning("the statistics of this worker take %d bytes and are not shared", len(text))
            return
        number = 1 + max((number for number, _ in self._copies(slot)), default=0)
        head = _HEADER.pack(number, len(text), _checksum(number, text))
        os.pwrite(self._file, head + text, self._offset(slot, number))

    def read(self, slot: int) -> WorkerStatistics | None:
        """Return the newer copy of a slot, or None for an empty slot."""
        first = os.pread(self._file, _HEADER.size, self._offset(slot, 1))
        if not any(first):
            return None
        for _ in range(_TRIES):  # its worker may write both copies during the read
            if copies := self._copies(slot):
                return msgspec.msgpack.decode(max(copies)[1], type=WorkerStatistics)
        return None

    def _offset(self, slot: int, number: int) -> int:
        return (slot * _COPIES + number % _COPIES) * COPY_BYTES

    def _copies(self, slot: int) -> list[tuple[int, bytes]]:
        """The copies of a slot that are whole, each with its number."""
        found = []
        for copy in range(_COPIES):
            offset = self._offset(slot, copy)
            head = os.pread(self._file, _HEADER.size, offset)
            if len(head) < _HEADER.size:
                continue
            number, length, checksum = _HEADER.unpack(head)
            text = os.pread(self._file, length, offset + _HEADER.size)
            if number and _checksum(number, text) == checksum:
                found.append((number, text))
        return found


class PeerStatistics:
    """The statistics of the other workers, as one worker sees them.

    Args:
        lives: Tells whether a slot's worker is alive.
    """

    def __init__(self, file: StatisticsFile, slot: int, lives: Callable[[int], bool]) -> None:
        self._file = file
        self._slot = slot
        self._lives = lives
        self._inherited = file.read(slot) or WorkerStatistics()
        self._publishing = threading.Lock()

    def publish(self, engine: "Engine") -> None:
        """Let the other workers see this worker's statistics."""
        with self._publishing:
            self._publish(engine)

    def _publish(self, engine: "Engine") -> None:
        inherited = self._inherited
        models = {(one.name, one.version): one for one in engine.statistics()}
        for old in inherited.models:
            mine = models.setdefault(
                (old.name, old.version), ModelStatistics(old.name, old.version)
            )
            add_counts(mine, old)
        process = process_values()
        process.add(inherited.process, lives=False)
        traffic = own_traffic()
        traffic.add(inherited.traffic, lives=False)
        handlers = engine.handler_metrics.families([inherited.handlers])
        unknown = engine.unknown_requests + inherited.unknown
        self._file.write(
            self._slot,
            WorkerStatistics(
                list(models.values()),
                unknown,
                process,
                traffic,
                handlers,
                _added(engine.refused_replacements, inherited.refused),
                _lazy(engine, [(inherited, False)]),
            ),
        )

    def others(self) -> Iterator[tuple[WorkerStatistics, bool]]:
        """Return the statistics of all other workers and of this slot's earlier workers.

        Each is paired with whether its worker is alive.
        """
        yield self._inherited, False
        for slot in range(self._file.slots):
            if slot != self._slot and (found := self._file.read(slot)) is not None:
                yield found, self._lives(slot)


class ServerStatistics:
    """The statistics of the whole server, for its statistics routes and its metrics page.

    Args:
        peers: The other workers; None for a server of one process.
        table: The worker table; None without a master process.
    """

    def __init__(
        self,
        engine: "Engine",
        peers: PeerStatistics | None = None,
        table: WorkerTable | None = None,
    ) -> None:
        self._engine = engine
        self._peers = peers
        self._table = table

    def _others(self) -> Iterable[tuple[WorkerStatistics, bool]]:
        return () if self._peers is None else self._peers.others()

    def publish(self) -> None:
        """Write this worker's statistics where the other workers read them."""
        if self._peers is None:
            return
        try:
            self._peers.publish(self._engine)
        except Exception:
            log.exception(
                "the statistics of this worker could not be written for the others; it is tried again"
            )

    def models(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        """Return counts and times of the versions that serve, summed over all workers.

        Args:
            name: A model's name, or "" for all.
            version: A version's, or "" for all.

        Raises:
            NotFound: The model or version is unknown.
            NotReady: The version named does not serve.
        """
        found = self._models(name, version)
        self.publish()
        return found

    def _models(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        found = self._engine.statistics(name, version)
        by_name = {(one.name, one.version): one for one in found}
        for worker, lives in self._others():
            for other in worker.models:
                if (mine := by_name.get((other.name, other.version))) is None:
                    continue
                add_counts(mine, other)
                if lives:
                    mine.pending += other.pending
                    mine.ready = mine.ready and other.ready
        return found

    def page_values(self) -> PageValues:
        """Return what the metrics page shows."""
        process, traffic = process_values(), own_traffic()
        others = list(self._others())
        refused = _added(
            self._engine.refused_replacements, *(worker.refused for worker, _ in others)
        )
        for worker, lives in others:
            process.add(worker.process, lives=lives)
            traffic.add(worker.traffic, lives=lives)
        values = PageValues(
            self._models(),
            self._engine.unserved(),
            self._engine.unknown_requests + sum(worker.unknown for worker, _ in others),
            process,
            traffic,
            self._engine.handler_metrics.exposition(worker.handlers for worker, _ in others),
            self._server_values(),
            refused,
            _lazy(self._engine, others),
        )
        # The next page, from another worker, must not have smaller totals: Prometheus would take them for a restart.
        self.publish()
        return values

    def _server_values(self) -> ServerValues | None:
        table = self._table
        if table is None:
            return None
        return ServerValues(
            table.restarts,
            table.last_reload,
            table.last_reload_successful,
            table.certificate_expiry or None,
            table.started or None,
        )


def _added(*counts: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return the sums of counts by name and version."""
    sums: dict[str, dict[str, int]] = {}
    for one in counts:
        for name, versions in one.items():
            for version, count in versions.items():
                found = sums.setdefault(name, {})
                found[version] = found.get(version, 0) + count
    return sums


def _lazy(engine: "Engine", others: Iterable[tuple[WorkerStatistics, bool]]) -> LazyCounts | None:
    """Return the counts of models that requests load, over all workers."""
    if engine.lazy is None:
        return None
    counts = engine.lazy.counts()
    for worker, lives in others:
        if worker.lazy is not None:
            counts.add(worker.lazy, lives=lives)
    return counts
