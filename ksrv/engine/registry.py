"""Which versions of which models serve, and how that changes: load, unload, reload.

A new version is built and warmed up aside, while the old one serves; then it takes over in one
assignment, and the old one finishes what it accepted and is freed. A load that fails leaves the old
one where it is and keeps the reason. Readers take no lock: the table is replaced, never changed.

Each model has a lock of its own, so that no model's load waits for another's; a bound on the loads
at a time keeps the memory that loading takes in check. A scan of the disk may be older than a load
that was asked for meanwhile: scans are numbered, and an older scan never undoes a newer one's work.
"""

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from ksrv.engine.model import ModelVersion
from ksrv.engine.model_versions import (
    ModelState,
    ModelVersions,
    index_line,
    loading_versions,
    unloaded_versions,
)
from ksrv.errors import HandlerFailed, KsrvError, NotFound, NotReady, quote, without_paths
from ksrv.repository.entry import ModelEntry
from ksrv.repository.fingerprint import changed_files, fingerprint
from ksrv.repository.layout import Repository, by_numbers
from ksrv.source import ModelSource

log = logging.getLogger("ksrv.engine")

SHOWN_FILES = 4
"""How many changed files the log names."""


class ModelRegistry:
    """The table of models.

    Args:
        repository: The models on disk.
        make: Makes a model that is not loaded yet.
        drain_seconds: How long an old version may take to finish what it accepted.
        parallel_loads: How many versions are loaded at a time.
        changed: Called when what requests reach has changed, before the change is reported done.
    """

    def __init__(
        self,
        repository: Repository,
        make: Callable[[ModelSource], ModelVersion],
        drain_seconds: float,
        parallel_loads: int,
        *,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        self._repository = repository
        self._make = make
        self._drain_seconds = drain_seconds
        self._table: dict[str, ModelVersions] = {}
        self._table_lock = threading.Lock()  # while the table is replaced
        self._scan_lock = threading.Lock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._scans = 0
        self._applied: dict[str, int] = {}  # by model, the newest scan that was applied
        self._parallel_loads = parallel_loads
        self._changed = changed
        self._load_slots = threading.BoundedSemaphore(parallel_loads)
        self._retiring: list[threading.Thread] = []
        self._closing = False

    # ---- reading ----------------------------------------------------------------------------

    def find(self, name: str, version: str = "") -> ModelVersion:
        """Return the version that serves a request.

        Args:
            name: The model's name.
            version: The version's, or "" for the highest.

        Raises:
            NotFound: There is no such model or version.
            NotReady: It does not serve now.
        """
        served = self._table.get(name)
        if served is None:
            raise NotFound(f"Request for unknown model: {quote(name)} is not found")
        model = served.versions.get(version) if version else served.default
        if model is not None:
            return model
        state = served.states.get(version) if version else None
        if version and state is None:
            known = ", ".join(quote(one) for one in served.versions if one) or "no version folders"
            raise NotFound(
                f"Request for unknown model: {quote(name)} version {quote(version)} is not found; "
                f"it has {known}"
            )
        if state is None:
            state = served.highest_state
        why = f": {state.reason}" if state and state.reason else "."
        stands = state.state.lower() if state else "unavailable"
        raise NotReady(f"the model {name} is not ready, it is {stands}{why}")

    def models(self, name: str = "", version: str = "") -> list[ModelVersion]:
        """Return the versions that serve.

        Args:
            name: A model's name, or "" for all.
            version: A version's, or "" for all.

        Raises:
            NotFound: There is no such model or version.
        """
        if name and version:
            return [self.find(name, version)]
        if name and name not in self._table:
            self.find(name)
        chosen = [self._table[name]] if name else list(self._table.values())
        return [model for served in chosen for model in served.versions.values()]

    def served(self) -> Mapping[str, ModelVersions]:
        """Return the table as it is now."""
        return self._table

    def index(self) -> list[ModelState]:
        """Return the state of every version of every model."""
        lines = []
        for name in sorted(self._table):
            served = self._table[name]
            lines += [
                index_line(model, served.states.get(version))
                for version, model in served.versions.items()
            ]
            lines += [
                state for version, state in served.states.items() if version not in served.versions
            ]
        return lines

    # ---- changing ---------------------------------------------------------------------------

    def load_all(self, unloaded: Collection[str] = ()) -> None:
        """Load everything that the repository holds, side by side; failures are kept as states.

        Args:
            unloaded: The models that are not wanted.
        """
        scan, entries = self._scan()
        known = {
            name: unloaded_versions(name, entry.versions)
            if name in unloaded
            else loading_versions(entry.name, entry.versions)
            for name, entry in entries.items()
        }
        with self._table_lock:
            self._table = {**known, **self._table}  # a load may have been asked for already
        wanted = [entry for name, entry in entries.items() if name not in unloaded]
        self._side_by_side(lambda entry: self._apply(scan, entry), wanted)

    def load(self, name: str) -> None:
        """Load a model, or load it anew; the old versions serve meanwhile.

        Args:
            name: The model's name.

        Raises:
            NotFound: The repository holds no such model.
            KsrvError: A version cannot be loaded.
        """
        scan, entry = self._entry(name)
        with self._lock_of(name):
            if self._applied.get(name, 0) > scan:
                scan, entry = self._entry(name)
            if self._closing:
                raise NotReady("the server is stopping")
            self._applied[name] = scan
            failed = self._refresh(name, entry, always=True)
        if failed:
            raise failed[0]

    def unload(self, name: str) -> None:
        """Take a model out of service; its requests are finished first.

        Args:
            name: The model's name.

        Raises:
            NotFound: There is no such model.
        """
        if name in self._table:
            with self._lock_of(name):
                served = self._table.get(name)
                if served is not None:
                    versions = list(served.versions) or list(served.states)
                    self._put(name, unloaded_versions(name, versions))
                    self._retire(served.versions.values())
                    return
        raise NotFound(f"Request for unknown model: {quote(name)} is not found")

    def reload_changed(self) -> bool:
        """Load the models that have changed on disk, and unload the models that are gone.

        Returns:
            Whether anything had changed.
        """
        scan, entries = self._scan()
        table = self._table

        def apply(entry: ModelEntry) -> None:
            began = time.monotonic()
            self._apply(scan, entry)
            after = self._table.get(entry.name)
            if after is not None and not after.states:
                why = _what_changed(table.get(entry.name), after)
                log.info("loaded %s in %.2f s: %s", entry.name, time.monotonic() - began, why)

        gone = [name for name in table if name not in entries]
        for name in gone:
            with self._lock_of(name):
                served = self._table.get(name)
                if served is not None and self._applied.get(name, 0) <= scan:
                    self._put(name, None)
                    self._retire(served.versions.values())
                    log.info("unloaded %s: its files are gone", name)
        changed = [
            entry
            for name, entry in entries.items()
            if name not in table or (table[name].wanted and _differs(table[name], entry))
        ]
        self._side_by_side(apply, changed)
        return bool(gone or changed)

    def _apply(self, scan: int, entry: ModelEntry) -> None:
        """Bring one model up to date with a scan, unless a newer one was applied meanwhile."""
        name = entry.name
        with self._lock_of(name):
            served = self._table.get(name)
            if self._closing or self._applied.get(name, 0) >= scan:
                return
            if served is None or served.wanted:
                self._applied[name] = scan
                self._refresh(name, entry, always=False)

    def _scan(self) -> tuple[int, dict[str, ModelEntry]]:
        """Return the number of this scan and the models on disk."""
        with self._scan_lock:
            self._scans += 1
            return self._scans, self._repository.scan()

    def _entry(self, name: str) -> tuple[int, ModelEntry]:
        scan, entries = self._scan()
        if name not in entries:
            raise NotFound(f"the repository holds no model {quote(name)}")
        return scan, entries[name]

    def _lock_of(self, name: str) -> threading.Lock:
        with self._table_lock:
            return self._locks[name]

    def _side_by_side(
        self, change: Callable[[ModelEntry], None], entries: Iterable[ModelEntry]
    ) -> None:
        """Call `change` with each entry, several at a time, and raise the first error."""
        left = deque(entries)
        errors: list[Exception] = []

        def work() -> None:
            while not errors:
                try:
                    entry = left.popleft()
                except IndexError:
                    return
                try:
                    change(entry)
                except Exception as error:  # noqa: BLE001  it is raised by the thread that waits
                    errors.append(error)

        threads = [
            threading.Thread(target=work, name=f"ksrv-load-{number}", daemon=True)
            for number in range(min(self._parallel_loads, len(left)))
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
        with self._table_lock:
            locks = list(self._locks.values())
        for lock in locks:
            with lock:  # a load that is under way is finished first
                pass
        retiring = [
            threading.Thread(target=model.retire, args=(timeout,), daemon=True)
            for model in self.models()
        ]
        for thread in retiring:
            thread.start()
        for thread in (*retiring, *self._retiring):
            thread.join()

    def _refresh(self, name: str, entry: ModelEntry, *, always: bool) -> list[KsrvError]:
        """Bring one model up to date with the disk; returns what failed, which stops no other."""
        try:
            return self._renew(name, entry, always=always)
        except Exception as error:
            log.exception("the model %s cannot be loaded", name)
            failed = HandlerFailed(
                f"the model {name} cannot be loaded: {type(error).__name__}: {error}"
            )
            before = self._table.get(name) or ModelVersions()
            states = {"": ModelState(name, "", "UNAVAILABLE", failed.message)}
            self._put(name, ModelVersions(before.versions, states))
            return [failed]

    def _renew(self, name: str, entry: ModelEntry, *, always: bool) -> list[KsrvError]:
        before = self._table.get(name) or ModelVersions()
        found = {version: fingerprint(source) for version, source in entry.versions.items()}
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
        loaded = self._load_aside(fresh)
        for version in entry.versions:
            result = loaded.get(version)
            if isinstance(result, ModelVersion):
                versions[version] = result
                if version in before.versions:
                    result.follow(before.versions[version])
                continue
            if result is not None:
                log.error("the model %s version %s: %s", name, version or "-", result.message)
                source = entry.versions[version]
                failed.append(_for_clients(result, source.folder, source.root, source.root.parent))
                states[version] = ModelState(name, version, "UNAVAILABLE", result.message)
            if version in before.versions:
                versions[version] = before.versions[version]
        if entry.error:
            log.error("the model %s: %s", name, entry.error)
            path = entry.path.absolute()
            error = _for_clients(HandlerFailed(entry.error), path, path.parent)
            failed.append(error)
            states.setdefault("", ModelState(name, "", "UNAVAILABLE", error.message))
            merged = {**before.versions, **versions}
            versions = {version: merged[version] for version in sorted(merged, key=by_numbers)}
        if failed and not versions:  # a new version that cannot be served takes none away
            versions = before.versions
        self._put(name, ModelVersions(versions, states, True, found))
        kept = set(map(id, versions.values()))
        self._retire(model for model in before.versions.values() if id(model) not in kept)
        return failed

    def _load_aside(self, sources: list[ModelSource]) -> dict[str, ModelVersion | KsrvError]:
        loaded = {}
        for source in sources:
            with self._load_slots:
                loaded[source.version] = self._load_one(source)
        return loaded

    def _load_one(self, source: ModelSource) -> ModelVersion | KsrvError:
        if source.config is None or source.error:
            return HandlerFailed(source.error or f"{source.folder} has no settings")
        model = self._make(source)
        try:
            model.load()
        except KsrvError as error:
            return error
        return model

    def _put(self, name: str, served: ModelVersions | None) -> None:
        """Replace a model in the table, or take it out."""
        with self._table_lock:
            table = dict(self._table)
            if served is None:
                table.pop(name, None)
            else:
                table[name] = served
            self._table = table
        self._changed()

    def _retire(self, models: Iterable[ModelVersion]) -> None:
        with self._table_lock:
            self._retiring = [thread for thread in self._retiring if thread.is_alive()]
        for model in models:
            thread = threading.Thread(
                target=model.retire, args=(self._drain_seconds,), name="ksrv-retire", daemon=True
            )
            thread.start()
            with self._table_lock:
                self._retiring.append(thread)


def _differs(served: ModelVersions, entry: ModelEntry) -> bool:
    """Whether a model on disk differs from the model that was last loaded or tried."""
    found = {version: fingerprint(one) for version, one in entry.versions.items()}
    return found != served.fingerprints


def _for_clients(error: KsrvError, *folders: Path) -> KsrvError:
    """Take the server's paths out of an error whose whole text is in the log."""
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
