"""Models that are loaded by their first request, and put away when memory is short: `--model-control lazy`.

A model that is not loaded is *dormant*: the repository knows it, readiness does not wait for it, and the first request
that names it waits while it is loaded. Before a load that would pass the bound, and after one that has, the models that
were used least recently are put away, unless they have a request or an open sequence. Models are loaded in parallel,
because one that is warming up may call another; what their loads take counts as soon as they have it.

Requests for loaded models share the GIL with loads. So Python's switch interval is shorter while models are loaded, and
the garbage of a model that was put away is collected only if its memory was not freed without it: a collection stops
every thread that needs the GIL for as long as it takes to look at all objects.

Memory is what the worker and its handler processes hold beyond what the worker held before its first model: anonymous
pages, as the kernel counts them. Files that are mapped (weights of safetensors and ONNX, libraries) are the kernel's to
take back, and do not count.
"""

import gc
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ksrv._native.memory import buffer_pool
from ksrv.engine.model_versions import ModelVersions
from ksrv.engine.registry import ModelRegistry
from ksrv.errors import DeadlineExceeded, Overloaded
from ksrv.statistics import LazyCounts

log = logging.getLogger("ksrv.engine")

RETIRED_SECONDS = 5.0
"""How long the memory of a model that was put away may take to come free before more models are put away."""

SWITCH_SECONDS = 0.0005
"""The longest that a load keeps the GIL while a request waits for it; Python's own interval is 5 ms."""

WAITING_THREADS = 64
"""Threads that wait for loads, one for each model. Requests for further models wait for a thread."""


class Waiting(NamedTuple):
    """A request that waits for a load.

    Attributes:
        until: When it is refused (`time.monotonic`).
        call: Goes on with it.
        refuse: Refuses it.
    """

    load: "Future[None]"
    until: float
    call: Callable[[], object]
    refuse: Callable[[Exception], object]


class LazyModels:
    """Loads dormant models for the requests that name them.

    Args:
        bound: Bytes that all models may take; 0 for no bound.
        measure: Returns the bytes that this process and its handler processes take.
    """

    def __init__(
        self, registry: ModelRegistry, bound: int, measure: Callable[[], int] | None = None
    ) -> None:
        self._registry = registry
        self._bound = bound
        self._measure = measure or anonymous_bytes
        self._before = self._measure()
        self._sizes: dict[str, int] = {}  # what the last load of a model has taken
        self._used: dict[str, float] = {}  # when a model was loaded last
        self._lock = threading.Lock()
        self._loads: dict[str, Future[None]] = {}
        self._usual_switch_seconds = sys.getswitchinterval()
        self._making_room = threading.Lock()
        self._waiting: dict[str, deque[Waiting]] = {}  # by the model
        self._waiters = ThreadPoolExecutor(WAITING_THREADS, "ksrv-lazy-wait")
        self._warned = False
        self._loaded = 0
        self._away = 0

    def counts(self) -> LazyCounts:
        """Return how many models were loaded and put away, and how many bytes the loaded models take."""
        loaded = sum(1 for served in self._registry.served().values() if served.versions)
        return LazyCounts(self._loaded, self._away, loaded, self._held())

    def _held(self) -> int:
        """Return the bytes that the models take."""
        return max(0, self._measure() - self._before)

    def wait_for(self, name: str, seconds: float) -> None:
        """Wait while a dormant model is loaded; why it could not be is its state afterwards.

        Raises:
            DeadlineExceeded: It takes longer than that.
            Overloaded: The system has no thread to load it.
        """
        _wait(name, self._load_of(name), seconds)

    def _load_of(self, name: str) -> "Future[None]":
        with self._lock:
            load = self._loads.get(name)
            if load is None:
                load = Future()
                thread = threading.Thread(
                    target=self._run, args=(name, load), name=f"ksrv-load-{name}", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as error:
                    raise Overloaded(
                        f"the model {name} cannot be loaded now: {error}", "threads"
                    ) from error
                self._loads[name] = load
            return load

    def run(
        self,
        name: str,
        seconds: float,
        call: Callable[[], object],
        refuse: Callable[[Exception], object],
    ) -> None:
        """Run a call once a dormant model is loaded; one thread waits for all calls of a model.

        Args:
            seconds: How long a call waits; the same for all of a model.
            refuse: Called in its place with why there was no load in time.
        """
        try:
            waiting = Waiting(self._load_of(name), time.monotonic() + seconds, call, refuse)
        except Overloaded as error:
            refuse(error)
            return
        with self._lock:
            is_first = name not in self._waiting
            self._waiting.setdefault(name, deque()).append(waiting)
        if is_first:
            try:
                self._waiters.submit(self._call_waiting, name)
            except RuntimeError as error:  # the system has no thread
                self._call_waiting(name, Overloaded(f"no load is waited for: {error}", "threads"))

    def _call_waiting(self, name: str, refusal: Exception | None = None) -> None:
        while (waiting := self._next_waiting(name)) is not None:
            failure = refusal
            try:
                if failure is None:
                    _wait(name, waiting.load, waiting.until - time.monotonic())
            except Exception as error:  # noqa: BLE001  sent to the client
                failure = error
            try:
                if failure is None:
                    waiting.call()
                else:
                    waiting.refuse(failure)
            except Exception:
                log.exception("a request that waited for the model %s is lost", name)

    def _next_waiting(self, name: str) -> Waiting | None:
        with self._lock:
            calls = self._waiting.get(name)
            if not calls:
                self._waiting.pop(name, None)
                return None
            return calls.popleft()

    def _run(self, name: str, load: "Future[None]") -> None:
        with self._lock:
            sys.setswitchinterval(min(self._usual_switch_seconds, SWITCH_SECONDS))
        try:
            self._load(name)
        except BaseException as error:  # noqa: BLE001  sent to the requests that wait
            ended = partial(load.set_exception, error)
        else:
            ended = partial(load.set_result, None)
        with self._lock:
            del self._loads[name]  # before the callbacks, because they may start the next load
            if not self._loads:
                sys.setswitchinterval(self._usual_switch_seconds)
        ended()

    def _load(self, name: str) -> None:
        self._make_room(name, self._sizes.get(name, 0))
        before, alone = self._measure(), len(self._loads) == 1
        if not self._registry.wake(name):
            return
        if alone and len(self._loads) == 1:
            self._sizes[name] = max(0, self._measure() - before)
        with self._lock:
            self._loaded += 1
            self._used[name] = time.time()
        self._make_room(name, 0)

    def _make_room(self, loading: str, coming: int) -> None:
        """Put models away until what is held and what is coming stay within the bound."""
        passed = {loading}
        with self._making_room:
            held = self._held()
            while self._bound and held + coming > self._bound:
                name = self._least_recently_used(passed)
                if name is None:
                    self._warn(loading)
                    return
                passed.add(name)
                if self._registry.put_away(name, RETIRED_SECONDS):
                    self._away += 1
                    log.info("put %s away, because the models hold more than --models-memory", name)
                held = self._held_after(held, self._sizes.get(name, 0))

    def _held_after(self, held: int, size: int) -> int:
        """Return the bytes that the models take after a model was put away.

        Args:
            held: The bytes before.
            size: The bytes that loading the model took.
        """
        buffer_pool.trim_malloc()
        left = self._held()
        if left >= held - size // 2:
            gc.collect()  # the handler may sit in a cycle, and its weights with it
            buffer_pool.trim_malloc()
            left = self._held()
        return left

    def _least_recently_used(self, passed: Collection[str]) -> str | None:
        idle = [
            (self._last_use(name, served), name)
            for name, served in self._registry.served().items()
            if name not in passed and is_idle(served)
        ]
        return min(idle)[1] if idle else None

    def _last_use(self, name: str, served: ModelVersions) -> float:
        loads = [stats for one in served.versions.values() for stats in one.all_stats]
        answered = max((stats.last_ms for stats in loads), default=0)
        return max(answered / 1000, self._used.get(name, 0.0))

    def _warn(self, loading: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "the models hold %d bytes, which is more than models_memory (%d), and no other model than %s can be put"
                " away now",
                self._held(),
                self._bound,
                loading,
            )


def _wait(name: str, load: "Future[None]", seconds: float) -> None:
    """Wait for a load.

    Raises:
        DeadlineExceeded: It takes longer.
    """
    try:
        load.result(max(seconds, 0.0))
    except NotDone:
        raise DeadlineExceeded(
            f"the model {name} is still being loaded; a later request finds it loaded"
        ) from None


def is_idle(served: ModelVersions) -> bool:
    """Tell whether a model is loaded and nobody would miss it now."""
    return bool(served.versions) and all(
        not version.queue.open and not (version.sequences and version.sequences.open)
        for version in served.versions.values()
    )


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process and of its children; 0 where the system does not say."""
    children: set[str] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            children.update(task.read_text().split())
        except OSError:
            continue  # the thread has ended
    return sum(_anonymous(process) for process in ("self", *children))


def _anonymous(process: str) -> int:
    try:
        fields = Path(f"/proc/{process}/statm").read_text().split()
    except OSError:
        return 0  # it has ended
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
