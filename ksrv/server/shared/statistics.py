"""The statistics of all workers, so that every worker can answer for the whole server.

Each worker writes its statistics into its slot of a memfd, about once a second and when it leaves. Requests write only
into the worker's private counts. The next worker in a slot continues the counts of the previous worker, so that no
total goes down. If a worker is killed, its last second is lost; but no client has seen counts of that second, because a
worker writes its slot before it answers with counts. A slot has two copies, which are overwritten in turn, so that a
reader always finds a complete copy.
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
# Before a copy: its number, which grows with each write; its length; its checksum.
_HEADER = struct.Struct("=QQQ")
_TRIES = 20


def _checksum(number: int, text: bytes) -> int:
    return zlib.crc32(text, number & 0xFFFFFFFF)


class StatisticsFile:
    """The memfd. The master makes it before it forks, and workers inherit it.

    Args:
        slots: How many workers may live at a time.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._file = os.memfd_create("ksrv-statistics")

    def write(self, slot: int, statistics: WorkerStatistics) -> None:
        """Replace the older copy in a slot; only the slot's worker may.

        Args:
            statistics: The statistics to write; if they are too long for a copy, a warning is logged instead.
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
        # The first write of a slot has the number 1, so without it the slot is empty.
        first = os.pread(self._file, _HEADER.size, self._offset(slot, 1))
        if not any(first):
            return None
        for _ in range(_TRIES):  # the slot's worker may overwrite both copies during a slow read
            if copies := self._copies(slot):
                return msgspec.msgpack.decode(max(copies)[1], type=WorkerStatistics)
        return None

    def _offset(self, slot: int, number: int) -> int:
        return (slot * _COPIES + number % _COPIES) * COPY_BYTES

    def _copies(self, slot: int) -> list[tuple[int, bytes]]:
        """Return the complete copies of a slot, each with its number."""
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
        file: The statistics of all workers. If left out, this process is the only worker.
        table: The worker table; None without a master process.
        slot: This worker's slot.
    """

    engine: "Engine"
    file: StatisticsFile = field(default_factory=lambda: StatisticsFile(1))
    table: WorkerTable | None = None
    slot: int = 0

    def __post_init__(self) -> None:
        # The counts of this slot's earlier workers.
        self._inherited = self.file.read(self.slot) or WorkerStatistics()
        self._publishing = threading.Lock()

    def publish(self) -> None:
        """Write this worker's statistics, with the counts of this slot's earlier workers, for the other workers."""
        try:
            with self._publishing:
                own = worker_statistics(self.engine)
                # `add` leaves out versions that `own` lacks, so versions that only earlier workers had begin at 0 here.
                known = {(model.name, model.version) for model in own.models}
                own.models += [
                    ModelStatistics(model.name, model.version)
                    for model in self._inherited.models
                    if (model.name, model.version) not in known
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
        """Return counts and times of the versions that serve, summed over all workers; see `Engine.statistics`."""
        found = self.engine.statistics(name, version)
        for worker, lives in self._others():
            add_models(found, worker.models, lives=lives)
        self.publish()  # before the counts are shown; see the module's docstring
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
