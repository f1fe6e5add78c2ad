"""Loads and unloads that one worker was asked for, so that the others follow.

A repository call reaches one worker. It is carried out there and then written into a file in memory
that all workers share; each of them reads what is new and does the same, and the caller is answered
once they have. What a worker cannot load it says in its log, and goes on serving what it has. A worker
that starts later, in the place of another or after a reload, leaves away what was unloaded.
"""

import fcntl
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Literal

import msgspec

from ksrv.errors import KsrvError, quote
from ksrv.server.workers.worker_table import WorkerSlots

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
LONE_LOOK_SECONDS = 1.0
WAIT_SECONDS = 0.02

Kind = Literal["load", "unload", "reload"]


class Change(msgspec.Struct):
    """One change.

    Attributes:
        place: The worker that made it.
        kind: What was done.
        name: The model's name; "" for all of the repository.
    """

    place: int
    kind: Kind
    name: str


class ChangesFile:
    """The file in memory; made by the master before it forks, and inherited. It only grows."""

    def __init__(self) -> None:
        self._file = os.memfd_create("ksrv-changes")
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)

    @property
    def end(self) -> int:
        """Where the next change will stand."""
        return os.fstat(self._file).st_size

    def append(self, change: Change) -> int:
        """Add a change.

        Returns:
            A place behind it.
        """
        os.write(self._file, msgspec.json.encode(change) + b"\n")
        return self.end

    def read(self, since: int) -> tuple[list[Change], int]:
        """Return the changes from a place on, and the place behind them."""
        text = os.pread(self._file, self.end - since, since)
        lines = text[: text.rfind(b"\n") + 1]
        changes = [msgspec.json.decode(line, type=Change) for line in lines.splitlines()]
        return changes, since + len(lines)


class Follower:
    """One worker's part: it tells of its changes and makes those of the others.

    Args:
        file: The file that all share.
        slots: Who lives, and how far each worker has read.
        place: This worker's slot.

    Attributes:
        unloaded: The models that were unloaded on purpose before this worker started.
    """

    def __init__(self, file: ChangesFile, slots: WorkerSlots, place: int) -> None:
        self._file = file
        self._slots = slots
        self._place = place
        # What was loaded before is on the disk, which this worker is about to read.
        before, self._position = file.read(0)
        self.unloaded: set[str] = set()
        for change in before:
            if change.kind == "unload":
                self.unloaded.add(change.name)
            elif change.kind == "load":
                self.unloaded.discard(change.name)
        slots.set_heard(place, self._position)

    def tell(self, kind: Kind, name: str) -> None:
        """Have the other workers make a change that this one has made, and wait until they have.

        Args:
            kind: What was done.
            name: The model's name; "" for all of the repository.
        """
        end = self._file.append(Change(self._place, kind, name))
        while not self._slots.heard(end, besides=self._place):
            time.sleep(WAIT_SECONDS)

    def follow(self, engine: "Engine", ended: threading.Event) -> None:
        """Make the changes of the others until the worker leaves.

        Args:
            engine: What is changed.
            ended: Set when the worker leaves.
        """
        while not ended.wait(LONE_LOOK_SECONDS if self._slots.wanted == 1 else LOOK_SECONDS):
            changes, position = self._file.read(self._position)
            for change in changes:
                if change.place != self._place:
                    _make(engine, change)
            self._position = position
            self._slots.set_heard(self._place, position)


def _make(engine: "Engine", change: Change) -> None:
    try:
        engine.follow(change.kind, change.name)
    except KsrvError as error:
        log.error("another worker's %s of %s: %s", change.kind, _shown(change), error.message)
    except Exception:
        log.exception("another worker's %s of %s failed", change.kind, _shown(change))


def _shown(change: Change) -> str:
    return quote(change.name) if change.name else "all"
