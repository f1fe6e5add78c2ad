"""The counts of several workers, so that whichever of them is asked answers for all.

Each worker writes what it has counted into its place of a file in memory, about once a second and
when it leaves; nothing is shared on a request's path. What a worker has counted outlives it: whoever
gets its place later goes on from there, so that no total goes down. Only the last second of a worker
that was killed is lost: a place holds two copies, so that one is whole while the other is written.
"""

import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from ksrv.observe.handler_metrics import Family, HandlerMetrics
from ksrv.observe.process import ProcessValues, process_values
from ksrv.observe.traffic import Traffic, own_traffic
from ksrv.statistics import ModelStatistics, add_counts

log = logging.getLogger(__name__)

COPY_BYTES = 4 << 20
_COPIES = 2
_HEADER = struct.Struct("=QQQ")
_TRIES = 20


def _checksum(number: int, text: bytes) -> int:
    return zlib.crc32(text, number & 0xFFFFFFFF)


class Counts(msgspec.Struct):
    """What one worker has counted, and the workers that had its place before it."""

    models: list[ModelStatistics] = []
    unknown: int = 0
    process: ProcessValues = msgspec.field(default_factory=ProcessValues)
    traffic: Traffic = msgspec.field(default_factory=Traffic)
    handlers: dict[str, Family] = {}


class Counted(Protocol):
    """What a worker counts with: an engine."""

    def own_statistics(self) -> list[ModelStatistics]:
        """Return the statistics of every version that serves, of this worker alone."""

    @property
    def unknown(self) -> int:
        """How many requests to this worker named no model or version that there is."""

    @property
    def handler_metrics(self) -> HandlerMetrics:
        """The values that handlers report in this worker."""


class CountsFile:
    """The file in memory; made by the master before it forks, and inherited.

    Args:
        places: How many workers may live at a time.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self._file = os.memfd_create("ksrv-counts")

    def write(self, place: int, counts: Counts) -> None:
        """Replace the older copy in a place; only its own worker may.

        Args:
            place: The place.
            counts: What to write; more than a copy may take is logged and not written.
        """
        text = msgspec.json.encode(counts)
        if len(text) + _HEADER.size > COPY_BYTES:
            log.warning("the counts of this worker take %d bytes and are not shared", len(text))
            return
        number = 1 + max((number for number, _ in self._copies(place)), default=0)
        head = _HEADER.pack(number, len(text), _checksum(number, text))
        os.pwrite(self._file, head + text, self._offset(place, number))

    def read(self, place: int) -> Counts | None:
        """Return the newer copy of a place, or None where nothing stands.

        Args:
            place: The place.
        """
        for _ in range(_TRIES):  # its worker may write both copies while this one reads
            if copies := self._copies(place):
                return msgspec.json.decode(max(copies)[1], type=Counts)
        return None

    def _offset(self, place: int, number: int) -> int:
        return (place * _COPIES + number % _COPIES) * COPY_BYTES

    def _copies(self, place: int) -> list[tuple[int, bytes]]:
        """The copies of a place that are whole, each with its number."""
        found = []
        for copy in range(_COPIES):
            offset = self._offset(place, copy)
            head = os.pread(self._file, _HEADER.size, offset)
            if len(head) < _HEADER.size:
                continue
            number, length, checksum = _HEADER.unpack(head)
            text = os.pread(self._file, length, offset + _HEADER.size)
            if number and _checksum(number, text) == checksum:
                found.append((number, text))
        return found


class Colleagues:
    """The other workers, as one worker sees them.

    Args:
        file: The file that all share.
        place: This worker's place in it.
        lives: Tells whether a place's worker is alive.
    """

    def __init__(self, file: CountsFile, place: int, lives: Callable[[int], bool]) -> None:
        self._file = file
        self._place = place
        self._lives = lives
        self._before = file.read(place) or Counts()

    def publish(self, engine: Counted) -> None:
        """Let the others see what this worker has counted.

        Args:
            engine: What counts.
        """
        before = self._before
        models = {(one.name, one.version): one for one in engine.own_statistics()}
        for old in before.models:
            mine = models.setdefault(
                (old.name, old.version), ModelStatistics(old.name, old.version)
            )
            add_counts(mine, old)
        process = process_values()
        process.add(before.process, lives=False)
        traffic = own_traffic()
        traffic.add(before.traffic, lives=False)
        handlers = engine.handler_metrics.families([before.handlers])
        unknown = engine.unknown + before.unknown
        counts = Counts(list(models.values()), unknown, process, traffic, handlers)
        self._file.write(self._place, counts)

    def others(self) -> Iterator[tuple[Counts, bool]]:
        """Return what all others have counted, and whether they live; those before this one too."""
        yield self._before, False
        for place in range(self._file.places):
            if place != self._place and (counts := self._file.read(place)) is not None:
                yield counts, self._lives(place)
