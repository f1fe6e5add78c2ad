"""Loads models for their first request, and unloads idle models when memory is short: `--model-control lazy`.

A model that is not loaded is *dormant*: the repository knows it, readiness does not wait for it, and the first request
that names it waits while it is loaded. To *put away* a loaded model is to make it dormant again. That happens before
and after a load, as long as the models take more memory than `--models-memory` allows: the model that was used least
recently goes first. Models with a request or an open sequence stay. Several models are loaded at the same time, because
a model that is warming up may call another model.

Requests for loaded models share the GIL with loads. So Python's switch interval is shorter during loads. The garbage
collector runs after a model was put away only if too little memory came free without it, because a collection keeps the
GIL while it looks at all objects.

The memory of the models is estimated: the anonymous pages of the worker and its handler processes, less the pages
of the worker before its first model. Mapped files (weights of safetensors and ONNX, libraries) do not count, because
the kernel can drop their pages.
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
"""How long to wait for the memory of a model that was put away, before the next model is put away."""

SWITCH_SECONDS = 0.0005
"""Python's switch interval during a load: how long the load keeps the GIL while a request waits for it. Otherwise 5
ms."""

WAITING_THREADS = 64
"""Threads that wait for loads, one for each model. Requests for further models wait for a thread."""


class Waiting(NamedTuple):
    """A request that waits for a load.

    Attributes:
        until: When the request is refused (`time.monotonic`).
        call: Continues the request after the load.
        refuse: Refuses the request with an error.
    """

    load: "Future[None]"
    until: float
    call: Callable[[], object]
    refuse: Callable[[Exception], object]


class LazyModels:
    """Loads dormant models for the requests that name them.

    Args:
        bound: The most bytes of all models; 0 for no bound.
        measure: Returns the bytes of this process and its handler processes; by default `anonymous_bytes`.
    """

    def __init__(
        self, registry: ModelRegistry, bound: int, measure: Callable[[], int] | None = None
    ) -> None:
        self._registry = registry
        self._bound = bound
        self._measure = measure or anonymous_bytes
        self._bytes_at_start = self._measure()
        # All by the name of the model.
        self._sizes: dict[str, int] = {}  # the bytes that the last load took
        self._used: dict[str, float] = {}  # when it was loaded last (`time.time`)
        self._loads: dict[str, Future[None]] = {}  # the loads that run now
        self._waiting: dict[str, deque[Waiting]] = {}
        self._lock = threading.Lock()
        self._usual_switch_seconds = sys.getswitchinterval()
        self._making_room = threading.Lock()  # one thread at a time puts models away
        self._waiters = ThreadPoolExecutor(WAITING_THREADS, "ksrv-lazy-wait")
        self._warned = False
        self._loaded = 0
        self._put_away_count = 0

    def counts(self) -> LazyCounts:
        """Return how many models were loaded and put away, and how many bytes the loaded models take."""
        loaded = sum(1 for served in self._registry.table.models.values() if served.versions)
        return LazyCounts(self._loaded, self._put_away_count, loaded, self._held())

    def _held(self) -> int:
        """Return the bytes that the loaded models take now."""
        return max(0, self._measure() - self._bytes_at_start)

    def wait_for(self, name: str, seconds: float) -> None:
        """Load a dormant model and wait for that. If the load fails, the model's state in the registry has the reason.

        Raises:
            DeadlineExceeded: The load takes longer than `seconds`.
            Overloaded: The system has no thread for the load.
        """
        _wait(name, self._load_of(name), seconds)

    def _load_of(self, name: str) -> "Future[None]":
        """Return the running load of a model, or start one."""
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
        """Call `call` once a dormant model is loaded. This returns at once: one thread waits for all calls of a model.

        Args:
            seconds: How long the call waits for the load. All calls of a model wait equally long, so the first of them
                also expires first.
            refuse: Called instead with the error, if the model is not loaded in time.
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
        """Wait for the load of each waiting request of a model, and continue or refuse the request."""
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
        # The growth of the process is the size of this model only if no other load runs meanwhile.
        before, alone = self._measure(), len(self._loads) == 1
        if not self._registry.wake(name):
            return
        if alone and len(self._loads) == 1:
            self._sizes[name] = max(0, self._measure() - before)
        with self._lock:
            self._loaded += 1
            self._used[name] = time.time()
        self._make_room(name, 0)

    def _make_room(self, loading: str, expected: int) -> None:
        """Put models away until the loaded models and a load stay within the bound.

        Args:
            loading: The model that is loaded, which stays.
            expected: The bytes that its load is expected to take.
        """
        passed = {loading}
        with self._making_room:
            held = self._held()
            while self._bound and held + expected > self._bound:
                name = self._least_recently_used(passed)
                if name is None:
                    self._warn(loading)
                    return
                passed.add(name)
                if self._registry.put_away(name, RETIRED_SECONDS):
                    self._put_away_count += 1
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
        # Less than half of the model's memory came free.
        if left >= held - size // 2:
            gc.collect()  # the handler, and so its weights, may be part of a reference cycle
            buffer_pool.trim_malloc()
            left = self._held()
        return left

    def _least_recently_used(self, passed: Collection[str]) -> str | None:
        idle = [
            (self._last_use(name, served), name)
            for name, served in self._registry.table.models.items()
            if name not in passed and is_idle(served)
        ]
        return min(idle)[1] if idle else None

    def _last_use(self, name: str, served: ModelVersions) -> float:
        loads = [stats for version in served.versions.values() for stats in version.all_stats]
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
    """Wait for a load; raise `DeadlineExceeded` if it takes longer than `seconds`."""
    try:
        load.result(max(seconds, 0.0))
    except NotDone:
        raise DeadlineExceeded(
            f"the model {name} is still being loaded; a later request finds it loaded"
        ) from None


def is_idle(served: ModelVersions) -> bool:
    """Tell whether a model is loaded, and has neither a request nor an open sequence."""
    return bool(served.versions) and all(
        not version.queue.open and not (version.sequences and version.sequences.open)
        for version in served.versions.values()
    )


def anonymous_bytes() -> int:
    """Return the bytes of anonymous memory of this process and its children; 0 if /proc does not have them."""
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
    # resident pages, less the shared pages of files
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
