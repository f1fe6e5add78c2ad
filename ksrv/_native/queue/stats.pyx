# Needs the GIL: the handles of a batch are read one after the other. A mutex guards the sums. A
# thread that holds the mutex runs no Python code, because Python code might release the GIL.
"""Counts and times of one instance, in histograms. Recording costs a few additions per request."""

cimport cython
from libc.stdint cimport int64_t, uint64_t
from libcpp.vector cimport vector

from native.queue.request cimport Request as CRequest
from native.queue.stats cimport (
    BOUNDS, RunTimes, DURATION_BOUNDS, Histogram, STAGES, STAGE_CACHE_HIT, STAGE_CACHE_MISS,
    STAGE_FAILED, STAGE_QUEUE, STAGE_REQUEST, unix_milliseconds,
)

from ksrv._native.queue.request_handle cimport NativeHandle

if not cython.compiled:
    from typing import Any, TypedDict

    class Snapshot(TypedDict):
        rows: int
        batches: int
        last_ms: int
        stages: dict[str, tuple[list[int], int, int]]
        sizes: dict[int, tuple[int, int, int, int]]


STAGE_NAMES = (
    "request", "failed", "queue", "assemble", "preprocess", "inference", "postprocess", "cache_hit",
    "cache_miss",
)
assert len(STAGE_NAMES) == STAGES

BOUNDS_NS: tuple[int, ...] = tuple([DURATION_BOUNDS[i] for i in range(BOUNDS)])


cdef class Stats:
    """Counts and times of one instance, or of requests that never reached an instance."""

    def failed(self, uint64_t count) -> None:
        """Count requests that failed before they reached a handler."""
        self.sums.mutex.lock()
        self.sums.stages[<int>STAGE_FAILED].add(0, count)  # 0 nanoseconds each
        self.sums.mutex.unlock()

    def split_request(
        self, uint64_t ns, dict timings: dict[str, int] | None
    ) -> None:
        """Record a request that was run in parts.

        Args:
            ns: Nanoseconds from the arrival of the request to its answer.
            timings: Nanoseconds by stage, summed over all parts. None if the request failed.
        """
        cdef uint64_t times[STAGES]
        cdef int stage
        if timings is not None:
            for stage in range(<int>STAGE_QUEUE, <int>STAGE_CACHE_HIT):
                times[stage] = timings.get(STAGE_NAMES[stage], 0)
        self.sums.mutex.lock()
        if timings is None:
            self.sums.stages[<int>STAGE_FAILED].add(ns)
        else:
            self.sums.stages[<int>STAGE_REQUEST].add(ns)
            for stage in range(<int>STAGE_QUEUE, <int>STAGE_CACHE_HIT):
                self.sums.stages[stage].add(times[stage])
        self.sums.mutex.unlock()

    def looked_up(self, bint hit, uint64_t nanoseconds) -> None:
        """Record a lookup in the response cache.

        Args:
            hit: Whether the cache had the answer.
        """
        self.sums.mutex.lock()
        if hit:
            self.sums.stages[<int>STAGE_REQUEST].add(nanoseconds)
            self.sums.stages[<int>STAGE_CACHE_HIT].add(nanoseconds)
            self.sums.last_ms = unix_milliseconds()
        else:
            self.sums.stages[<int>STAGE_CACHE_MISS].add(nanoseconds)
        self.sums.mutex.unlock()

    def batch(
        self,
        list handles not None: list[Any],
        list answers: list[Any] | None,
        list won not None: list[bool],
        uint64_t assemble_ns,
        uint64_t ran_ns,
        dict timings not None: dict[str, int],
    ) -> None:
        """Record a batch that was run.

        Args:
            answers: The answers of the batch; exceptions count as failures. None if nothing failed.
            won: For each request, whether it was answered now or had expired or was cancelled
                before.
            assemble_ns: How long the batch took to be assembled.
            timings: Nanoseconds by stage, from the handler's runner.
        """
        cdef NativeHandle handle
        cdef vector[CRequest *] served, failed
        cdef CRequest *request
        cdef Py_ssize_t i
        cdef uint64_t rows = 0
        cdef RunTimes times
        times.assemble = assemble_ns
        times.preprocess = timings.get("preprocess", 0)
        times.inference = timings.get("inference", ran_ns)
        times.postprocess = timings.get("postprocess", 0)
        for i in range(len(handles)):
            handle = <NativeHandle>handles[i]
            rows += handle.native.rows
            if not won[i]:
                continue
            if answers is not None and isinstance(answers[i], Exception):
                failed.push_back(handle.native)
            else:
                served.push_back(handle.native)
        self.sums.mutex.lock()
        for request in served:
            self.sums.add_served(request[0], times)
        for request in failed:
            self.sums.stages[<int>STAGE_FAILED].add(request.ended_ns - request.enqueued_ns)
        self.sums.add_batch(rows, served.size(), times)
        self.sums.mutex.unlock()

    def absorb(self, Stats other not None) -> None:
        """Add the counts and times of another instance.

        Args:
            other: The stats of an instance that has ended.
        """
        self.sums.mutex.lock()
        other.sums.mutex.lock()
        self.sums.absorb(other.sums)
        other.sums.mutex.unlock()
        self.sums.mutex.unlock()

    @property
    def last_ms(self) -> int:
        """Milliseconds since the epoch of the last answer; 0 without an answer."""
        self.sums.mutex.lock()
        cdef int64_t found = self.sums.last_ms
        self.sums.mutex.unlock()
        return found

    def snapshot(self) -> Snapshot:
        """Return the counts and times.

        Returns:
            `rows`, `batches` and `last_ms`. `stages` has, by name, the histogram's buckets (not
            cumulative; one more than there are bounds), the count and the nanoseconds. `sizes` has,
            by number of rows, the batches and the nanoseconds of input, inference and output.
        """
        cdef dict stages = {}
        cdef dict sizes = {}
        cdef int stage
        cdef int i
        cdef Histogram *histogram
        cdef Sums sums  # a copy, so that Python objects are made without the mutex
        self.sums.mutex.lock()
        sums.absorb(self.sums)
        self.sums.mutex.unlock()
        for stage in range(<int>STAGES):
            histogram = &sums.stages[stage]
            buckets = [histogram.buckets[i] for i in range(BOUNDS + 1)]
            stages[STAGE_NAMES[stage]] = (buckets, histogram.count, histogram.ns)
        for item in sums.sizes:
            sizes[item.first] = (
                item.second.batches, item.second.input_ns, item.second.infer_ns,
                item.second.output_ns,
            )
        return {
            "rows": sums.rows,
            "batches": sums.batches,
            "last_ms": sums.last_ms,
            "stages": stages,
            "sizes": sizes,
        }
