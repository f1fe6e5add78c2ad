"""The engine's public face: what the front ends call."""

import itertools
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.memory_budget import PROCESS
from ksrv._native.queue.request_handle import wait_completions, wake_completions
from ksrv.engine.changes import Look, RepositoryChange
from ksrv.engine.composition import CallGraph
from ksrv.engine.instances.device_spread import DeviceSpread
from ksrv.engine.instances.executor_choice import executor_for
from ksrv.engine.instances.host import ExecutorFactory
from ksrv.engine.lazy_models import LazyModels
from ksrv.engine.model import ModelVersion, Retired
from ksrv.engine.model_versions import ModelState
from ksrv.engine.readiness import outage_of, why_not_ready
from ksrv.engine.registry import ModelRegistry
from ksrv.engine.requests.rate_limits import GiveBack, RateLimits
from ksrv.engine.settings import EngineSettings
from ksrv.errors import (
    Forbidden,
    HandlerFailed,
    InvalidRequest,
    KsrvError,
    NotFound,
    NotLoaded,
    NotReady,
)
from ksrv.handlers.imports.own_writes import notes_folder
from ksrv.model.config import ModelSource
from ksrv.model.spec import ModelSpec
from ksrv.observe.handler_metrics import HandlerMetrics
from ksrv.repository.entry import ModelEntry
from ksrv.repository.layout import Repository
from ksrv.request import InferRequest, RequestHandle
from ksrv.statistics import ModelStatistics

__all__ = ["Engine", "EngineSettings", "ModelState"]

log = logging.getLogger("ksrv.engine")

IDLE_MEMORY_SECONDS = 30.0

MOST_DESCRIBING = 24
"""Threads for metadata, of 32 for each protocol, that may wait while dormant models are loaded."""

Change: TypeAlias = Literal["load", "unload", "reload"]
"""The calls by which a client may change what is served."""


class Engine:
    """Runs the models of a repository.

    Every method may be called from any thread. A request that was accepted is answered once: with
    its response, with its error, or with DeadlineExceeded at its deadline.

    Args:
        make_executor: Makes the executor of an instance; by default what the model's settings say.
        server_call: Answers what handlers ask of the server itself.

    Attributes:
        handler_metrics: The values that handlers report.
        unknown_requests: How many requests named an unknown model or version.
        lazy: Loads models for the requests that name them; None where all are loaded at the start.
        on_table_change: Called when what requests reach has changed, before the change is reported done.
        carry_out: Makes the changes that a client asked for. With several workers, `follow` makes them in all
            workers, in one order.
    """

    def __init__(
        self,
        repository: Repository,
        settings: EngineSettings | None = None,
        *,
        make_executor: ExecutorFactory | None = None,
        server_call: "Callable[[Engine, InferRequest], RequestHandle] | None" = None,
    ) -> None:
        self.repository = repository
        self.settings = settings or EngineSettings()
        self.handler_metrics = HandlerMetrics()
        make = make_executor or partial(
            executor_for,
            emit=self.handler_metrics.record,
            limits=self.settings.limits,
            submit=self.submit,
            ask=server_call and partial(server_call, self),
            debug=self.settings.debug,
        )

        self._notes = self.settings.notes or notes_folder(secrets.token_hex(8))
        spread = DeviceSpread()

        def make_model(source: ModelSource) -> ModelVersion:
            return ModelVersion(spread.place(source), self.settings, make)

        self._models = ModelRegistry(
            repository,
            make_model,
            self.settings.drain_seconds,
            self.settings.parallel_loads,
            lazy=self.settings.model_control == "lazy",
            changed=self._table_changed,
            notes=self._notes,
        )
        self.lazy = (
            LazyModels(self._models, self.settings.models_memory)
            if self.settings.model_control == "lazy"
            else None
        )
        self._calls = CallGraph()
        self._clearing = threading.Lock()
        self._describing = threading.BoundedSemaphore(MOST_DESCRIBING)
        limits = self.settings.limits
        self._client_limits = RateLimits(
            limits.client_rate, "client_rate", limits.client_concurrency, "client_concurrency"
        )
        self._loaded = threading.Event()
        self._draining = False
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._counting = threading.Lock()
        self.unknown_requests = 0
        self.on_table_change: Callable[[], object] = lambda: None
        self._orders = itertools.count(1)
        self.carry_out: Callable[[Look], None] = self._carry_out_here

    # ---- life -------------------------------------------------------------------------------

    def start(
        self,
        *,
        wait: bool = True,
        unloaded: Collection[str] = (),
        models: Callable[[], tuple[Mapping[str, ModelEntry], Collection[str]]] | None = None,
    ) -> None:
        """Load and warm up the models.

        A model that cannot be loaded does not stop the others: its state says why.

        Args:
            wait: Whether to return only when every model has been loaded or has failed.
            unloaded: Models that are not loaded until a client asks for that.
            models: Returns the models that replace the models on the disk, and which of them are not loaded.

        Raises:
            RepositoryError: A path of the repository holds no models (only with `wait`).
        """
        PROCESS.bound = self.settings.bytes_in_flight()
        self._run(self._run_completions, "ksrv-completions")
        self._run(self._give_memory_back, "ksrv-memory")
        if wait:
            self._load_all(unloaded, models)
        else:
            self._run(partial(self._load_all, unloaded, models), "ksrv-load")
        if self.settings.watch_seconds > 0:
            self._run(self._watch, "ksrv-watch")

    def drain(self) -> None:
        """Report not ready from now on; requests are still served until `close`."""
        self._draining = True
        self.on_table_change()

    def close(self, timeout: float | None = None) -> None:
        """Accept nothing more, finish what was accepted, and free the models.

        Args:
            timeout: Seconds after which the requests that are left are failed; None waits for all.
        """
        self._draining = True
        self._closing.set()
        self._models.close(timeout)
        if not self.settings.notes:
            shutil.rmtree(self._notes, ignore_errors=True)
        for thread in self._threads:
            while thread.is_alive():
                wake_completions()
                thread.join(0.02)

    def with_files(
        self, entries: Mapping[str, ModelEntry], unloaded: Collection[str] = ()
    ) -> dict[str, ModelEntry]:
        """Return models with the files of their versions as they are now, to load them by.

        Args:
            unloaded: Those that are not loaded, whose files are left alone.
        """
        return {
            name: entry if name in unloaded else self._models.with_files(entry)
            for name, entry in entries.items()
        }

    def _load_all(
        self,
        unloaded: Collection[str],
        models: Callable[[], tuple[Mapping[str, ModelEntry], Collection[str]]] | None,
    ) -> None:
        entries: Mapping[str, ModelEntry]
        if models is None:
            entries = self.with_files(self.repository.scan(), unloaded)
        else:
            entries, unloaded = models()
        self._models.load_all(entries, unloaded)
        self._loaded.set()

    def _run(self, target: object, name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _run_completions(self) -> None:
        while not self._closing.is_set():
            try:
                wait_completions()
            except Exception:
                log.exception("a callback of a request that ended failed")

    def _give_memory_back(self) -> None:
        """Free the memory that is kept for requests, also when none comes any more."""
        while not self._closing.wait(IDLE_MEMORY_SECONDS):
            buffer_pool.trim(IDLE_MEMORY_SECONDS)
            if not PROCESS.held:
                # Nobody waits for malloc now, which may hold what a crowd of clients took.
                buffer_pool.trim_malloc()

    def _watch(self) -> None:
        while not self._closing.wait(self.settings.watch_seconds):
            if not self._loaded.is_set():
                continue
            try:
                self._bring_up_to_date()
            except KsrvError as error:
                log.error("the models are not up to date with the repository: %s", error.message)
            except Exception:
                log.exception("the repository cannot be looked at for changes")

    # ---- requests ---------------------------------------------------------------------------

    def find(
        self,
        name: str,
        version: str = "",
        *,
        waits: bool = True,
        deadline_ns: int | None = None,
    ) -> ModelVersion:
        """Return the model version that takes a request, for its `InferRequest.target`.

        Args:
            version: The version's, or "" for the highest.
            waits: Whether the calling thread may wait while a model that is not loaded is.
            deadline_ns: `time.monotonic_ns` until which it waits, at most the model's `timeout_ms`.

        Raises:
            NotFound: The model or version is unknown.
            NotLoaded: The model is dormant, and the thread may not wait.
            DeadlineExceeded: It is still being loaded then.
            NotReady: It does not serve now.
        """
        while True:
            try:
                return self._served(name, version)
            except NotLoaded:
                if not waits or self.lazy is None or self._closing.is_set():
                    raise
            seconds = self._models.timeout_of(name)
            if deadline_ns is not None:
                seconds = min(seconds, (deadline_ns - time.monotonic_ns()) / 1e9)
            self.lazy.wait_for(name, seconds)

    def _served(self, name: str, version: str) -> ModelVersion:
        try:
            return self._models.find(name, version)
        except NotFound:
            with self._counting:
                self.unknown_requests += 1
            raise

    def spec(self, name: str, version: str = "") -> ModelSpec:
        """Return the description of a model that serves.

        Args:
            version: The version's, or "" for the highest.

        Raises:
            NotFound: The model or version is unknown.
            NotReady: It does not serve now.
        """
        return self._served(name, version).spec

    def wait_elsewhere(
        self,
        name: str,
        call: Callable[[], object],
        refuse: Callable[[Exception], object],
    ) -> bool:
        """Run a call on another thread once a dormant model is loaded; return False if no load is waited for.

        Args:
            refuse: Called in its place with why there was no load in the model's `timeout_ms`.
        """
        if self.lazy is None or self._closing.is_set():
            return False
        self.lazy.run(name, self._models.timeout_of(name), call, refuse)
        return True

    def describe(self, name: str, version: str = "") -> ModelSpec:
        """Return the description of a model for a client that is about to call it; a dormant model is loaded for that.

        Raises:
            NotFound: The model or version is unknown.
            NotLoaded: The model is dormant, and enough threads wait for loads in order to describe models.
            NotReady: It does not serve now.
        """
        waits = self._describing.acquire(blocking=False)
        try:
            return self.find(name, version, waits=waits).spec
        finally:
            if waits:
                self._describing.release()

    def submit(
        self,
        request: InferRequest,
        callback: Callable[[RequestHandle], None] | None = None,
        *,
        allow_inline: bool = False,
        caller_blocks: bool = False,
        waits: bool = True,
    ) -> RequestHandle:
        """Check a request and queue it; this never waits.

        The request belongs to the engine until the handle is done: neither it nor the memory of its
        tensors may change.

        Args:
            callback: Called with the handle once the request has ended, on the thread that ended
                it; an expired request is ended by a thread of the engine.
            allow_inline: Whether the calling thread may run the request before this returns, if the
                handler has proven quick. Other threads must be able to do the calling thread's
                work: a handler that hangs keeps it, though the request ends at its deadline.
            caller_blocks: Whether the calling thread would only wait for the handle. It may then run
                the request, if the executor enforces the request's deadline.
            waits: See `find`.

        Raises:
            KsrvError: It is refused: unknown model, wrong request, full queue, past deadline.
        """
        while True:
            model = request.target or self.find(
                request.model_name,
                request.model_version,
                waits=waits,
                deadline_ns=request.deadline_ns,
            )
            if request.callers and self._calls.note(request.callers[-1], request.model_name):
                continue  # a change between the two has not cleared what the caller remembers
            permits = self._admit(model, request) if model.limits_rate else ()
            try:
                handle = model.submit(
                    request, callback, allow_inline=allow_inline, caller_blocks=caller_blocks
                )
                for give_back in permits:
                    handle.add_done_callback(give_back)
                return handle
            except Retired:
                _release(permits)
                self._check_successor(model, request, waits=waits)
                request.target = None
            except BaseException:
                _release(permits)
                raise

    def _admit(self, model: ModelVersion, request: InferRequest) -> list[GiveBack]:
        """Count a request against the limits. Return the functions that end its counts.

        Raises:
            TooManyRequests: Its client or its model has used up a limit.
        """
        permits = []
        if request.client and self._client_limits.limited:
            permits.append(self._client_limits.admit(request.client, "the client"))
        try:
            if model.rate_limits.limited:
                permits.append(model.rate_limits.admit("", f"the model {model.spec.name}"))
        except BaseException:
            _release(permits)
            raise
        return permits

    def _table_changed(self, name: str) -> None:
        """Clear the caches of the models that call a model that has changed, and tell the front ends."""
        with self._clearing:
            table = self._models.served()
            callers = self._calls.callers_of(name) & table.keys()
            models = [model for caller in callers for model in table[caller].versions.values()]
            caches = [model.cache for model in models if model.cache is not None]
            for cache in caches:
                cache.suspend()
            for cache in caches:  # now that none of them has an outdated answer for the others
                cache.resume()
        self.on_table_change()

    def _check_successor(
        self, model: ModelVersion, request: InferRequest, *, waits: bool = True
    ) -> None:
        """Raise NotReady unless another version has taken the retired one's place."""
        if self.find(request.model_name, request.model_version, waits=waits) is model:
            why = f": {model.reason}" if model.reason else "."
            raise NotReady(f"the model {request.model_name} is not ready{why}")

    def routable_models(self) -> list[tuple[str, str, ModelVersion]]:
        """Return the models that requests reach, for a front end that knows their queues.

        Returns:
            For each name and version that a request may ask for, "" standing for the highest
            version, the version that takes it.
        """
        found = []
        for name, served in self._models.served().items():
            reached = dict(served.versions)
            if served.default is not None:
                reached[""] = served.default
            found += [(name, version, model) for version, model in reached.items()]
        return found

    # ---- state ------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Tell whether every configured model serves (any, with `ready_when="any"`)."""
        return not self.why_not_ready()

    def why_not_ready(self, *, names: bool = True) -> str:
        """Return which models are not ready and why; "" where the server is ready.

        Args:
            names: Whether to name them, rather than say how many they are.
        """
        if self._draining:
            return "the server is stopping"
        return why_not_ready(
            self._models.served(),
            self._models.find,
            ready_when=self.settings.ready_when,
            loaded=self._loaded.is_set(),
            names=names,
        )

    def model_ready(self, name: str, version: str = "") -> bool:
        """Tell whether a model serves.

        Args:
            version: The version's, or "" for the highest.

        Raises:
            NotFound: The model or version is unknown.
        """
        return not self.why_model_not_ready(name, version)

    def why_model_not_ready(self, name: str, version: str = "") -> str:
        """Return why a model does not serve; "" where it does.

        Args:
            version: The version's, or "" for the highest.

        Raises:
            NotFound: The model or version is unknown.
        """
        try:
            model = self._models.find(name, version)
        except NotReady as error:
            return error.message
        if self._draining:
            return "the server is stopping"
        outage = outage_of(model, self._models.find)
        return f"the model {name} is not ready: {outage.reason}" if outage else ""

    def why_degraded(self, name: str, version: str = "") -> str:
        """Return why a model serves with fewer instances, or although its warm-up failed; "" if all is well.

        Args:
            version: The version's, or "" for the highest.

        Raises:
            NotFound: The model or version is unknown.
            NotReady: It does not serve now.
        """
        model = self._models.find(name, version)
        return model.degraded or model.warm_up_error

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model that serve, in rising order; an empty list for an unversioned model.

        Raises:
            NotFound: The model is unknown.
        """
        return [model.spec.version for model in self._models.models(name) if model.spec.version]

    def index(self, ready_only: bool = False) -> list[ModelState]:
        """Return the state of every version of every model.

        Args:
            ready_only: Whether to leave out the versions that do not serve.
        """
        return [line for line in self._models.index() if not ready_only or line.state == "READY"]

    def unserved(self) -> list[tuple[str, str]]:
        """Return the names and versions that should serve and have not been loaded."""
        return [
            (name, version)
            for name, served in self._models.served().items()
            if served.wanted and not served.dormant
            for version in served.states
            if version not in served.versions
        ]

    def dormant(self) -> set[str]:
        """Return the models that their next request loads."""
        return {name for name, served in self._models.served().items() if served.dormant}

    @property
    def refused_replacements(self) -> dict[str, dict[str, int]]:
        """How often a version could not be loaded again, because a file had changed; by name and version."""
        found: dict[str, dict[str, int]] = {}
        for (name, version), count in list(self._models.refused_replacements.items()):
            found.setdefault(name, {})[version] = count
        return found

    def loaded(self) -> list[ModelVersion]:
        """Return every version that serves, with how it was loaded."""
        return self._models.models()

    def statistics(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        """Return counts and times of the versions that serve.

        Args:
            name: A model's name, or "" for all.
            version: A version's, or "" for all.

        Raises:
            NotFound: The model or version is unknown.
            NotReady: The version named does not serve.
        """
        found = []
        for model in self._models.models(name, version):
            one = model.statistics()
            one.ready = outage_of(model, self._models.find) is None
            found.append(one)
        return found

    # ---- the repository ---------------------------------------------------------------------

    def load(
        self,
        name: str,
        config: str | None = None,
        *,
        adjust: Callable[[ModelEntry], ModelEntry] | None = None,
    ) -> None:
        """Load a model, or load it again while the old version serves.

        Args:
            adjust: Returns the model to load, made from the model of the repository: with fewer versions, in another
                order, of which the last version is the default, or with other settings.
            config: The text of a config.pbtxt to load it by until the next load, in every worker.

        Raises:
            NotFound: The repository holds no such model.
            InvalidRequest: `config` was given, and the model's format takes none.
            KsrvError: It cannot be loaded; what served before still serves.
        """
        self._check_control("load")

        def look() -> list[RepositoryChange]:
            entry = self.repository.entry(name, config)
            entry = self._models.with_files(entry if adjust is None else adjust(entry))
            return [RepositoryChange(kind="load", name=name, entry=entry, config=config)]

        try:
            self.carry_out(look)
        except HandlerFailed as error:
            if config is None:
                raise
            raise InvalidRequest(error.message) from error  # the caller can mend it

    def unload(self, name: str) -> None:
        """Take a model out of service; its requests are finished first.

        Raises:
            NotFound: The model is unknown.
        """
        self._check_control("unload")
        self.carry_out(lambda: [RepositoryChange(kind="unload", name=name)])

    def reload_changed(self) -> bool:
        """Load the models that have changed on disk, and unload the models that are gone.

        Returns:
            Whether anything had changed.
        """
        self._check_control("reload")
        return self._bring_up_to_date()

    def _bring_up_to_date(self) -> bool:
        found: Sequence[RepositoryChange] = ()

        def look() -> Sequence[RepositoryChange]:
            nonlocal found
            found = self._models.outdated()
            return found

        self.carry_out(look)
        return bool(found)

    def follow(self, change: RepositoryChange, order: int) -> KsrvError | None:
        """Make a change that a client asked this engine or another worker for.

        Returns:
            Why a model could not be brought up to date, which serves as before; else None.

        Raises:
            KsrvError: As `load` and `unload`.
        """
        if change.kind != "load":
            return self._models.apply(change, order)
        with self.repository.configured(change.name, change.config):
            return self._models.apply(change, order)

    def made_of(self, change: RepositoryChange) -> ModelEntry | None:
        """Return a model as it serves since a change that failed in part; see `ModelRegistry.made_of`."""
        return self._models.made_of(change)

    def _carry_out_here(self, look: Look) -> None:
        order = next(
            self._orders
        )  # before the disk is read: of two changes, the later reading wins
        changes = look()
        if len(changes) == 1:
            self.follow(changes[0], order)
        else:
            self._models.apply_all(changes, order)

    def _check_control(self, change: "Change") -> None:
        control = self.settings.model_control
        if control in ("none", "poll") or (control == "explicit" and change == "reload"):
            raise Forbidden(
                f"this server refuses calls that {change} models, because --model-control is '{control}'"
            )


def _release(permits: Sequence[GiveBack]) -> None:
    for give_back in permits:
        give_back()
