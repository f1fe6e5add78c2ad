"""The log of loads and unloads, by which a change in one worker reaches all the others.

A repository call reaches one worker. It is carried out there and then written into a file in memory
that all workers share; each of them reads the new entries and applies them, and the caller is answered
once they have. A worker that cannot load a model says so in its log, and goes on serving the old one.
A worker that starts later, as a replacement or after a reload, leaves unloaded models out.
"""

import fcntl
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Literal

import msgspec

from ksrv.errors import KsrvError, quote
from ksrv.server import changeable_settings
from ksrv.server.workers.worker_table import WorkerTable

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
LONE_LOOK_SECONDS = 1.0
WAIT_SECONDS = 0.02

Kind = Literal["load", "unload", "reload"] | changeable_settings.Kind


class RepositoryChange(msgspec.Struct):
    """One change.

    Attributes:
        slot: The slot of the worker that made it.
        kind: The kind of the change.
        name: The model's name; "" for all of the repository. What a setting becomes; see
            `ksrv.server.changeable_settings.apply`.
    """

    slot: int
    kind: Kind
    name: str


class ChangeLog:
    """The file in memory; made by the master before it forks, and inherited. It only grows."""

    def __init__(self) -> None:
        self._file = os.memfd_create("ksrv-changes")
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)

    @property
    def end(self) -> int:
        """Where the next change will stand."""
        return os.fstat(self._file).st_size

    def append(self, change: RepositoryChange) -> int:
        """Add a change.

        Returns:
            The position behind it.
        """
        os.write(self._file, msgspec.json.encode(change) + b"\n")
        return self.end

    def read(self, since: int) -> tuple[list[RepositoryChange], int]:
        """Return the changes from a position on, and the position behind them."""
        text = os.pread(self._file, self.end - since, since)
        lines = text[: text.rfind(b"\n") + 1]
        changes = [msgspec.json.decode(line, type=RepositoryChange) for line in lines.splitlines()]
        return changes, since + len(lines)


class ChangeReplicator:
    """Publishes the changes of one worker, and applies the changes of the other workers.

    Args:
        file: The file that all workers share.
        table: The workers, and how far each of them has read.
        slot: This worker's slot.

    Attributes:
        unloaded: The models that were unloaded on purpose before this worker started.
        loaded: Those that were loaded on purpose.
    """

    def __init__(self, file: ChangeLog, table: WorkerTable, slot: int) -> None:
        self._file = file
        self._table = table
        self._slot = slot
        # What was loaded before is on the disk, which this worker is about to read.
        before, self._position = file.read(0)
        self.unloaded: set[str] = set()
        self.loaded: set[str] = set()
        for change in before:
            if change.kind == "unload":
                self.unloaded.add(change.name)
                self.loaded.discard(change.name)
            elif change.kind == "load":
                self.unloaded.discard(change.name)
                self.loaded.add(change.name)
            elif change.kind in ("level", "trace"):
                changeable_settings.apply(change.kind, change.name)
        table.acknowledge(slot, self._position)

    def publish(self, kind: Kind, name: str) -> None:
        """Publish a change of this worker, and wait until the other workers have applied it.

        Args:
            kind: The kind of the change.
            name: The model's name; "" for all of the repository.
        """
        end = self._file.append(RepositoryChange(self._slot, kind, name))
        while not self._table.acknowledged(end, besides=self._slot):
            time.sleep(WAIT_SECONDS)

    def change_setting(self, kind: changeable_settings.Kind, text: str) -> None:
        """Change a setting in every worker; see `ksrv.server.changeable_settings.apply`."""
        changeable_settings.apply(kind, text)
        self.publish(kind, text)

    def run(self, engine: "Engine", ended: threading.Event) -> None:
        """Apply the changes of the others until the worker leaves.

        Args:
            engine: The engine to change.
            ended: Set when the worker leaves.
        """
        while not ended.wait(LONE_LOOK_SECONDS if self._table.target_count == 1 else LOOK_SECONDS):
            changes, position = self._file.read(self._position)
            for change in changes:
                if change.slot != self._slot:
                    _apply(engine, change)
            self._position = position
            self._table.acknowledge(self._slot, position)


def _apply(engine: "Engine", change: RepositoryChange) -> None:
    try:
        if change.kind == "level" or change.kind == "trace":
            changeable_settings.apply(change.kind, change.name)
            return
        engine.follow(change.kind, change.name)
    except KsrvError as error:
        log.error("another worker's %s of %s: %s", change.kind, _shown(change), error.message)
    except Exception:
        log.exception("another worker's %s of %s failed", change.kind, _shown(change))


def _shown(change: RepositoryChange) -> str:
    return quote(change.name) if change.name else "all"
