"""Loads, unloads and reloads models: each change ends with a new entry in the `ModelTable`.

A new version is loaded and warmed up while the old version serves. Then it takes over in one assignment; the old
version finishes its accepted requests and is freed. A load that fails leaves the old version in place and keeps the
reason.

Each model has a lock, so that no load waits for the load of another model. A bound on parallel loads limits the memory
that loading takes. Changes are numbered in the order in which they were decided, by all workers: a change that arrives
after a later change of the same model is skipped.

The ways into `_refresh`, which loads the versions of one model: `load_all` at the start, `wake` for the first request
of a dormant model, and `apply` for a call or a changed folder.
"""

import dataclasses
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from ksrv.engine.changes import RepositoryChange
from ksrv.engine.load_progress import progress_logged
from ksrv.engine.model import ModelVersion
from ksrv.engine.model_table import ModelTable
from ksrv.engine.model_versions import (
    ModelState,
    ModelVersions,
    dormant_versions,
    loading_versions,
    unloaded_versions,
)
from ksrv.errors import FilesChanged, HandlerFailed, KsrvError, NotReady, without_paths
from ksrv.handlers.imports.loaded_files import changed_file
from ksrv.model.config import ModelSource
from ksrv.repository.entry import ModelEntry
from ksrv.repository.fingerprint import Fingerprint, changed_files, fingerprint, read_files
from ksrv.repository.layout import Repository, by_numbers

log = logging.getLogger("ksrv.engine")

_Item = TypeVar("_Item")

RETRY_SECONDS = 10.0
"""After a failed load of a dormant model, how long requests get its error before a request tries the load again."""

UNLIMITED_SECONDS = 3600.0
"""How long a request waits for the load of a dormant model whose `timeout_ms` is 0."""

NEW_MODEL = ModelVersions(required=False)
"""Stands for the earlier state of a model that is not in the table yet."""

SHOWN_FILES = 4
"""How many changed files the log names."""


@dataclass(eq=False)
class ModelRegistry:
    """The models of a repository, and the changes of what serves.

    Args:
        table: The table that the changes are made in.
        make: Makes a model that is not loaded yet.
        drain_seconds: How long an old version may take to finish what it accepted.
        parallel_loads: How many versions are loaded at a time.
        lazy: Whether models stay dormant until `wake`.
        notes: See `ksrv.model.config.LoadedFiles`.

    Attributes:
        refused_replacements: How many handler processes and workers could not load a version again, because one of its
            files had changed; by name and version with a space between.
    """

    repository: Repository
    table: ModelTable
    make: Callable[[ModelSource], ModelVersion]
    drain_seconds: float
    parallel_loads: int
    lazy: bool = False
    notes: str = ""
    refused_replacements: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()  # guards the other fields
        # Weak references, because callers name unknown models: a lock lives while it is held or waited for.
        self._locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        # By model, the number of the last change that was applied.
        self._applied: dict[str, int] = {}
        self._load_slots = threading.BoundedSemaphore(self.parallel_loads)
        self._retiring: list[threading.Thread] = []
        self._closing = False

    # ---- changing ---------------------------------------------------------------------------

    def load_all(self, entries: Mapping[str, ModelEntry], unloaded: Collection[str] = ()) -> None:
        """Load the models of the repository at the start, several at a time. Failures are kept as states.

        Args:
            unloaded: The names of models that stay unloaded.
        """
        known = {
            name: unloaded_versions(name, entry.versions)
            if name in unloaded
            else self._before_load(entry)
            for name, entry in entries.items()
        }
        self.table.begin(known)
        if self.lazy:
            for name in known:
                self.table.changed(name)
            return
        wanted = [entry for name, entry in entries.items() if name not in unloaded]
        self._side_by_side(self._load_first, wanted)

    def _before_load(self, entry: ModelEntry) -> ModelVersions:
        if self.lazy:
            return dormant_versions(entry, _fingerprints(entry))
        return loading_versions(entry.name, entry.versions)

    def wake(self, name: str) -> bool:
        """Load a dormant model. A failure is kept as its state; after a pause the next request tries again.

        Returns:
            Whether the model was loaded.
        """
        with self._lock_of(name):
            served = self.table.models.get(name)
            if self._closing or served is None or not served.dormant or served.entry is None:
                return False
            # Without a slot: a model that is warming up, and so has a slot, may wait for this model.
            failed = self._refresh(name, served.entry, always=False, waits_for_slot=False)
            after = self.table.models[name]
            if after.versions:
                return True
            reason = failed[0].message if failed else "it has no version to serve"
            retry_at = time.monotonic() + RETRY_SECONDS
            dormant = dormant_versions(
                served.entry, after.fingerprints, served.counters, failure=reason, retry_at=retry_at
            )
            self.table.put(name, dormant)
            return False

    def timeout_of(self, name: str) -> float:
        """Return the seconds that a request for a dormant model may wait for its load."""
        served = self.table.models.get(name)
        sources = served.entry.versions.values() if served and served.entry else ()
        limits = [source.config.timeout_ms for source in sources if source.config is not None]
        return max(limits, default=0) / 1000 or UNLIMITED_SECONDS

    def put_away(self, name: str, seconds: float) -> bool:
        """Make a loaded model dormant again, and wait until it is retired, `seconds` at most.

        The next load uses the files of the last load, as the replacement of a handler process does. The caller runs the
        garbage collector if it needs the memory that is in reference cycles.

        Returns:
            Whether the model was loaded, and is dormant now. A model whose lock is taken is skipped: its load may wait
            for the load for which this makes room.
        """
        lock = self._lock_of(name)
        if not lock.acquire(blocking=False):
            return False
        try:
            served = self.table.models.get(name)
            if self._closing or served is None or served.entry is None or not served.versions:
                return False
            counters = {version: loaded.lifetime for version, loaded in served.versions.items()}
            entry = again(served.entry, {v: loaded.source for v, loaded in served.versions.items()})
            self.table.put(name, dormant_versions(entry, served.fingerprints, counters))
            retiring = self._retire(served.versions.values(), self.drain_seconds, collects=False)
        finally:
            lock.release()
        until = time.monotonic() + seconds
        for thread in retiring:
            thread.join(max(0.0, until - time.monotonic()))
        return True

    def apply(self, change: RepositoryChange, order: int) -> KsrvError | None:
        """Apply a change, unless a later change of the same model was applied already.

        Args:
            change: The change. The old versions serve while the new versions are loaded.
            order: The number of the change among all changes, from 1 on.

        Returns:
            The error of an update that failed, after which the old versions serve; else None.

        Raises:
            NotFound: The model is unknown.
            NotReady: The engine is being closed, or the repository was not read yet.
            KsrvError: A version cannot be loaded, and the change asked for the load explicitly.
        """
        name = change.name
        failed: list[KsrvError] = []
        with self._lock_of(name):
            if self._applied.get(name, 0) > order:
                return None
            served = self.table.models.get(name)
            if change.kind in ("unload", "remove"):
                if served is not None:
                    self._applied[name] = order
                    self._unload(name, served, known=change.kind == "unload")
                elif change.kind == "unload":
                    raise self.table.unknown(name, self.table.has_begun)
                return None
            if self._closing:
                raise NotReady("the server is stopping")
            self._applied[name] = order
            assert change.entry is not None, "what is to be loaded was read before"
            if change.kind == "load":
                failed = self._refresh(name, change.entry, always=True)
            elif served is None or served.wanted:
                failed = self._update(served, change.entry)
        if failed and change.kind == "load":
            raise failed[0]
        return failed[0] if failed else None

    def made_of(self, change: RepositoryChange) -> ModelEntry | None:
        """Return the entry of a model after a change that could load only a part of the versions.

        A worker that is started later loads the model by this entry, so that it serves the same files.

        Args:
            change: The last change of the model.

        Returns:
            The serving versions with the files they were loaded from, and the failed versions with the files of the
            change; None if the change loaded no version.
        """
        served = self.table.models.get(change.name)
        if served is None or change.entry is None:
            return None
        asked = change.entry.versions
        serving = {version: model.source for version, model in served.versions.items()}
        made = [
            version
            for version in serving.keys() & asked.keys()
            if serving[version].loaded is asked[version].loaded
        ]
        if not made:
            return None
        versions = {**asked, **serving}
        ordered = {version: versions[version] for version in sorted(versions, key=by_numbers)}
        return dataclasses.replace(change.entry, versions=ordered)

    def apply_all(self, changes: Iterable[RepositoryChange], order: int) -> None:
        """Apply changes of several models, several at a time; see `apply`."""
        self._side_by_side(lambda change: self.apply(change, order), changes)

    def outdated(self) -> list[RepositoryChange]:
        """Scan the repository, and return the changes that bring the table up to date with it."""
        entries = self.repository.scan()
        table = self.table.models
        gone = [RepositoryChange(kind="remove", name=name) for name in table if name not in entries]
        return gone + [
            RepositoryChange(kind="update", name=name, entry=self.with_files(entry))
            for name, entry in entries.items()
            if name not in table or (table[name].wanted and _differs(table[name], entry))
        ]

    def with_files(self, entry: ModelEntry) -> ModelEntry:
        """Return a model with the contents of its files as they are now. The load uses these contents.

        Args:
            entry: The model. Versions whose files were read before are not read again.
        """
        versions = {
            version: source
            if source.loaded is not None
            else replace(source, loaded=read_files(source, self.notes))
            for version, source in entry.versions.items()
        }
        return dataclasses.replace(entry, versions=versions)

    def _unload(self, name: str, served: ModelVersions, *, known: bool) -> None:
        """Retire the versions of a model.

        Args:
            known: Whether the model stays in the repository; otherwise it leaves the table.
        """
        if known:
            versions = list(served.versions) or list(served.states)
            self.table.put(name, unloaded_versions(name, versions))
        else:
            self.table.put(name, None)
            log.info("unloaded %s: its files are gone", name)
        self._retire(served.versions.values(), self.drain_seconds)

    def _update(self, served: ModelVersions | None, entry: ModelEntry) -> list[KsrvError]:
        """Load the versions of a model that differ from the serving versions, and log each load."""
        if served is not None and not _differs(served, entry):
            # Several workers report the same change of the disk, and it was applied already. Its errors are
            # returned again, because the outcome of the last change decides what replaced workers load.
            return [
                HandlerFailed(item.reason) for item in served.states.values() if not served.dormant
            ]
        if self.lazy and (served is None or served.dormant):
            self.table.put(entry.name, dormant_versions(entry, _fingerprints(entry)))
            return []
        began = time.monotonic()
        failed = self._refresh(entry.name, entry, always=False)
        after = self.table.models.get(entry.name)
        if after is not None and not after.states:
            why = _what_changed(served, after)
            log.info("loaded %s in %.2f s: %s", entry.name, time.monotonic() - began, why)
        return failed

    def _load_first(self, entry: ModelEntry) -> None:
        """Load a model at the start, unless it was changed meanwhile."""
        with self._lock_of(entry.name):
            served = self.table.models.get(entry.name)
            if self._closing or entry.name in self._applied:
                return
            if served is None or served.wanted:
                self._refresh(entry.name, entry, always=False)

    def _lock_of(self, name: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(name, threading.Lock())

    def _side_by_side(self, load: Callable[[_Item], object], items: Iterable[_Item]) -> None:
        """Call `load` with each item, several at a time, and raise the first error."""
        left = deque(items)
        errors: list[Exception] = []

        def work() -> None:
            while not errors:
                try:
                    item = left.popleft()
                except IndexError:
                    return
                try:
                    load(item)
                except Exception as error:  # noqa: BLE001  it is raised by the thread that waits
                    errors.append(error)

        threads = [
            threading.Thread(target=work, name=f"ksrv-load-{number}", daemon=True)
            for number in range(min(self.parallel_loads, len(left)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def close(self, timeout: float | None) -> None:
        """Retire every version.

        Args:
            timeout: Seconds to wait for accepted requests; None waits for all.
        """
        self._closing = True
        with self._lock:
            locks = list(self._locks.values())
        for lock in locks:
            with lock:  # a load that is under way is finished first
                pass
        self._retire(self.table.loaded(), timeout)
        for thread in self._retiring:
            thread.join()

    def _refresh(
        self, name: str, entry: ModelEntry, *, always: bool, waits_for_slot: bool = True
    ) -> list[KsrvError]:
        """Load the versions of one model that are new or changed; return the errors. It never raises.

        Args:
            always: Whether to load all versions, also unchanged versions.
            waits_for_slot: Whether the loads count against `parallel_loads`.
        """
        try:
            return self._renew(name, entry, always=always, waits_for_slot=waits_for_slot)
        except Exception as error:
            log.exception("the model %s cannot be loaded", name)
            failed = HandlerFailed(
                f"the model {name} cannot be loaded: {type(error).__name__}: {error}"
            )
            before = self.table.models.get(name) or NEW_MODEL
            states = {"": ModelState(name, "", "UNAVAILABLE", failed.message)}  # "": of no version
            required = always or before.required
            self.table.put(
                name, ModelVersions(before.versions, states, required=required, entry=entry)
            )
            return [failed]

    def _renew(
        self, name: str, entry: ModelEntry, *, always: bool, waits_for_slot: bool
    ) -> list[KsrvError]:
        """Load versions, put the result into the table, and retire the replaced versions; see `_refresh`."""
        before = self.table.models.get(name) or NEW_MODEL
        entry = self.with_files(entry)
        found = _fingerprints(entry)
        versions: dict[str, ModelVersion] = {}
        states: dict[str, ModelState] = {}
        failed: list[KsrvError] = []
        fresh = [
            source
            for version, source in entry.versions.items()
            if always
            or version not in before.versions
            or before.fingerprints.get(version) != found[version]
        ]
        loaded: dict[str, ModelVersion | KsrvError] = {}
        for source in fresh:
            with self._load_slots if waits_for_slot else nullcontext():
                loaded[source.version] = self._load_one(source)
        # For each version on disk: the new load, or the version that serves now.
        for version in entry.versions:
            result = loaded.get(version)
            if isinstance(result, ModelVersion):
                versions[version] = result
                # The counts of a version continue over its loads. `follow` also has requests of the replaced version's
                # sequences fail with the reason.
                if version in before.versions:
                    result.follow(before.versions[version])
                elif version in before.counters:  # it was dormant
                    result.carry_on(before.counters[version])
                continue
            if result is not None:
                log.error("the model %s version %s: %s", name, version or "-", result.message)
                source = entry.versions[version]
                failed.append(_for_clients(result, source.folder, source.root, source.root.parent))
                states[version] = ModelState(name, version, "UNAVAILABLE", result.message)
            if version in before.versions:
                versions[version] = before.versions[version]
        if entry.error:  # the folder could not be read completely, so no version counts as deleted
            log.error("the model %s: %s", name, entry.error)
            path = entry.path.absolute()
            error = _for_clients(HandlerFailed(entry.error), path, path.parent)
            failed.append(error)
            states.setdefault("", ModelState(name, "", "UNAVAILABLE", error.message))
            merged = {**before.versions, **versions}
            versions = {version: merged[version] for version in sorted(merged, key=by_numbers)}
        # If nothing new can serve, all old versions stay, also deleted versions.
        if failed and not versions:
            versions = before.versions
        required = always or before.required or bool(versions)
        made = ModelVersions(versions, states, required=required, fingerprints=found, entry=entry)
        self.table.put(name, made)
        kept = set(map(id, versions.values()))
        gone = [model for model in before.versions.values() if id(model) not in kept]
        self._retire(gone, self.drain_seconds)
        return failed

    def _load_one(self, source: ModelSource) -> ModelVersion | KsrvError:
        """Load one version; return the error if that fails."""
        if source.config is None or source.error:
            return HandlerFailed(source.error or f"{source.folder} has no settings")
        if source.again and (file := changed_file(source)):
            self._count_refused(source)
            return FilesChanged(
                f"the model {source.name} was served by a worker that has ended and cannot be loaded again, because its "
                f"file {file} changed since it was loaded; load the model again"
            )
        model = self.make(source)
        model.note_refused = partial(self._count_refused, source)
        version = f" version {source.version}" if source.version else ""
        try:
            with progress_logged(f"the model {source.name}{version}", lambda: model.load_step):
                model.load()
        except KsrvError as error:
            return error
        return model

    def _count_refused(self, source: ModelSource) -> None:
        with self._lock:
            self.refused_replacements[f"{source.name} {source.version}"] += 1

    def _retire(
        self, models: Iterable[ModelVersion], timeout: float | None, *, collects: bool = True
    ) -> list[threading.Thread]:
        """Retire versions, each on a separate thread, and return the threads; see `ModelVersion.retire`."""
        with self._lock:
            self._retiring = [thread for thread in self._retiring if thread.is_alive()]
        begun = []
        for model in models:
            thread = threading.Thread(
                target=model.retire,
                args=(timeout,),
                kwargs={"collects": collects},
                name="ksrv-retire",
                daemon=True,
            )
            thread.start()
            begun.append(thread)
            with self._lock:
                self._retiring.append(thread)
        return begun


def _differs(served: ModelVersions, entry: ModelEntry) -> bool:
    """Tell whether the files of a model differ from the files of its last load, even if that failed."""
    return _fingerprints(entry) != served.fingerprints


def _fingerprints(entry: ModelEntry) -> dict[str, Fingerprint]:
    return {version: fingerprint(source) for version, source in entry.versions.items()}


def again(entry: ModelEntry, loaded: Mapping[str, ModelSource]) -> ModelEntry:
    """Return a model whose versions are loaded again with the same files: `ModelSource.again` is set.

    Args:
        loaded: The sources of the versions that were loaded, by version. Other versions stay as they are in `entry`.
    """
    versions = {
        version: replace(loaded[version], again=True) if version in loaded else source
        for version, source in entry.versions.items()
    }
    return dataclasses.replace(entry, versions=versions)


def _for_clients(error: KsrvError, *folders: Path) -> KsrvError:
    """Remove the server's paths from an error, whose full text is in the log already."""
    error.message = without_paths(error.message, *folders)
    error.args = (error.message,)
    return error


def _what_changed(before: ModelVersions | None, after: ModelVersions) -> str:
    """Name the files that differ between two loads of a model, for the log."""
    if before is None:
        return "a new model"
    files = changed_files(before.fingerprints.values(), after.fingerprints.values())
    more = len(files) - SHOWN_FILES
    shown = ", ".join(files[:SHOWN_FILES]) + (f" and {more} more" if more > 0 else "")
    return f"changed: {shown}" if files else "changed"
