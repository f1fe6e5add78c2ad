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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from ksrv.observe.metrics import OtherNames, metrics_page
from ksrv.observe.process import ServerValues, process_values
from ksrv.observe.traffic import own_traffic
from ksrv.observe.worker_statistics import WorkerStatistics, add_models
from ksrv.server.shared.worker_table import WorkerTable
from ksrv.statistics import ModelStatistics

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

log = logging.getLogger(__name__)

COPY_BYTES = 4 << 20
_COPIES = 2
_HEADER = struct.Struct("=QQQ")
_TRIES = 20


def _checksum(number: int, text: bytes) -> int:
    return zlib.crc32(text, number & 0xFFFFFFFF)


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


@dataclass(eq=False)
class ServerStatistics:
    """The statistics of this worker and of the whole server.

    Args:
        file: The statistics of all workers; of a server of one process if left out.
        table: The workers; None without a master process.
        slot: This worker's.
    """

    engine: "Engine"
    file: StatisticsFile = field(default_factory=lambda: StatisticsFile(1))
    table: WorkerTable | None = None
    slot: int = 0

    def __post_init__(self) -> None:
        self._inherited = self.file.read(self.slot) or WorkerStatistics()
        self._publishing = threading.Lock()

    def publish(self) -> None:
        """Write this worker's statistics where the other workers read them."""
        try:
            with self._publishing:
                own = worker_statistics(self.engine)
                known = {(one.name, one.version) for one in own.models}
                own.models += [
                    ModelStatistics(one.name, one.version)
                    for one in self._inherited.models
                    if (one.name, one.version) not in known
                ]
                own.add(self._inherited, lives=False)
                self.file.write(self.slot, own)
        except Exception:
            log.exception(
                "the statistics of this worker could not be written for the others; it is tried again"
            )

    def _others(self) -> Iterator[tuple[WorkerStatistics, bool]]:
        """Yield the statistics of all other workers and of this slot's earlier workers, and whether the worker lives."""
        yield self._inherited, False
        for slot in range(self.file.slots):
            if slot != self.slot and (found := self.file.read(slot)) is not None:
                yield found, self.table is not None and self.table.alive(slot)

    def models(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        """Return counts and times of the versions that serve, summed over all workers.

        Args:
            name: A model's name, or "" for all.
            version: A version's, or "" for all.

        Raises:
            NotFound: The model or version is unknown.
            NotReady: The version named does not serve.
        """
        found = self.engine.statistics(name, version)
        for worker, lives in self._others():
            add_models(found, worker.models, lives=lives)
        self.publish()
        return found

    def total(self) -> WorkerStatistics:
        """Return the sums over all workers, with the model versions that serve here."""
        sums = worker_statistics(self.engine)
        for worker, lives in self._others():
            sums.add(worker, lives=lives)
        return sums

    def metrics_page(self, other_names: OtherNames = lambda models: ()) -> bytes:
        """Return the page of metrics.

        Args:
            other_names: See `ksrv.observe.metrics.metrics_page`.
        """
        table = self.table
        server = None
        if table is not None:
            server = ServerValues(
                table.restarts,
                table.last_reload,
                table.reload_successful,
                table.certificate_expiry or None,
                table.started,
            )
        page = metrics_page(self.total(), self.engine.unserved(), server, other_names)
        # The next page, from another worker, must not have smaller totals: Prometheus would take them for a restart.
        self.publish()
        return page


def worker_statistics(engine: "Engine") -> WorkerStatistics:
    """Return the statistics of this process."""
    return WorkerStatistics(
        engine.statistics(),
        engine.unknown_requests,
        process_values(),
        own_traffic(),
        engine.handler_metrics.families(),
        engine.refused_replacements,
        None if engine.lazy is None else engine.lazy.counts(),
    )
