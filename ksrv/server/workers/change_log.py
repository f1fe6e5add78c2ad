"""The log of changes that all workers of a server share. All workers make the changes in the order of the log.

The log is a memfd that the master makes before it forks. Entries are appended under a lock, and identified by the
position after them. Nothing is overwritten, so readers need no lock. When the log has grown, a compaction appends an
entry of the kind "kept" that contains the entries which still matter. A worker that starts later reads from there. The
compaction also frees the memory of the entries that every worker has read, but only up to the previous "kept", because
a worker that starts may be reading from there.
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
"""The least growth of the log before it is compacted."""

LOCK_SECONDS = 10.0
"""How long an append waits for the lock. Another worker holds it for microseconds, unless that worker is stopped."""

MADE = -1
"""The slot that `entries_for_new_worker` gives an entry whose change a worker has made, so that nobody has to make it."""

_LOCK_POLL_SECONDS = 0.001
_PREFIX = struct.Struct("<Q")  # the length of an entry, before the entry

Kind: TypeAlias = ChangeKind | Literal["setting", "done", "kept", "start"]


class LogEntry(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One entry.

    Attributes:
        kind: A change of a model or a setting, or: "done", a worker has made a change or failed to; "kept", see above;
            "start", the models that the workers of one generation load when they start.
        slot: The slot of the worker that appended the entry, or `MADE`.
        change: The change of a model.
        setting: For "setting", the change of a setting.
        position: For "done", the position of the change; within a "kept", the position of the entry.
        error: For "done", why the change has failed; else "".
        kept: For "kept", the entries that still matter.
        generation: For "start", the generation of the workers.
        pid: For "start", the process that has read the models from the disk.
        models: For "start", the models, with their sources. For "done" with an error, the model as it serves now, if
            the change was made in part.
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
    def is_made(self) -> bool:
        """Whether a worker has made the change. Known only of the entries that `entries_for_new_worker` returns."""
        return self.slot == MADE

    @property
    def subject(self) -> tuple[str, str]:
        """The model or setting that the entry is about. A later entry with the same subject replaces it."""
        if self.change is not None:
            return "model", self.change.name
        if self.setting is not None:
            return self.setting.name, self.setting.model
        if self.kind == "start":
            return "start", str(self.generation)
        return self.kind, ""


class Cell(IntEnum):
    """The counters of the log that all processes share. All are positions or lengths in bytes."""

    END = 0
    """The position of the next entry."""
    KEPT_BEGIN = 1
    """The position of the newest "kept"."""
    KEPT_LENGTH = 2
    """The length of the newest "kept", with the prefix."""
    GIVEN_BACK = 3
    """The position before which the memory was freed."""


class ChangeLog:
    """The log; see the module's docstring.

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
            since: The position at which the caller began to read the disk. Append nothing if an entry after it has
                outdated the data that were read (see `_overtakes`), or if the log from there on was freed.

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
                if any(_overtakes(change, entry) for _, change in later for entry in entries):
                    return None
            positions = [self._write(entry) for entry in entries]
            # Compact when the log has grown by more than twice the last "kept", so that the cost per entry is constant.
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
        """Append a "kept", and free the pages that nobody reads any more. The caller holds the lock."""
        begin, kept_before = self.end, self._cells[Cell.KEPT_BEGIN]
        kept = LogEntry(kind="kept", slot=MADE, kept=entries_for_new_worker(self.read()))
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
        """Hold the lock against the other threads of this process, and then the lock against other processes."""
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
    # A handler process can write to the log through /proc. marshal, unlike pickle, makes only plain values. Unlike
    # MessagePack, it can encode every str and int, such as names of files that are not UTF-8.
    return msgspec.convert(marshal.loads(text), LogEntry, dec_hook=path_of)


def _overtakes(later: LogEntry, entry: LogEntry) -> bool:
    """Whether a later entry outdates the data that were read from the disk for `entry`: a change of the same model.

    A start is outdated by a change of any model, and by another start of the same generation.
    """
    if entry.kind == "start":
        return later.change is not None or later.subject == entry.subject
    return later.change is not None and later.subject == entry.subject


def entries_for_new_worker(entries: Sequence[tuple[int, LogEntry]]) -> list[LogEntry]:
    """Return the entries that a worker which starts now has to know, with their positions.

    For each subject these are the last entry that a worker has made, marked `MADE`, and the later entries that no
    worker has made yet. A change that failed in the worker that its client asked is left out, or reduced to the part
    that was made. Starts of replaced generations are left out.

    Args:
        entries: The log, from the position at which a new worker begins.
    """
    done: dict[int, LogEntry] = {}  # by the position of the change
    found: dict[tuple[str, str], list[LogEntry]] = {}  # by subject
    asked: dict[int, int] = {}  # by the position of the change: the worker that its client asked
    for position, entry in entries:
        if entry.kind == "kept":
            for kept in entry.kept:
                found.setdefault(kept.subject, []).append(kept)
                asked[kept.position] = kept.slot
        elif entry.kind != "done":
            entry.position = position
            found.setdefault(entry.subject, []).append(entry)
            asked[position] = entry.slot
        elif asked.get(entry.position) == entry.slot:  # the asked worker's outcome wins over others
            done[entry.position] = entry
        elif not entry.error:
            done.setdefault(entry.position, entry)
    left = []
    for several in found.values():
        left += _last_of(several, done)
    newest = max((entry.generation for entry in left if entry.kind == "start"), default=0)
    # The previous generation may still serve, and its workers may have to be replaced.
    left = [entry for entry in left if entry.kind != "start" or entry.generation >= newest - 1]
    return sorted(left, key=lambda entry: entry.position)


def _last_of(entries: list[LogEntry], done: dict[int, LogEntry]) -> list[LogEntry]:
    """Return the entries of one subject that still matter; see `entries_for_new_worker`."""
    left: list[LogEntry] = []
    for entry in entries:
        outcome = done.get(entry.position)
        if outcome is not None and outcome.error:
            if entry.change is None or entry.change.name not in outcome.models:
                continue
            entry.change = replace(entry.change, entry=outcome.models[entry.change.name])
        if entry.kind == "update" and any(earlier.kind == "unload" for earlier in left):
            continue  # an update does not load a model that was unloaded on purpose
        if outcome is not None:
            entry.slot = MADE  # a "kept" has no "done" that the next compaction could find
        if entry.is_made:
            left = []
        left.append(entry)
    return left


def _lock_timeout() -> NotReady:
    return NotReady(
        f"the log of changes has been locked for {LOCK_SECONDS:g} s by a worker that is stopped; "
        "nothing was changed"
    )
