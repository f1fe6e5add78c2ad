"""Changes that a client asks one worker for are made by all workers, in one order.

A control call reaches one worker. It appends the change to the log that all workers share (`change_log`), and every
worker, including the requesting worker, makes the changes in the log's order and notes each in the log when it is done.
The caller is answered once the workers that serve have made it, or with an error that names the workers that have not.
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
LONE_LOOK_SECONDS = 1.0
WAIT_SECONDS = 0.02
LAG_SECONDS = 10.0
"""The other workers get twice the time that the worker needed which was asked, and this on top."""

LOOKS_AGAIN = 5
"""How often the disk is looked at again because a change of the same model was appended meanwhile."""

_UNWRITABLE_LOG_WARNING = (
    "a worker that replaces this worker will load the models as they are on the disk then, which may differ from the models "
    "that serve now: %s"
)
"""The consequence for later workers when the log cannot be written to."""


class ChangeReplicator:
    """Makes the changes of all workers in this worker, and asks all workers for the changes that clients request here.

    Args:
        before_notify: Called when this worker has made a change of models, before anybody is notified.

    Attributes:
        unloaded: The models that were unloaded on purpose before this worker started.
        loaded: The models that were loaded on purpose.
        configs: The configurations with which they were loaded.
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
        # By position and slot, of what was asked for here: an error, its text in another worker, or "".
        self._outcomes: dict[int, dict[int, str | Exception]] = {}
        self._chains: dict[str, deque[tuple[int, LogEntry]]] = {}
        self._start: LogEntry | None = None
        self._pending: list[tuple[int, LogEntry]] = []
        self.unloaded: set[str] = set()
        self.loaded: set[str] = set()
        self.configs: dict[str, str] = {}
        self._before_notify = before_notify
        before = file.read()
        self._position = before[-1][0] if before else 0
        left = entries_for_new_worker(before)
        self._abandoned = {one.position for one in left if self._is_abandoned(one)}
        for entry in left:
            if entry.change is not None and entry.position in self._abandoned:
                log.error(
                    "the %s of %s was not carried out, because the workers that were at it have ended; ask for it again",
                    entry.kind,
                    quote(entry.change.name),
                )
            else:
                self._begin_with(entry)
        table.begin_following(slot, self._position)

    # ---- the start --------------------------------------------------------------------------

    def models_to_load(
        self, look: Callable[[], Mapping[str, ModelEntry]]
    ) -> Mapping[str, ModelEntry]:
        """Return the models that this worker loads when it starts.

        The first worker of a generation reads them from the disk and puts them into the log. The others load the same,
        and so does a worker that replaces one of them later, with the changes that were made since.

        Raises:
            RepositoryError: A path of the repository holds no models.
        """
        generation = self._table.workers[self._slot].generation
        for more in reversed(range(LOOKS_AGAIN)):
            since = self._file.end
            left = [
                one
                for one in entries_for_new_worker(self._file.read())
                if one.position not in self._abandoned
            ]
            starts = [
                one for one in left if one.kind == "start" and self._is_usable(one, generation)
            ]
            if starts:
                start = self._start = starts[-1]
                self._pending = [
                    (one.position, one)
                    for one in left
                    if one.change is not None
                    and one.slot != -1
                    and start.position < one.position <= self._position
                ]
                return _as_loaded(start, left)
            models = dict(look())
            entry = LogEntry(
                kind="start",
                slot=self._slot,
                generation=generation,
                pid=os.getpid(),
                models=models,
            )
            try:
                positions = self._file.append([entry], since=since if more else None)
            except NotReady as held:
                log.error(_UNWRITABLE_LOG_WARNING, held.message)
                break
            if positions is not None:
                entry.position = positions[0]
                self._start = entry
                break
        return models

    def _is_usable(self, start: LogEntry, generation: int) -> bool:
        """Whether a start was loaded, or is being loaded by the worker that has read the models."""
        if start.generation != generation:
            return False
        return start.slot == -1 or (
            self._table.alive(start.slot) and self._table.workers[start.slot].pid == start.pid
        )

    def note_loaded(self, engine: "Engine") -> None:
        """Note in the log that a worker has loaded the models that were read for it: its replacement will load the same.

        Changes that no worker had made when this worker began are made now, while its models serve.

        Args:
            engine: The engine that has loaded the models.
        """
        pending, self._pending = self._pending, []
        for position, change in pending:
            self._queue(engine, position, change)
        start, self._start = self._start, None
        if start is None or start.slot == -1:
            return
        done = LogEntry(kind="done", slot=start.slot, position=start.position)
        try:
            self._file.append([done])
        except NotReady as held:
            log.error(_UNWRITABLE_LOG_WARNING, held.message)

    def _is_abandoned(self, entry: LogEntry) -> bool:
        """Whether no worker has made a change, and none is left that makes it: it may have ended them."""
        return (
            entry.change is not None
            and entry.slot != -1
            and not any(
                self._table.began_before(slot, entry.position)
                for slot in range(CAPACITY)
                if slot != self._slot
            )
        )

    def _begin_with(self, entry: LogEntry) -> None:
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

        Raises:
            KsrvError: One of them failed here, or in another worker.
            DeadlineExceeded: Not all workers have made them in time.
        """
        for more in reversed(range(LOOKS_AGAIN)):
            since = self._file.end
            entries = [
                LogEntry(kind=change.kind, slot=self._slot, change=change) for change in look()
            ]
            if not entries or self._publish(entries, since if more else None):
                return

    def change_setting(self, change: SettingChange) -> None:
        """Change a setting in every worker."""
        self._publish([LogEntry(kind="setting", slot=self._slot, setting=change)], None)

    def _publish(self, entries: Sequence[LogEntry], since: int | None) -> bool:
        """Append entries and wait; return False where another change has come before them."""
        began = time.monotonic()
        with (
            self._changed
        ):  # before the outcomes are known by position, nothing may be made of them
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
            # A model that cannot be brought up to date serves as before, in all workers.
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
        with self._changed:
            return [
                slot
                for slot in self._table.followers(positions[0])
                if any(slot not in self._outcomes[position] for position in positions)
            ]

    def _raise_failures(self, positions: Sequence[int]) -> None:
        """Raise an error if other workers, which still serve, could not make a change that this worker has made."""
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
        """Make the changes of all workers for as long as this process lives.

        Args:
            engine: The engine to change; one that is being closed refuses them.
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
        """Queue a change after the earlier changes of its model; changes of other models run in parallel."""
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
        kept: KsrvError | None = None
        try:
            if entry.setting is not None:
                registry.apply_setting(entry.setting)
            elif entry.change is not None:
                try:
                    kept = engine.follow(entry.change, position)
                finally:
                    # The caller asks for readiness next, perhaps at another worker.
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
        with self._changed:
            if position in self._outcomes:
                self._outcomes[position].setdefault(slot, outcome)
                self._changed.notify_all()

    def _log_failure(self, entry: LogEntry, error: Exception) -> None:
        subject = quote(entry.change.name) if entry.change is not None else "a setting"
        if isinstance(error, KsrvError):
            log.error(
                "the %s of %s, asked of another worker, failed here: %s",
                entry.kind,
                subject,
                error.message,
            )
        else:
            log.error(
                "the %s of %s, asked of another worker, failed here",
                entry.kind,
                subject,
                exc_info=error,
            )


def _as_loaded(start: LogEntry, left: Sequence[LogEntry]) -> dict[str, ModelEntry]:
    """Return the models as the workers have loaded them, without the changes that they still make.

    Args:
        start: The models that they have started with.
        left: The entries of the log that a new worker has to know.
    """
    models = {
        name: again(entry, entry.versions) if start.slot == -1 else entry
        for name, entry in start.models.items()
    }
    for one in left:
        change = one.change
        if change is None or one.position <= start.position or one.slot != -1:
            continue
        if change.entry is not None:
            models[change.name] = again(change.entry, change.entry.versions)
        elif change.kind == "remove":
            models.pop(change.name, None)
    return models
