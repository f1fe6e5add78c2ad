"""The counts of several workers, so that whichever of them is asked answers for all.

Each worker writes what it has counted into its place of a file in memory, about once a second and
when it leaves; nothing is shared on a request's path. What a worker has counted outlives it: whoever
gets its place later goes on from there, so that no total goes down. Only the last second of a worker
that was killed is lost.
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
from ksrv.observe.statistics import ModelStatistics, add_counts

log = logging.getLogger(__name__)

PLACE_BYTES = 4 << 20
_HEADER = struct.Struct("=QQ")
_TRIES = 20


class Counts(msgspec.Struct):
    """What one worker has counted, and the workers that had its place before it."""

    models: list[ModelStatistics] = []
    unknown: int = 0
    process: ProcessValues = msgspec.field(default_factory=ProcessValues)
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
        """Replace what stands in a place; only its own worker may.

        Args:
            place: The place.
            counts: What to write; more than a place holds is logged and not written.
        """
        text = msgspec.json.encode(counts)
        if len(text) + _HEADER.size > PLACE_BYTES:
            log.warning("the counts of this worker take %d bytes and are not shared", len(text))
            return
        os.pwrite(self._file, _HEADER.pack(len(text), zlib.crc32(text)) + text, place * PLACE_BYTES)

    def read(self, place: int) -> Counts | None:
        """Return what stands in a place, or None where nothing does or it is being written.

        Args:
            place: The place.
        """
        for _ in range(_TRIES):
            head = os.pread(self._file, _HEADER.size, place * PLACE_BYTES)
            if len(head) < _HEADER.size:
                return None
            length, checksum = _HEADER.unpack(head)
            if length == 0:
                return None
            text = os.pread(self._file, length, place * PLACE_BYTES + _HEADER.size)
            if zlib.crc32(text) == checksum:
                return msgspec.json.decode(text, type=Counts)
        return None


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
        handlers = engine.handler_metrics.families([before.handlers])
        counts = Counts(list(models.values()), engine.unknown + before.unknown, process, handlers)
        self._file.write(self._place, counts)

    def others(self) -> Iterator[tuple[Counts, bool]]:
        """Return what all others have counted, and whether they live; those before this one too."""
        yield self._before, False
        for place in range(self._file.places):
            if place != self._place and (counts := self._file.read(place)) is not None:
                yield counts, self._lives(place)
