# It relies on the GIL: a batch's handles are read in turn. The sums have a mutex, and a thread that
# holds it runs no Python code, which might let go of the GIL.
"""Counts and times of one instance: a few additions a request, summed over instances when read."""

cimport cython
from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

from ksrv._native.queue.request_handle cimport CRequest, NativeHandle

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
    """Counts and times of one instance, or of requests that no instance has run."""

    def failed(self, uint64_t count) -> None:
        """Note requests that failed before they reached a handler."""
        self.sums.mutex.lock()
        self.sums.stages[<int>STAGE_FAILED].add(0, count)
        self.sums.mutex.unlock()

    def split_request(
        self, uint64_t ns, dict timings: dict[str, int] | None
    ) -> None:
        """Note a request that was run in parts.

        Args:
            ns: Nanoseconds from its arrival to its answer.
            timings: Nanoseconds by stage, of all parts together; None if it failed.
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
        """Note that the response cache was asked for a request's answer.

        Args:
            hit: Whether it had the answer, so that the request was answered.
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
        """Note a batch that was run.

        Args:
            answers: Their answers; exceptions are failures. None where nothing failed.
            won: For each whether it was answered now, rather than expired or cancelled before.
            assemble_ns: How long the batch took to be assembled.
            timings: Nanoseconds by stage, as the handler's runner gave them.
        """
        cdef NativeHandle handle
        cdef vector[CRequest *] served, failed
        cdef CRequest *request
        cdef Py_ssize_t i
        cdef uint64_t rows = 0
        cdef BatchTimes times
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
        """Milliseconds since the epoch of the last answer; 0 for none."""
        self.sums.mutex.lock()
        cdef int64_t found = self.sums.last_ms
        self.sums.mutex.unlock()
        return found

    def snapshot(self) -> Snapshot:
        """Return the counts and times so far.

        Returns:
            `rows`, `batches` and `last_ms`; `stages` with, by name, the histogram's buckets (not
            cumulated; one more than there are bounds), the count and the nanoseconds; `sizes` with,
            by rows, the batches and the nanoseconds of input, inference and output.
        """
        cdef dict stages = {}
        cdef dict sizes = {}
        cdef int stage
        cdef int i
        cdef Histogram *one
        cdef Sums sums
        self.sums.mutex.lock()
        sums.absorb(self.sums)
        self.sums.mutex.unlock()
        for stage in range(<int>STAGES):
            one = &sums.stages[stage]
            stages[STAGE_NAMES[stage]] = (
                [one.buckets[i] for i in range(BOUNDS + 1)], one.count, one.ns,
            )
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
