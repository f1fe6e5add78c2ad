"""Which versions of which models serve, and how that changes: load, unload, reload.

A new version is built and warmed up aside, while the old one serves; then it takes over in one
assignment, and the old one finishes what it accepted and is freed. A load that fails leaves the old
one where it is and keeps the reason. Readers take no lock: the table is replaced, never changed.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ksrv.engine.model import LoadedModel, State
from ksrv.errors import HandlerFailed, KsrvError, NotFound, NotReady, quote, without_paths
from ksrv.repository.layout import ModelEntry, Repository, by_numbers
from ksrv.source import ModelSource

log = logging.getLogger("ksrv.engine")


@dataclass(frozen=True, slots=True)
class ModelState:
    """One line of the repository's index.

    Attributes:
        state: "LOADING", "READY", "UNLOADING" or "UNAVAILABLE".
        reason: Why it is not ready, or "".
    """

    name: str
    version: str
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """The versions of one model.

    Attributes:
        versions: Those that serve, in rising order.
        states: Those that do not, by version.
        wanted: Whether readiness waits for the model: configured, and not unloaded on purpose.
        fingerprints: What each version on disk looked like when it was last loaded or tried.
    """

    versions: dict[str, LoadedModel] = field(default_factory=dict)
    states: dict[str, ModelState] = field(default_factory=dict)
    wanted: bool = True
    fingerprints: Mapping[str, object] = field(default_factory=dict)

    @property
    def default(self) -> LoadedModel | None:
        """The version that serves requests that name none: the highest that was not lost."""
        for model in reversed(self.versions.values()):
            if model.state == "READY":
                return model
        return next(reversed(self.versions.values()), None)

    @property
    def highest_state(self) -> ModelState | None:
        """The state of the highest version that does not serve."""
        return next(reversed(self.states.values()), None)


class ServedModels:
    """The table of models.

    Args:
        repository: What is on disk.
        make: Makes a model that is not loaded yet.
        drain_seconds: How long an old version may take to finish what it accepted.
    """

    def __init__(
        self,
        repository: Repository,
        make: Callable[[ModelSource], LoadedModel],
        drain_seconds: float,
    ) -> None:
        self._repository = repository
        self._make = make
        self._drain_seconds = drain_seconds
        self._table: dict[str, Served] = {}
        self._changing = threading.Lock()
        self._retiring: list[threading.Thread] = []
        self._closing = False

    # ---- reading ----------------------------------------------------------------------------

    def find(self, name: str, version: str = "") -> LoadedModel:
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

    def models(self, name: str = "", version: str = "") -> list[LoadedModel]:
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

    def served(self) -> Mapping[str, Served]:
        """Return the table as it is now."""
        return self._table

    def index(self) -> list[ModelState]:
        """Return the state of every version of every model."""
        lines = []
        for name in sorted(self._table):
            served = self._table[name]
            lines += [
                _state_of(model, served.states.get(version))
                for version, model in served.versions.items()
            ]
            lines += [
                state for version, state in served.states.items() if version not in served.versions
            ]
        return lines

    # ---- changing ---------------------------------------------------------------------------

    def load_all(self, unloaded: Collection[str] = ()) -> None:
        """Load everything that the repository holds; failures are kept as states.

        Args:
            unloaded: The models that are not wanted.
        """
        with self._changing:
            entries = self._repository.scan()
            for name, entry in entries.items():
                if name in unloaded:
                    self._put(name, _unloaded(name, entry.versions))
                    continue
                states = {
                    version: ModelState(name, version, "LOADING") for version in entry.versions
                }
                self._put(name, Served(states=states))
            for name, entry in entries.items():
                if name in unloaded:
                    continue
                if self._closing:
                    return
                self._refresh(name, entry, always=True)

    def load(self, name: str) -> None:
        """Load a model, or load it anew; the old versions serve meanwhile.

        Args:
            name: The model's name.

        Raises:
            NotFound: The repository holds no such model.
            KsrvError: A version cannot be loaded.
        """
        with self._changing:
            entry = self._repository.scan().get(name)
            if entry is None:
                raise NotFound(f"the repository holds no model {quote(name)}.")
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
        with self._changing:
            served = self._table.get(name)
            if served is None:
                raise NotFound(f"Request for unknown model: {quote(name)} is not found")
            versions = list(served.versions) or list(served.states)
            self._put(name, _unloaded(name, versions))
            self._retire(served.versions.values())

    def reload_changed(self) -> bool:
        """Load what has changed on disk, and unload what is gone.

        Returns:
            Whether anything had changed.
        """
        changed = False
        with self._changing:
            entries = self._repository.scan()
            for name in [name for name in self._table if name not in entries]:
                old = self._table[name]
                self._table = {key: one for key, one in self._table.items() if key != name}
                self._retire(old.versions.values())
                changed = True
            for name, entry in entries.items():
                served = self._table.get(name)
                if served is not None and not served.wanted:
                    continue
                found = {version: fingerprint(one) for version, one in entry.versions.items()}
                if served is None or found != served.fingerprints:
                    changed = True
                    self._refresh(name, entry, always=False)
        return changed

    def close(self, timeout: float | None) -> None:
        """Retire every version.

        Args:
            timeout: Seconds to wait for accepted requests; None waits for all.
        """
        self._closing = True
        with self._changing:
            models = [
                model for served in self._table.values() for model in served.versions.values()
            ]
            retiring = [
                threading.Thread(target=model.retire, args=(timeout,), daemon=True)
                for model in models
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
            before = self._table.get(name) or Served()
            states = {"": ModelState(name, "", "UNAVAILABLE", failed.message)}
            self._put(name, Served(before.versions, states))
            return [failed]

    def _renew(self, name: str, entry: ModelEntry, *, always: bool) -> list[KsrvError]:
        before = self._table.get(name) or Served()
        found = {version: fingerprint(source) for version, source in entry.versions.items()}
        versions: dict[str, LoadedModel] = {}
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
            if isinstance(result, LoadedModel):
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
        self._put(name, Served(versions, states, True, found))
        kept = set(map(id, versions.values()))
        self._retire(model for model in before.versions.values() if id(model) not in kept)
        return failed

    def _load_aside(self, sources: list[ModelSource]) -> dict[str, LoadedModel | KsrvError]:
        return {source.version: self._load_one(source) for source in sources}

    def _load_one(self, source: ModelSource) -> LoadedModel | KsrvError:
        if source.config is None or source.error:
            return HandlerFailed(source.error or f"{source.folder} has no settings")
        model = self._make(source)
        try:
            model.load()
        except KsrvError as error:
            return error
        return model

    def _put(self, name: str, served: Served) -> None:
        self._table = {**self._table, name: served}

    def _retire(self, models: Iterable[LoadedModel]) -> None:
        self._retiring = [thread for thread in self._retiring if thread.is_alive()]
        for model in models:
            thread = threading.Thread(
                target=model.retire, args=(self._drain_seconds,), name="ksrv-retire", daemon=True
            )
            thread.start()
            self._retiring.append(thread)


def _unloaded(name: str, versions: Iterable[str]) -> Served:
    """Return what stands for a model that was unloaded on purpose."""
    states = {version: ModelState(name, version, "UNAVAILABLE", "unloaded") for version in versions}
    return Served(states=states, wanted=False)


def _for_clients(error: KsrvError, *folders: Path) -> KsrvError:
    """Take the server's paths out of an error whose whole text is in the log."""
    error.message = without_paths(error.message, *folders)
    error.args = (error.message,)
    return error


def _state_of(model: LoadedModel, failed: ModelState | None) -> ModelState:
    """Return a serving version's line; one whose newer load failed says so."""
    reason = model.reason
    if model.warm_up_error and not reason:
        reason = model.warm_up_error
    if failed is not None and not reason:
        reason = f"serves as it was loaded before; the last load failed: {failed.reason}"
    return ModelState(model.spec.name, model.spec.version, model.state, reason)


def fingerprint(source: ModelSource) -> object:
    """Return what tells a version on disk from a changed one: its files' sizes and times.

    Args:
        source: The version on disk.
    """
    try:
        files = _files(source)
    except (OSError, RecursionError) as error:  # loading says what is wrong with the folder
        return (type(error).__name__, source.error)
    marks = []
    for path in sorted(files):
        try:
            status = path.stat()
        except OSError:
            continue  # gone between listing and looking: the next look sees that
        marks.append((str(path), status.st_size, status.st_mtime_ns))
    return (tuple(marks), source.error)


def _files(source: ModelSource) -> set[Path]:
    config = source.config
    if config is None or config.handler is not None or config.model is None:
        return set(_below(source))
    model = Path(config.model)
    if model.parent == source.folder and not (source.root / "model.yaml").exists():
        return {model}  # a bare file's folder holds other models
    return {model, *_below(source)}


def _below(source: ModelSource) -> list[Path]:
    found = [path for path in source.folder.rglob("*") if path.is_file() and _counts(path)]
    if source.root != source.folder:
        found += [path for path in source.root.iterdir() if path.is_file() and _counts(path)]
    return found


def _counts(path: Path) -> bool:
    return "__pycache__" not in path.parts and not path.name.startswith(".")
