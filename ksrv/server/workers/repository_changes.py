"""Makes the changes that a client asks one worker for in all workers, in one order.

A control call reaches one worker. That worker appends the change to the log that all workers share (`change_log`). A
thread of every worker, also of that worker, reads the log, makes the changes, and appends a "done" for each. The caller
gets an answer when all workers that serve have made the change, or an error that names the workers that have not.

A new worker loads the models that the first worker of its generation has read from the disk, and the log's changes
since. So all workers serve the same, even if the files have changed.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ksrv.dialects import registry
from ksrv.engine.changes import Look
from ksrv.engine.registry import again
from ksrv.errors import DeadlineExceeded, HandlerFailed, KsrvError, NotReady, quote
from ksrv.repository.entry import ModelEntry
from ksrv.server.shared.parts import SettingChange
from ksrv.server.shared.worker_table import CAPACITY, WorkerTable
from ksrv.server.workers.change_log import ChangeLog, LogEntry, entries_for_new_worker

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""Seconds between two looks at the log for changes that other workers were asked for."""

LONE_LOOK_SECONDS = 1.0
"""The same if the server has one worker."""

WAIT_SECONDS = 0.02
"""Seconds between two looks at the log while a call waits for other workers."""

LAG_SECONDS = 10.0
"""The other workers get twice the time that the asked worker needed, and this on top."""

MOST_READINGS = 5
"""How often the disk is read for a change: again, if a change of the same model was appended meanwhile. The last
reading is appended in any case."""

_UNWRITABLE_LOG_WARNING = (
    "a worker that replaces this worker will load the models as they are on the disk then, which may differ from the models "
    "that serve now: %s"
)
"""The consequence for later workers if the log cannot be written."""


class ChangeReplicator:
    """Makes the changes of the log in this worker, and appends the changes that clients request from this worker.

    Args:
        before_notify: Called when this worker has made a change of models, before its caller learns of it.

    Attributes:
        unloaded: The models that calls had unloaded before this worker started.
        loaded: The models that calls had loaded before this worker started.
        configs: The configurations that those calls gave, by model.
    """

    def __init__(
        self,
        file: ChangeLog,
        table: WorkerTable,
        slot: int,
        before_notify: Callable[[], object] = lambda: None,
    ) -> None:
        self._file = file
        self._table = table
        self._slot = slot
        self._changed = threading.Condition()
        self._wake = threading.Event()
        # Under `_changed`: the outcomes of the changes that wait in `_publish`, by position and slot. An outcome is "",
        # the error of this worker, or the error's text of another worker.
        self._outcomes: dict[int, dict[int, str | Exception]] = {}
        # Under `_changed`: by model, the changes that the model's thread `ksrv-change` has not begun.
        self._chains: dict[str, deque[tuple[int, LogEntry]]] = {}
        # The "start" by which this worker loads, and the changes that it makes after that; see `models_to_load`.
        self._start: LogEntry | None = None
        self._pending: list[tuple[int, LogEntry]] = []
        self.unloaded: set[str] = set()
        self.loaded: set[str] = set()
        self.configs: dict[str, str] = {}
        self._before_notify = before_notify
        before = file.read()
        self._position = before[-1][0] if before else 0
        left = entries_for_new_worker(before)
        # The positions of the changes that neither this worker nor any other makes any more; see `_is_abandoned`.
        self._abandoned = {entry.position for entry in left if self._is_abandoned(entry)}
        for entry in left:
            if entry.change is not None and entry.position in self._abandoned:
                log.error(
                    "the %s of %s was not carried out, because the workers that were at it have ended; ask for it again",
                    entry.kind,
                    quote(entry.change.name),
                )
            else:
                self._apply_earlier(entry)
        table.begin_following(slot, self._position)

    # ---- the start --------------------------------------------------------------------------

    def models_to_load(
        self, look: Callable[[], Mapping[str, ModelEntry]]
    ) -> Mapping[str, ModelEntry]:
        """Return the models that this worker loads when it starts.

        The first worker of a generation reads them from the disk and appends them as a "start". The other workers of
        the generation load the models of that entry, with the changes since. So does a worker that replaces one of them
        later.

        Raises:
            RepositoryError: A path of the repository holds no models.
        """
        generation = self._table.workers[self._slot].generation
        for readings_left in reversed(range(MOST_READINGS)):
            since = self._file.end
            left = [
                entry
                for entry in entries_for_new_worker(self._file.read())
                if entry.position not in self._abandoned
            ]
            starts = [
                entry
                for entry in left
                if entry.kind == "start" and self._is_usable(entry, generation)
            ]
            if starts:
                start = self._start = starts[-1]
                # No worker has made these changes: this worker makes them, too, once its models serve. `run` makes the
                # changes after `_position`.
                self._pending = [
                    (entry.position, entry)
                    for entry in left
                    if entry.change is not None
                    and not entry.is_made
                    and start.position < entry.position <= self._position
                ]
                return _as_loaded(start, left)
            models = dict(look())
            entry = LogEntry(
                kind="start", slot=self._slot, generation=generation, pid=os.getpid(), models=models
            )
            try:
                positions = self._file.append([entry], since=since if readings_left else None)
            except NotReady as held:
                log.error(_UNWRITABLE_LOG_WARNING, held.message)
                break
            if positions is not None:
                entry.position = positions[0]
                self._start = entry
                break
        return models

    def _is_usable(self, start: LogEntry, generation: int) -> bool:
        """Whether a "start" is of a generation, and its models were loaded, or its worker is still loading them."""
        if start.generation != generation:
            return False
        return start.is_made or (
            self._table.alive(start.slot) and self._table.workers[start.slot].pid == start.pid
        )

    def note_loaded(self, engine: "Engine") -> None:
        """Note in the log that this worker has loaded the models of its "start", so that later workers load the same.

        Also begin the changes that no worker had made when this worker started.
        """
        pending, self._pending = self._pending, []
        for position, change in pending:
            self._queue(engine, position, change)
        start, self._start = self._start, None
        if start is None or start.is_made:
            return
        done = LogEntry(kind="done", slot=start.slot, position=start.position)
        try:
            self._file.append([done])
        except NotReady as held:
            log.error(_UNWRITABLE_LOG_WARNING, held.message)

    def _is_abandoned(self, entry: LogEntry) -> bool:
        """Whether all workers that should make a change have ended without a "done": the change may have ended them."""
        return (
            entry.change is not None
            and not entry.is_made
            and not any(
                self._table.began_before(slot, entry.position)
                for slot in range(CAPACITY)
                if slot != self._slot
            )
        )

    def _apply_earlier(self, entry: LogEntry) -> None:
        """Take over a change from before this worker's start: set a setting, or note the model for the first load."""
        change = entry.change
        if entry.setting is not None:
            registry.apply_setting(entry.setting)
        elif change is not None:
            for names, kind in ((self.unloaded, "unload"), (self.loaded, "load")):
                (names.add if change.kind == kind else names.discard)(change.name)
            if change.kind == "load" and change.config is not None:
                self.configs[change.name] = change.config
            elif change.kind != "update":
                self.configs.pop(change.name, None)

    def carry_out(self, look: Look) -> None:
        """Have all workers make changes, and wait until they have; see `Engine.carry_out`.

        Args:
            look: Reads the disk and returns the changes. It is called again if another worker has changed the same
                model meanwhile.

        Raises:
            KsrvError: A change failed in this or another worker.
            DeadlineExceeded: Not all workers have made the changes in time.
        """
        for readings_left in reversed(range(MOST_READINGS)):
            since = self._file.end
            entries = [
                LogEntry(kind=change.kind, slot=self._slot, change=change) for change in look()
            ]
            if not entries or self._publish(entries, since if readings_left else None):
                return

    def change_setting(self, change: SettingChange) -> None:
        """Change a setting in every worker."""
        self._publish([LogEntry(kind="setting", slot=self._slot, setting=change)], None)

    def _publish(self, entries: Sequence[LogEntry], since: int | None) -> bool:
        """Append entries and wait until all workers have made them. Return False if `ChangeLog.append` refused them."""
        began = time.monotonic()
        # Under the lock: the thread that reads the log must find the positions in `_outcomes`.
        with self._changed:
            positions = self._file.append(entries, since=since)
            if positions is None:
                return False
            self._outcomes |= {position: {} for position in positions}
        try:
            self._wait_for_this_worker(positions)
            took = time.monotonic() - began
            self._wait_for_others(positions, time.monotonic() + 2 * took + LAG_SECONDS)
            for position in positions:
                outcome = self._outcomes[position][self._slot]
                if isinstance(outcome, Exception):
                    raise outcome
            # An "update" that fails in another worker is not an error: the model serves there as before.
            self._raise_failures(
                [
                    position
                    for position, entry in zip(positions, entries, strict=True)
                    if entry.kind != "update"
                ]
            )
        finally:
            with self._changed:
                for position in positions:
                    del self._outcomes[position]
        return True

    def _wait_for_this_worker(self, positions: Sequence[int]) -> None:
        self._wake.set()
        with self._changed:
            while not all(self._slot in self._outcomes[position] for position in positions):
                self._changed.wait()

    def _wait_for_others(self, positions: Sequence[int], give_up: float) -> None:
        while late := self._late(positions):
            if time.monotonic() > give_up:
                shown = ", ".join(str(self._table.workers[slot].pid) for slot in late)
                text = (
                    f"{len(late)} of {len(self._table.followers(positions[0]))} workers did not carry out the change"
                    f" in time, and do so as soon as they can: process {shown}; call again to wait for them"
                )
                log.error("this worker carried out a change, but %s", text)
                raise DeadlineExceeded(text)
            self._wake.set()
            with self._changed:
                self._changed.wait(WAIT_SECONDS)

    def _late(self, positions: Sequence[int]) -> list[int]:
        """Return the slots of the workers that have not made all of the changes."""
        with self._changed:
            return [
                slot
                for slot in self._table.followers(positions[0])
                if any(slot not in self._outcomes[position] for position in positions)
            ]

    def _raise_failures(self, positions: Sequence[int]) -> None:
        """Raise an error if this worker has made the changes, and another worker that still serves could not."""
        with self._changed:
            failed = {
                slot: error
                for position in positions
                for slot in self._table.followers(position)
                if (error := self._outcomes[position].get(slot))
            }
        if failed:
            slot, error = next(iter(failed.items()))
            raise HandlerFailed(
                f"{len(failed)} of the workers could not carry out the change; process"
                f" {self._table.workers[slot].pid} says: {error}"
            )

    # ---- following --------------------------------------------------------------------------

    def run(self, engine: "Engine") -> None:
        """Read the log and make its changes in the engine until the process ends. The thread `ksrv-replicate`.

        Args:
            engine: The engine to change. It refuses changes while it is being closed.
        """
        while True:
            self._wake.wait(LONE_LOOK_SECONDS if self._table.target_count == 1 else LOOK_SECONDS)
            self._wake.clear()
            try:
                self._look(engine)
            except Exception:
                log.exception("changes of the other workers cannot be read; it is tried again")

    def _look(self, engine: "Engine") -> None:
        for position, entry in self._file.read(self._position):
            if entry.kind == "done":
                self._note(entry.position, entry.slot, entry.error)
            elif entry.change is not None:
                self._queue(engine, position, entry)
            elif entry.setting is not None:
                self._make(engine, position, entry)
            self._position = position
            self._table.workers[self._slot].read = position

    def _queue(self, engine: "Engine", position: int, entry: LogEntry) -> None:
        """Queue a change after the earlier changes of its model. Each model has a thread; models change in parallel."""
        name = entry.change.name if entry.change is not None else ""
        with self._changed:
            chain = self._chains.get(name)
            if chain is not None:
                chain.append((position, entry))
                return
            self._chains[name] = deque([(position, entry)])
        maker = threading.Thread(
            target=self._make_all, args=(engine, name), name="ksrv-change", daemon=True
        )
        try:
            maker.start()
        except RuntimeError:  # the system has no thread now: the next look reads the entry again
            with self._changed:
                del self._chains[name]
            raise

    def _make_all(self, engine: "Engine", name: str) -> None:
        """Make the queued changes of a model until none is left. The thread `ksrv-change`."""
        while True:
            with self._changed:
                chain = self._chains[name]
                if not chain:
                    del self._chains[name]
                    return
                position, entry = chain.popleft()
            self._make(engine, position, entry)

    def _make(self, engine: "Engine", position: int, entry: LogEntry) -> None:
        """Make a change, and note it in the log."""
        error: Exception | None = None
        kept: KsrvError | None = None  # why an update left the model as it was
        try:
            if entry.setting is not None:
                registry.apply_setting(entry.setting)
            elif entry.change is not None:
                try:
                    kept = engine.follow(entry.change, position)
                finally:
                    # When the call is answered, the client may ask any worker for readiness.
                    self._before_notify()
        except Exception as raised:  # noqa: BLE001  noted in the log, and raised where the call waits
            error = raised
        text = "" if kept is None else kept.message
        if error is not None:
            text = error.message if isinstance(error, KsrvError) else f"{type(error).__name__}"
            if entry.slot != self._slot:
                self._log_failure(entry, error)
        self._note(position, self._slot, text if error is None else error)
        done = LogEntry(kind="done", slot=self._slot, position=position, error=text)
        if text and entry.change is not None:
            made = engine.made_of(entry.change)
            done.models = {} if made is None else {made.name: made}
        try:
            self._file.append([done])
        except NotReady as held:
            log.error(
                "the other workers are not notified that this worker made a change: %s",
                held.message,
            )

    def _note(self, position: int, slot: int, outcome: str | Exception) -> None:
        """Store the outcome of a change in a worker for the call that waits for it in this worker, if any."""
        with self._changed:
            if position in self._outcomes:
                self._outcomes[position].setdefault(slot, outcome)
                self._changed.notify_all()

    def _log_failure(self, entry: LogEntry, error: Exception) -> None:
        subject = quote(entry.change.name) if entry.change is not None else "a setting"
        reason = f": {error.message}" if isinstance(error, KsrvError) else ""
        log.error(
            "the %s of %s, asked of another worker, failed here%s",
            entry.kind,
            subject,
            reason,
            exc_info=None if reason else error,
        )


def _as_loaded(start: LogEntry, left: Sequence[LogEntry]) -> dict[str, ModelEntry]:
    """Return the models of a "start", with the changes since then that a worker has made.

    Args:
        left: The entries that still matter; see `entries_for_new_worker`.
    """
    # A worker has loaded these versions from these files before, which `again` notes in their sources.
    models = {
        name: again(entry, entry.versions) if start.is_made else entry
        for name, entry in start.models.items()
    }
    for made in left:
        change = made.change
        if change is None or made.position <= start.position or not made.is_made:
            continue
        if change.entry is not None:
            models[change.name] = again(change.entry, change.entry.versions)
        elif change.kind == "remove":
            models.pop(change.name, None)
    return models
