"""The log of changes that all workers of a server share: one order for all of them.

It is a file in memory, made by the master before it forks. Entries are appended under a lock and identified by the
position after them; nothing is ever overwritten, so that a reader needs no lock. Once the log has grown, an entry of
the kind "kept" is appended, with the entries that still matter. A worker that starts later begins there, and the memory
of the entries that every worker has read is given back, up to the previous "kept", because a worker that starts may be
reading from there.
"""

import fcntl
import marshal
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from ksrv.engine.changes import ChangeKind, RepositoryChange
from ksrv.errors import NotReady
from ksrv.model.config import path_of
from ksrv.repository.entry import ModelEntry
from ksrv.server.shared.parts import SettingChange

COMPACT_BYTES = 1 << 20
"""By how much the log grows, at least, before it is compacted."""

LOCK_SECONDS = 10.0
"""How long an append waits for another worker's, which takes microseconds unless that worker is stopped."""

_LOCK_POLL_SECONDS = 0.001
_PREFIX = struct.Struct("<Q")

Kind: TypeAlias = ChangeKind | Literal["setting", "done", "kept", "start"]


class LogEntry(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One entry.

    Attributes:
        kind: "done" means that a worker has made a change; "kept" has earlier entries that still matter; "start" has the
            models that the workers of one generation load when they start.
        slot: The slot of the worker that appended it.
        change: The change of a model.
        setting: Of "setting", the change of a setting.
        position: Of "done", the position of the change; within "kept", the position of the entry.
        error: Of "done", why the change has failed; else "".
        kept: The entries that are left.
        generation: Of "start", the generation of the workers.
        pid: Of "start", the process that has read the models.
        models: Of "start", the models, with their sources. Of "done", the model as it serves since a change that
            could be made in part.
    """

    kind: Kind
    slot: int
    change: RepositoryChange | None = None
    setting: SettingChange | None = None
    position: int = 0
    error: str = ""
    kept: list["LogEntry"] = []
    generation: int = 0
    pid: int = 0
    models: dict[str, ModelEntry] = {}

    @property
    def subject(self) -> tuple[str, str]:
        """The subject of the entry: a later entry on the same subject replaces it."""
        if self.change is not None:
            return "model", self.change.name
        if self.setting is not None:
            return self.setting.name, self.setting.model
        if self.kind == "start":
            return "start", str(self.generation)
        return self.kind, ""


class Cell(IntEnum):
    """The state of the log that all processes share, in bytes."""

    END = 0
    KEPT_BEGIN = 1
    """The position of the newest "kept"."""
    KEPT_LENGTH = 2
    GIVEN_BACK = 3
    """How far memory was given back."""


class ChangeLog:
    """The file in memory.

    Args:
        read_by_all: Returns the position up to which every worker has read.
    """

    def __init__(self, read_by_all: Callable[[], int] = lambda: 0) -> None:
        self._file = os.memfd_create("ksrv-changes")
        # A separate file, because closing any descriptor of a file releases this process's lock on it.
        self._lock_file = os.memfd_create("ksrv-changes-lock")
        self._shared = mmap.mmap(-1, len(Cell) * _PREFIX.size)
        self._cells = memoryview(self._shared).cast("q")
        self._read_by_all = read_by_all
        self._thread_lock = threading.Lock()

    @property
    def end(self) -> int:
        """The position at which the next entry will begin."""
        return self._cells[Cell.END]

    def append(self, entries: Sequence[LogEntry], *, since: int | None = None) -> list[int] | None:
        """Append entries, next to each other.

        Args:
            since: Append nothing if a change of one of their models, or for a start a change of any model or another
                start, was appended from this position on, or if the log from there on is not known any more.

        Returns:
            The position after each; None if nothing was appended.

        Raises:
            NotReady: A worker that is stopped holds the lock.
        """
        with self._locked():
            if since is not None:
                if since < self._cells[Cell.GIVEN_BACK]:
                    return None
                later = self.read(since)
                if any(_overtakes(one, entry) for _, one in later for entry in entries):
                    return None
            positions = [self._write(entry) for entry in entries]
            kept_since, kept_length = self._cells[Cell.KEPT_BEGIN], self._cells[Cell.KEPT_LENGTH]
            grown = self.end - kept_since - kept_length
            if grown > max(COMPACT_BYTES, 2 * kept_length):
                self._compact()
            return positions

    def read(self, since: int | None = None) -> list[tuple[int, LogEntry]]:
        """Return the entries from a position on, each with the position after it.

        Args:
            since: The position; None for the entries that a new worker needs.
        """
        entries = []
        position = self._cells[Cell.KEPT_BEGIN] if since is None else since
        end = self.end
        while position < end:
            (length,) = _PREFIX.unpack(os.pread(self._file, _PREFIX.size, position))
            text = os.pread(self._file, length, position + _PREFIX.size)
            position += _PREFIX.size + length
            entries.append((position, _read_entry(text)))
        return entries

    def _write(self, entry: LogEntry) -> int:
        # A worker that is killed here leaves bytes after the end, which the next writer overwrites.
        text = marshal.dumps(msgspec.to_builtins(entry, builtin_types=(bytes,), enc_hook=str))
        data = _PREFIX.pack(len(text)) + text
        end = self.end
        written = 0
        while written < len(data):
            written += os.pwrite(self._file, data[written:], end + written)
        self._cells[Cell.END] = end + len(data)
        return end + len(data)

    def _compact(self) -> None:
        begin, kept_before = self.end, self._cells[Cell.KEPT_BEGIN]
        kept = LogEntry(kind="kept", slot=-1, kept=entries_for_new_worker(self.read()))
        self._cells[Cell.KEPT_LENGTH] = self._write(kept) - begin
        self._cells[Cell.KEPT_BEGIN] = begin
        page = mmap.PAGESIZE
        read = min(self._read_by_all(), kept_before) // page * page
        if read > self._cells[Cell.GIVEN_BACK]:
            self._cells[Cell.GIVEN_BACK] = read
            with mmap.mmap(self._file, read) as memory:
                memory.madvise(mmap.MADV_REMOVE, 0, read)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        give_up = time.monotonic() + LOCK_SECONDS
        if not self._thread_lock.acquire(timeout=LOCK_SECONDS):
            raise _lock_timeout()
        try:
            while True:
                try:
                    fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() > give_up:
                        raise _lock_timeout() from None
                    time.sleep(_LOCK_POLL_SECONDS)
            try:
                yield
            finally:
                fcntl.lockf(self._lock_file, fcntl.LOCK_UN)
        finally:
            self._thread_lock.release()


def _read_entry(text: bytes) -> LogEntry:
    # A handler process can write to the log through /proc: marshal, unlike pickle, makes plain values alone. Unlike
    # MessagePack it has every text and integer, such as names of files that are no UTF-8.
    return msgspec.convert(marshal.loads(text), LogEntry, dec_hook=path_of)


def _overtakes(later: LogEntry, entry: LogEntry) -> bool:
    """Whether an entry that was appended meanwhile outdates the data that were read for another entry."""
    if entry.kind == "start":
        return later.change is not None or later.subject == entry.subject
    return later.change is not None and later.subject == entry.subject


def entries_for_new_worker(entries: Sequence[tuple[int, LogEntry]]) -> list[LogEntry]:
    """Return the entries that a worker which starts now has to know, with their positions.

    A change that its requesting worker could not make is left out, or reduced to the part that was made, and starts of
    replaced generations are left out. Of each subject the last entry is left, followed by the entries that no worker
    has done yet.

    Args:
        entries: The log, from the position at which a new worker begins.
    """
    done: dict[int, LogEntry] = {}
    found: dict[tuple[str, str], list[LogEntry]] = {}
    asked: dict[int, int] = {}
    for position, entry in entries:
        if entry.kind == "kept":
            for one in entry.kept:
                found.setdefault(one.subject, []).append(one)
                asked[one.position] = one.slot
        elif entry.kind != "done":
            entry.position = position
            found.setdefault(entry.subject, []).append(entry)
            asked[position] = entry.slot
        elif asked.get(entry.position) == entry.slot:
            done[entry.position] = entry
        elif not entry.error:
            done.setdefault(entry.position, entry)
    left = []
    for several in found.values():
        left += _last_of(several, done)
    newest = max((one.generation for one in left if one.kind == "start"), default=0)
    left = [one for one in left if one.kind != "start" or one.generation >= newest - 1]
    return sorted(left, key=lambda one: one.position)


def _last_of(entries: list[LogEntry], done: dict[int, LogEntry]) -> list[LogEntry]:
    left: list[LogEntry] = []
    for entry in entries:
        outcome = done.get(entry.position)
        if outcome is not None and outcome.error:
            if entry.change is None or entry.change.name not in outcome.models:
                continue
            entry.change = replace(entry.change, entry=outcome.models[entry.change.name])
        if entry.kind == "update" and any(one.kind == "unload" for one in left):
            continue  # it was unloaded on purpose
        if outcome is not None:
            # Marked, for the next compaction finds no "done".
            entry.slot = -1
        if entry.slot == -1:
            left = []
        left.append(entry)
    return left


def _lock_timeout() -> NotReady:
    return NotReady(
        f"the log of changes has been locked for {LOCK_SECONDS:g} s by a worker that is stopped; "
        "nothing was changed"
    )
