"""`Engine`: the interface of the engine for the front ends, which find models, submit requests and change models."""

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
from ksrv.engine.model_table import ModelTable
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
from ksrv.shadow.shadowing import isolated, tap_of
from ksrv.statistics import ModelStatistics

__all__ = ["Engine", "EngineSettings", "ModelState"]

log = logging.getLogger("ksrv.engine")

IDLE_MEMORY_SECONDS = 30.0
"""Blocks of the buffer pool that were unused for this time are freed."""

MOST_DESCRIBING = 24
"""Calls for metadata that may wait at a time for dormant models. Each protocol has 32 threads for such calls."""

Change: TypeAlias = Literal["load", "unload", "reload"]
"""The calls by which a client may change models."""


class Engine:
    """Runs the models of a repository.

    Any thread may call any method. Each accepted request is answered once: with its response, its error, or
    DeadlineExceeded at its deadline.

    Args:
        make_executor: Makes the executor of an instance; by default as the model's settings say.
        server_call: Answers calls of handlers to the server itself.

    Attributes:
        handler_metrics: The values that handlers report.
        unknown_requests: The number of requests for an unknown model or version.
        lazy: Loads dormant models (`model_control: lazy`) when a request names them; None if all models are loaded at
            start-up.
        on_table_change: Called after the models that requests reach have changed, before the change is reported done.
        carry_out: Makes the changes that a client asked for. With several workers it is replaced: the change log then
            has each worker call `follow`, in one order.
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
            model = ModelVersion(spread.place(isolated(source)), self.settings, make)
            model.make_tap = partial(tap_of, find=self._table.find, submit=self.submit)
            return model

        is_lazy = self.settings.model_control == "lazy"
        self._table = ModelTable(self._table_changed)
        self._models = ModelRegistry(
            repository,
            self._table,
            make_model,
            self.settings.drain_seconds,
            self.settings.parallel_loads,
            lazy=is_lazy,
            notes=self._notes,
        )
        self.lazy = LazyModels(self._models, self.settings.models_memory) if is_lazy else None
        self._calls = CallGraph()  # which models call which
        self._clearing = threading.Lock()  # one thread at a time clears caches
        self._describing = threading.BoundedSemaphore(MOST_DESCRIBING)
        limits = self.settings.limits
        self._client_limits = RateLimits(
            limits.client_rate, "client_rate", limits.client_concurrency, "client_concurrency"
        )
        self._loaded = threading.Event()  # the load at the start has ended
        self._draining = False
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._counting = threading.Lock()  # guards `unknown_requests`
        self.unknown_requests = 0
        self.on_table_change: Callable[[], object] = lambda: None
        self._orders = itertools.count(1)  # the numbers of the changes; see `follow`
        self.carry_out: Callable[[Look], None] = self._carry_out_here

    # ---- start and end ----------------------------------------------------------------------

    def start(
        self,
        *,
        wait: bool = True,
        unloaded: Collection[str] = (),
        models: Callable[[], tuple[Mapping[str, ModelEntry], Collection[str]]] | None = None,
    ) -> None:
        """Load and warm up the models.

        A model that cannot be loaded does not stop the others; its state has the reason.

        Args:
            wait: Whether to return only when every model has been loaded or has failed.
            unloaded: Models that are loaded only when a client asks for it.
            models: Returns the models to serve instead of the models on the disk, and the names to leave unloaded. With
                several workers, all get the same models this way.

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
        """Report the server as not ready from now on. Requests are served until `close`."""
        self._draining = True
        self.on_table_change()

    def close(self, timeout: float | None = None) -> None:
        """Accept no more requests, answer the accepted requests, and free the models.

        Args:
            timeout: Seconds after which the remaining requests fail; None waits for all.
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
        """Return models with the current files of their versions, from which all workers load them.

        Args:
            unloaded: Models that are not loaded; their files are not read.
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
        """Free unused memory of earlier requests, even if no further request arrives."""
        while not self._closing.wait(IDLE_MEMORY_SECONDS):
            buffer_pool.trim(IDLE_MEMORY_SECONDS)
            if not PROCESS.held:
                # No request runs, so nobody waits while malloc returns the memory of an earlier peak.
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
        self, name: str, version: str = "", *, waits: bool = True, deadline_ns: int | None = None
    ) -> ModelVersion:
        """Return the model version that takes a request, for its `InferRequest.target`.

        Args:
            version: The version, or "" for the default version.
            waits: Whether the calling thread may wait while a dormant model is loaded.
            deadline_ns: `time.monotonic_ns` until which it waits, at most the model's `timeout_ms`.

        Raises:
            NotFound: The model or version is unknown.
            NotLoaded: The model is dormant, and the thread may not wait.
            DeadlineExceeded: The model was not loaded in time.
            NotReady: The model does not serve now.
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
        """Return the model version that takes a request; count requests for unknown models."""
        try:
            return self._table.find(name, version)
        except NotFound:
            with self._counting:
                self.unknown_requests += 1
            raise

    def spec(self, name: str, version: str = "") -> ModelSpec:
        """Return the description of a model that serves.

        Args:
            version: The version, or "" for the default version.

        Raises:
            NotFound: The model or version is unknown.
            NotReady: The model does not serve now.
        """
        return self._served(name, version).spec

    def wait_elsewhere(
        self, name: str, call: Callable[[], object], refuse: Callable[[Exception], object]
    ) -> bool:
        """Run a call on another thread after a dormant model was loaded; return False if no models are dormant.

        Args:
            refuse: Called instead of `call`, with the error, if the model was not loaded within its `timeout_ms`.
        """
        if self.lazy is None or self._closing.is_set():
            return False
        self.lazy.run(name, self._models.timeout_of(name), call, refuse)
        return True

    def describe(self, name: str, version: str = "") -> ModelSpec:
        """Return the description of a model. Loads a dormant model, because the client is about to call it.

        Raises:
            NotFound: The model or version is unknown.
            NotLoaded: The model is dormant, and `MOST_DESCRIBING` calls wait for dormant models already.
            NotReady: The model does not serve now.
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
        """Check a request and queue it.

        The request and the memory of its tensors must not change until the handle is done.

        Args:
            callback: Called with the handle once the request has ended, on the thread that ended it. A thread of the
                engine ends an expired request.
            allow_inline: Whether the calling thread may run the request before this returns, if the handler is quick.
                If the handler hangs, so does the calling thread, so other threads must be able to do its work. The
                request still ends at its deadline.
            caller_blocks: Whether the calling thread would only wait for the handle. It may then run the request, if
                the executor enforces the deadline.
            waits: Whether to wait for a dormant model; see `find`. Otherwise this never waits.

        Raises:
            KsrvError: The request is refused: unknown model, wrong request, full queue, past deadline.
        """
        while True:
            model = request.target or self.find(
                request.model_name,
                request.model_version,
                waits=waits,
                deadline_ns=request.deadline_ns,
            )
            if request.callers and self._calls.note(request.callers[-1], request.model_name):
                # The first call between these models. Find the model anew: a change of the model before the call was
                # noted has not cleared the caller's cache.
                continue
            permits = self._admit(model, request) if model.limits_rate else ()
            try:
                handle = model.submit(
                    request, callback, allow_inline=allow_inline, caller_blocks=caller_blocks
                )
                for give_back in permits:
                    handle.add_done_callback(give_back)
                return handle
            except Retired:  # the version was replaced after `find`: try its successor
                _release(permits)
                self._check_successor(model, request, waits=waits)
                request.target = None
            except BaseException:
                _release(permits)
                raise

    def _admit(self, model: ModelVersion, request: InferRequest) -> list[GiveBack]:
        """Count a request against rate limits; return the functions that end the counts.

        Raises:
            TooManyRequests: The client or the model has used up a limit.
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

    def _check_successor(self, model: ModelVersion, request: InferRequest, *, waits: bool) -> None:
        """Raise NotReady unless another version has replaced the retired `model`."""
        if self.find(request.model_name, request.model_version, waits=waits) is model:
            why = f": {model.reason}" if model.reason else "."
            raise NotReady(f"the model {request.model_name} is not ready{why}")

    def routable_models(self) -> list[tuple[str, str, ModelVersion]]:
        """Return the models that requests reach, for a front end that knows their queues.

        Returns:
            Tuples of a name, a version that a request may name ("" for the default version), and the model version
            that takes the request.
        """
        found = []
        for name, served in self._table.models.items():
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
        """Return which models are not ready and why; "" if the server is ready.

        Args:
            names: Whether to list the models' names, or only their number.
        """
        if self._draining:
            return "the server is stopping"
        return why_not_ready(
            self._table.models,
            self._table.find,
            ready_when=self.settings.ready_when,
            loaded=self._loaded.is_set(),
            names=names,
        )

    def model_ready(self, name: str, version: str = "") -> bool:
        """Tell whether a model serves.

        Args:
            version: The version, or "" for the default version.

        Raises:
            NotFound: The model or version is unknown.
        """
        return not self.why_model_not_ready(name, version)

    def why_model_not_ready(self, name: str, version: str = "") -> str:
        """Return why a model does not serve; "" if it serves.

        Args:
            version: The version, or "" for the default version.

        Raises:
            NotFound: The model or version is unknown.
        """
        try:
            model = self._table.find(name, version)
        except NotReady as error:
            return error.message
        if self._draining:
            return "the server is stopping"
        outage = outage_of(model, self._table.find)
        return f"the model {name} is not ready: {outage.reason}" if outage else ""

    def why_degraded(self, name: str, version: str = "") -> str:
        """Return why a model has fewer instances than configured, or why its warm-up failed; "" if all is well.

        Args:
            version: The version, or "" for the default version.

        Raises:
            NotFound: The model or version is unknown.
            NotReady: The model does not serve now.
        """
        model = self._table.find(name, version)
        return model.degraded or model.warm_up_error

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model that serve, in rising order; an empty list for an unversioned model.

        Raises:
            NotFound: The model is unknown.
        """
        return [model.spec.version for model in self._table.loaded(name) if model.spec.version]

    def index(self, ready_only: bool = False) -> list[ModelState]:
        """Return the state of every version of every model.

        Args:
            ready_only: Whether to leave out the versions that do not serve.
        """
        return [state for state in self._table.index() if not ready_only or state.state == "READY"]

    def unserved(self) -> list[tuple[str, str]]:
        """Return the names and versions that should serve but are not loaded."""
        return [
            (name, version)
            for name, served in self._table.models.items()
            if served.wanted and not served.dormant
            for version in served.states
            if version not in served.versions
        ]

    def dormant(self) -> set[str]:
        """Return the models that their next request loads."""
        return {name for name, served in self._table.models.items() if served.dormant}

    @property
    def refused_replacements(self) -> dict[str, int]:
        """How often a version could not be replaced because a file had changed, by name and version with a space."""
        return dict(self._models.refused_replacements)

    def loaded(self) -> list[ModelVersion]:
        """Return every version that serves."""
        return self._table.loaded()

    def statistics(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        """Return counts and times of the versions that serve.

        Args:
            name: A model's name, or "" for all.
            version: A version, or "" for all.

        Raises:
            NotFound: The model or version is unknown.
            NotReady: The version does not serve.
        """
        found = []
        for model in self._table.loaded(name, version):
            statistics = model.statistics()
            statistics.ready = outage_of(model, self._table.find) is None
            found.append(statistics)
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
            config: The text of a config.pbtxt that every worker uses instead of the model's file, until the next load.
            adjust: Returns a changed copy of the model in the repository: with other settings, fewer versions, or
                another order of versions, whose last is the default version.

        Raises:
            NotFound: The repository has no such model.
            InvalidRequest: `config` was given, and the model's format does not allow it.
            KsrvError: The model cannot be loaded. Versions that served before still serve.
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
            # With a `config` the failure is the caller's to correct.
            raise InvalidRequest(error.message) from error

    def unload(self, name: str) -> None:
        """Unload a model after its accepted requests are answered.

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
        """Make a change that a client asked this worker or another worker for.

        Args:
            order: The number of the change. It has no effect if a later change of the model was made already.

        Returns:
            The error of an "update"; the model then serves as before. None if the change succeeded.

        Raises:
            KsrvError: A "load" or "unload" failed.
        """
        if change.kind != "load":
            return self._models.apply(change, order)
        with self.repository.configured(change.name, change.config):
            return self._models.apply(change, order)

    def made_of(self, change: RepositoryChange) -> ModelEntry | None:
        """Return the model that serves after a change that failed in part; see `ModelRegistry.made_of`."""
        return self._models.made_of(change)

    def _table_changed(self, name: str) -> None:
        """Clear the caches of all models that call a changed model, and notify the front ends."""
        with self._clearing:
            table = self._table.models
            callers = self._calls.callers_of(name) & table.keys()
            models = [model for caller in callers for model in table[caller].versions.values()]
            caches = [model.cache for model in models if model.cache is not None]
            for cache in caches:
                cache.suspend()
            # Only once all are suspended, because a caller could cache an outdated answer of another caller.
            for cache in caches:
                cache.resume()
        self.on_table_change()

    def _carry_out_here(self, look: Look) -> None:
        # Before `look` reads the disk, so that of two changes the later reading wins.
        order = next(self._orders)
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
