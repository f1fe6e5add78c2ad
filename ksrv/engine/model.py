"""One loaded version of a model: loads it, checks and queues its requests, and retires it.

The queue, and the batches that the instances take from it, are in the base class (`ksrv.engine.instances.host`).
"""

import gc
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from ksrv._native.queue import request_queue as native
from ksrv._native.queue.request_handle import NO_DEADLINE
from ksrv.engine.batches.padding import RowPadding
from ksrv.engine.batches.split import join
from ksrv.engine.instances.host import ExecutorFactory, InstanceHost
from ksrv.engine.instances.instance import Instance
from ksrv.engine.instances.prefetch import Prefetcher
from ksrv.engine.instances.warmup import WarmUp
from ksrv.engine.lifetime_counters import LifetimeCounters
from ksrv.engine.requests.audio_input import audio_inputs
from ksrv.engine.requests.handle import FutureHandle, QueuedRequest, SplitRequest
from ksrv.engine.requests.parts import bytes_of, rows_of
from ksrv.engine.requests.rate_limits import RateLimits
from ksrv.engine.requests.refusals import deadline_exceeded, refusal, too_many_parts
from ksrv.engine.requests.response_cache import ResponseCache
from ksrv.engine.requests.validation import RequestValidator, check_batching
from ksrv.engine.sequences.table import SequenceTable
from ksrv.engine.settings import EngineSettings
from ksrv.errors import DeadlineExceeded, HandlerFailed, InvalidRequest, KsrvError, NotReady
from ksrv.images.preparer import image_preparers
from ksrv.model.config import ModelSource
from ksrv.model.spec import ModelSpec
from ksrv.records.recording import RequestTap
from ksrv.request import InferRequest, InferResponse, RequestHandle
from ksrv.statistics import ModelStatistics

log = logging.getLogger("ksrv.engine")

SEVERAL_WORKERS = (
    "the model {} serves sequences, whose state is in one worker: set 'workers' to 1; 'instances' and "
    "'executor: process' use several cores"
)


class Retired(Exception):
    """The version no longer accepts requests; its successor does."""


class ModelVersion(InstanceHost):
    """One version of a model, from the start of its load to the end of its last request.

    Args:
        source: The version on disk; it has settings.

    Attributes:
        make_tap: Returns the tap for the requests of the loaded version, or None.
        tap: Samples requests for records and for another version; None without.
        warm_up_error: The error of a failed warm-up after which the model serves nevertheless; else "".
        load_ns: How long the instances took to load; 0 while they load.
        warm_up_ns: How long the instances took to warm up; 0 while they do.
        load_step: The current step of the load, for the log.
        validator: Checks requests. It is replaced after the load, when the handlers have completed the description.
        instances: The instances, by their numbers.
        inline_runs: For each slot the `run_inline` of its instance, for the thread that has claimed the slot.
        limits_rate: Whether requests have to be counted against limits of the model or the client.
    """

    def __init__(
        self, source: ModelSource, settings: EngineSettings, make_executor: ExecutorFactory
    ) -> None:
        super().__init__(source, make_executor, settings.usable_cores())
        self.warm_up_error = ""
        self.load_ns = 0
        self.warm_up_ns = 0
        self.load_step = "loading"
        self._settings = settings
        config = self.config
        self.cache = ResponseCache(config.cache) if config.cache else None
        self.tap: RequestTap | None = None
        self.make_tap: Callable[[ModelVersion], RequestTap | None] = lambda model: None
        self.validator = RequestValidator(self.spec)
        self.rate_limits = RateLimits(
            config.rate_limit, "rate_limit", config.max_concurrency, "max_concurrency"
        )
        limits = settings.limits
        clients = limits.client_rate > 0 or limits.client_concurrency > 0
        self.limits_rate = clients or self.rate_limits.limited
        self._closing = threading.Lock()
        self._ended = False
        self._prefetcher: Prefetcher | None = None
        self.lifetime = LifetimeCounters(self)
        self.runs_inline = (
            settings.run_on_caller
            and not self.delay_ns
            and all(executor.any_thread for executor in self.executors)
        )
        # Whether a thread that runs a request inline returns at the deadline.
        self._bounded = all(executor.keeps_deadlines for executor in self.executors)
        self.instances = [
            Instance(self, number, executor) for number, executor in enumerate(self.executors)
        ]
        self.inline_runs = [instance.run_inline for instance in self.instances]
        if config.sequences is not None:
            self.sequences = SequenceTable(
                source.name,
                config.sequences,
                slots=[instance.slot for instance in self.instances],
                is_available=lambda slot: self.instances[slot].available,
                end_sequences=lambda slot, ended: self.executors[slot].end_sequences(ended),
            )

    # ---- loading ----------------------------------------------------------------------------

    def load(self) -> None:
        """Load and warm up every instance, then serve.

        Raises:
            KsrvError: The reason why the version cannot serve. Everything is freed again.
        """
        begun = time.monotonic_ns()
        try:
            if self.sequences is not None and self._settings.workers > 1:
                raise HandlerFailed(SEVERAL_WORKERS.format(self.source.name))
            for instance in self.instances:
                instance.start()
            specs = [instance.started.result() for instance in self.instances]
            self._use_spec(specs[0])
            warm_up = WarmUp(
                self.spec, self.config, self.source.folder, self.timeout_ns, self.validator
            )
            self.load_step = "warming up"
            loaded = time.monotonic_ns()
            self.load_ns = loaded - begun
            for instance in self.instances:
                instance.serve(warm_up)
            for instance in self.instances:
                instance.warm.result()
            self.warm_up_error = warm_up.error
            self.warm_up_ns = time.monotonic_ns() - loaded
            if self._prefetches():
                self._prefetcher = Prefetcher(self)
                self._prefetcher.start()
        except Exception as error:
            self.reason = error.message if isinstance(error, KsrvError) else f"{error!r}"
            self._give_up()
            if isinstance(error, KsrvError):
                raise
            raise HandlerFailed(
                f"the model {self.source.name} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        self.state = "READY"

    def _use_spec(self, spec: ModelSpec) -> None:
        """Prepare for requests by the description that the handler has completed."""
        self.spec = spec
        check_batching(spec)
        self.runs_inline = self.runs_inline and not spec.concurrency
        self.images = image_preparers(
            spec.inputs, self._settings.limits, self._settings.usable_cores()
        )
        self.padding = RowPadding(spec)
        split = bool(self.config.batching and self.config.batching.split)
        self.validator = RequestValidator(
            spec,
            self.images,
            audio_inputs(spec.inputs, self._settings.limits),
            split=split,
            has_decode_thread=self.sequences is None,
        )
        self.tap = self.make_tap(self)

    def _prefetches(self) -> bool:
        """Whether joining a batch can take time: requests are copied, or images decoded."""
        joins = self.spec.max_batch_size > 1 or bool(self.images)
        # Any instance may take a prefetched batch, but not one of a sequence.
        return joins and self.sequences is None

    def _give_up(self) -> None:
        self.state = "UNAVAILABLE"
        self.queue.close()
        for instance in self.instances:
            instance.stop()
        for instance in self.instances:
            instance.join()

    # ---- requests ---------------------------------------------------------------------------

    def submit(
        self,
        request: InferRequest,
        callback: Callable[[RequestHandle], None] | None = None,
        *,
        allow_inline: bool = False,
        caller_blocks: bool = False,
    ) -> RequestHandle:
        """Check a request and queue it.

        Args:
            callback: Called once the request has ended.
            allow_inline: See `Engine.submit`.
            caller_blocks: See `Engine.submit`.

        Raises:
            Retired: A newer version has taken over; submit the request to it.
            KsrvError: The request is refused.
        """
        if request.adapt is not None:
            request.adapt(request, self.spec)
        if self.tap is not None:
            callback = self.tap.follow(request, callback)
        if self.cache is not None and (known := self._known_answer(self.cache, request)):
            if callback is not None:
                callback(known)
            return known
        handle = self._validated(request)
        if isinstance(handle, SplitRequest) and request.remember is not None:
            handle.add_done_callback(partial(_remember_joined, request.remember))
        if callback is not None:
            handle.add_done_callback(callback)
        if isinstance(handle, SplitRequest):
            return handle
        # At the deadline a timer answers the request. But a thread that runs a handler inline cannot return before the
        # handler does. So it may only do so if the executor keeps deadlines, or the request has none.
        caller_blocks = caller_blocks and (self._bounded or handle.deadline_ns == NO_DEADLINE)
        push = self.queue.push
        if allow_inline or caller_blocks:
            push = partial(self.queue.push_inline, caller_blocks=caller_blocks)
        pushed = push(handle) if self.sequences is None else self._push_next(handle, push)
        if pushed < 0:  # this thread has claimed the slot -1 - pushed
            self.inline_runs[-1 - pushed]([handle])
        elif pushed != native.OK:
            raise self._refusal(pushed, handle)
        return handle

    def _push_next(self, handle: QueuedRequest, push: Callable[[QueuedRequest], int]) -> int:
        """Push a request as the next of its sequence; see `SequenceTable.push`."""
        assert self.sequences is not None, "the model serves no sequences"
        if self.queue.closed:
            # Checked first: the request must go to the newer version, and not fail because its sequence has ended here.
            return native.CLOSED
        try:
            return self.sequences.push(handle, push)
        except InvalidRequest:
            self.queue.count("invalid")
            raise

    def _known_answer(self, cache: ResponseCache, request: InferRequest) -> FutureHandle | None:
        """Return the cached answer to a request. Otherwise have the answer cached when it is sent."""
        request.remember = None
        if self.queue.closed:
            return None
        began = time.monotonic_ns()
        key = cache.key(request)
        if key is None:
            return None
        known = cache.find(key, request)
        if known is None:
            request.remember = partial(cache.keep, key, cache.generation)
        self.stats.looked_up(known is not None, time.monotonic_ns() - began)
        return known

    def _validated(self, request: InferRequest) -> QueuedRequest | SplitRequest:
        """Check a request and return its handle. The parts of a `SplitRequest` are queued already."""
        try:
            rows, batch_key = self.validator.validate(request)
        except KsrvError:
            self.queue.count("invalid")
            raise
        most = self.spec.max_batch_size
        if most and rows > most:
            return self._submit_parts(request, rows, batch_key)
        return QueuedRequest(
            request, rows, batch_key, request.priority, self._deadline(request), bytes_of(request)
        )

    def _submit_parts(self, request: InferRequest, rows: int, batch_key: int) -> SplitRequest:
        """Queue a request with more rows than a batch in parts, each as large as a batch."""
        most = self.spec.max_batch_size
        needed, places = -(-rows // most), self.config.queue_size
        if needed > places:  # a full queue empties, but this request would never fit
            self.queue.count("invalid")
            raise too_many_parts(self.spec.name, rows, most, places)
        deadline = self._deadline(request)
        parts: list[QueuedRequest] = []
        for start in range(0, rows, most):
            end = min(start + most, rows)
            part = rows_of(request, start, end)
            handle = QueuedRequest(
                part,
                end - start,
                batch_key,
                request.priority,
                deadline,
                bytes_of(part),
                counted=False,  # the whole request is counted
            )
            pushed = self.queue.push(handle)
            if pushed != native.OK:
                for earlier in parts:
                    earlier.cancel()
                raise self._refusal(pushed, handle)
            parts.append(handle)
        return SplitRequest(parts, join, partial(self._count_split, parts))

    def _count_split(
        self,
        parts: Sequence[QueuedRequest],
        failed: QueuedRequest | None,
        outcome: InferResponse | KsrvError,
    ) -> None:
        """Count a request that was run in parts as one request."""
        if failed is not None and failed.state == "cancelled":
            self.queue.count("cancelled")
        elif failed is not None and failed.state == "expired":
            self.queue.count("expired_running" if failed.ended_running else "expired_queued")
        else:
            ns = max(part.ended_ns for part in parts) - parts[0].enqueued_ns
            timings = dict(outcome.timings) if isinstance(outcome, InferResponse) else None
            self.stats.split_request(ns, timings)

    def _deadline(self, request: InferRequest) -> int | None:
        deadline = request.deadline_ns
        if not self.timeout_ns:
            return deadline
        own = time.monotonic_ns() + self.timeout_ns
        return own if deadline is None or own < deadline else deadline

    def deadline_exceeded(self, waited_ms: int, *, running: bool) -> DeadlineExceeded:
        """Return the error for a request whose deadline has passed.

        Args:
            running: Whether a handler had begun it.
        """
        return deadline_exceeded(self.spec.name, waited_ms, running=running)

    def _refusal(self, pushed: int, handle: QueuedRequest) -> Exception:
        if pushed == native.CLOSED:
            return Retired()
        nbytes = bytes_of(handle.request)
        return refusal(pushed, self.spec.name, self.config.queue_size, nbytes)

    # ---- state ------------------------------------------------------------------------------

    @property
    def retired(self) -> bool:
        """Whether the version accepts no requests any more."""
        return self.queue.closed

    @property
    def ready(self) -> bool:
        """Whether the version is loaded and warm, and an instance is available."""
        return self.state == "READY" and any(instance.available for instance in self.instances)

    @property
    def returning(self) -> bool:
        """Whether the version will be ready again by itself, because the process of an instance is being replaced."""
        return self.state == "READY" and any(instance.returning for instance in self.instances)

    @property
    def why_not_ready(self) -> str:
        """Why the version is not ready; "" if it is ready."""
        if self.ready:
            return ""
        if self.state != "READY":
            return self.reason or f"it is {self.state.lower()}"
        if self.returning:
            return "its handler's process ended and is being replaced"
        return f"its handler has not returned for more than {self.config.timeout_ms} ms"

    def statistics(self) -> ModelStatistics:
        """Return the counts and times of the version, over all its loads."""
        result = self.lifetime.statistics(self.spec.name, self.spec.version)
        result.pending = self.queue.waiting
        result.restarts = sum(instance.restarts for instance in self.instances)
        if self.cache is None:
            result.cached = {}
        if self.sequences is not None:
            result.open_sequences = self.sequences.open
            result.ended_sequences = dict(self.sequences.ended)
        result.sampled.evidence = dict(self.tap.evidence) if self.tap else {}
        return result

    def count(self, field: str, outcome: str, count: int = 1) -> None:
        """See `LifetimeCounters.count`."""
        self.lifetime.count(field, outcome, count)

    def follow(self, old: "ModelVersion") -> None:
        """Continue the counts of the version that this version replaces, which may still be finishing."""
        if self.sequences is not None and old.sequences is not None:
            self.sequences.follow(old.sequences)
        self.carry_on(old.lifetime)

    def carry_on(self, lifetime: LifetimeCounters) -> None:
        """Carry on the counts of earlier loads of the version."""
        self.lifetime = lifetime
        lifetime.begin(self)

    # ---- the end ----------------------------------------------------------------------------

    def retire(self, timeout: float | None, *, collects: bool = True) -> bool:
        """Accept no more requests, finish the accepted requests, and free everything.

        Args:
            timeout: Seconds after which the remaining requests get an error; None waits for all.
            collects: Whether to run the garbage collector. False if the caller does so when it needs the memory.

        Returns:
            Whether every accepted request was finished.
        """
        with self._closing:
            if self._ended:
                return True
            self._ended = True
            if self.state == "READY":
                self.state = "UNLOADING"
            self.queue.close()
            until = None if timeout is None else time.monotonic_ns() + int(timeout * 1e9)
            finished = self.queue.wait_empty(until)
            for instance in self.instances:
                instance.stop()
            if not finished:
                self.fail_waiting(NotReady(f"the model {self.spec.name} was unloaded"))
                for instance in self.instances:
                    instance.abandon()
            ended = [instance.join(None if finished else 1.0) for instance in self.instances]
            if self._prefetcher is not None:
                self._prefetcher.join(None if finished else 1.0)
                ended.append(not self._prefetcher.is_alive())
            if self.sequences is not None:
                self.sequences.close()
            if self.tap is not None:
                self.tap.close()
            self.state = "UNAVAILABLE"
            self.reason = self.reason or "unloaded"
            self.lifetime.end(self)
            if collects:
                gc.collect()  # the handler, and so its weights, may be part of a reference cycle
            return finished and all(ended)


def _remember_joined(remember: Callable[[InferResponse], object], handle: RequestHandle) -> None:
    """Cache the joined answer of a split request, unless it failed."""
    with suppress(KsrvError):
        remember(handle.wait())
