# It relies on the GIL: sums that are plain numbers.
"""Counts and times of one instance: a few additions a request, summed over instances when read."""

from libc.stdint cimport int64_t, uint64_t
from libcpp.map cimport map as cpp_map
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from ksrv._native.queue.request_handle cimport NativeHandle


cdef extern from "queue/stats.hpp" namespace "ksrv" nogil:
    cdef enum:
        BOUNDS

    const uint64_t DURATION_BOUNDS[BOUNDS]

    cdef enum Stage:
        STAGE_REQUEST
        STAGE_FAILED
        STAGE_QUEUE
        STAGE_ASSEMBLE
        STAGE_PREPROCESS
        STAGE_INFERENCE
        STAGE_POSTPROCESS
        STAGES

    cdef cppclass Histogram:
        uint64_t buckets[BOUNDS + 1]
        uint64_t count
        uint64_t ns
        void add(uint64_t value)
        void add(uint64_t value, uint64_t times)

    cdef cppclass SizeSums:
        uint64_t batches
        uint64_t input_ns
        uint64_t infer_ns
        uint64_t output_ns

    cdef cppclass Sums:
        Histogram stages[STAGES]
        cpp_map[uint64_t, SizeSums] sizes
        uint64_t rows
        uint64_t batches
        int64_t last_ms
        SizeSums &of_size(uint64_t count) noexcept
        void absorb(const Sums &other) noexcept


STAGE_NAMES = ("request", "failed", "queue", "assemble", "preprocess", "inference", "postprocess")
assert len(STAGE_NAMES) == STAGES

BOUNDS_NS = tuple([DURATION_BOUNDS[i] for i in range(BOUNDS)])


cdef class Stats:
    """Counts and times of one instance. Only the thread that runs the instance's batches writes."""

    cdef Sums sums

    def failed(self, uint64_t count) -> None:
        """Note requests that failed before they reached a handler.

        Args:
            count: How many.
        """
        self.sums.stages[<int>STAGE_FAILED].add(0, count)

    def batch(self, list handles not None, list answers, list won not None,
              uint64_t assemble_ns, uint64_t ran_ns, dict timings not None) -> None:
        """Note a batch that was run.

        Args:
            handles: Its requests.
            answers: Their answers; exceptions are failures. None where nothing failed.
            won: For each whether it was answered now, rather than expired or cancelled before.
            assemble_ns: How long the batch took to be assembled.
            ran_ns: How long the executor took.
            timings: Nanoseconds by stage, as the handler's runner gave them.
        """
        cdef NativeHandle handle
        cdef Py_ssize_t i
        cdef uint64_t served = 0
        cdef uint64_t rows = 0
        cdef uint64_t preprocess = timings.get("preprocess", 0)
        cdef uint64_t inference = timings.get("inference", ran_ns)
        cdef uint64_t postprocess = timings.get("postprocess", 0)
        cdef Histogram *stages = self.sums.stages
        cdef SizeSums *size
        cdef timespec now
        for i in range(len(handles)):
            handle = <NativeHandle>handles[i]
            rows += handle.native.rows
            if not won[i]:
                continue
            if answers is not None and isinstance(answers[i], Exception):
                stages[<int>STAGE_FAILED].add(handle.native.ended_ns - handle.native.enqueued_ns)
                continue
            served += 1
            stages[<int>STAGE_REQUEST].add(handle.native.ended_ns - handle.native.enqueued_ns)
            stages[<int>STAGE_QUEUE].add(handle.native.started_ns - handle.native.enqueued_ns)
        if served:
            stages[<int>STAGE_ASSEMBLE].add(assemble_ns, served)
            stages[<int>STAGE_PREPROCESS].add(preprocess, served)
            stages[<int>STAGE_INFERENCE].add(inference, served)
            stages[<int>STAGE_POSTPROCESS].add(postprocess, served)
        size = &self.sums.of_size(rows)
        size.batches += 1
        size.input_ns += assemble_ns + preprocess
        size.infer_ns += inference
        size.output_ns += postprocess
        self.sums.rows += rows
        self.sums.batches += 1
        clock_gettime(CLOCK_REALTIME, &now)
        self.sums.last_ms = <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000

    def absorb(self, Stats other not None) -> None:
        """Add the counts and times of another instance.

        Args:
            other: The stats of an instance that has ended.
        """
        self.sums.absorb(other.sums)

    def snapshot(self) -> dict:
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
        for stage in range(<int>STAGES):
            one = &self.sums.stages[stage]
            stages[STAGE_NAMES[stage]] = (
                [one.buckets[i] for i in range(BOUNDS + 1)], one.count, one.ns
            )
        for item in self.sums.sizes:
            sizes[item.first] = (
                item.second.batches, item.second.input_ns, item.second.infer_ns,
                item.second.output_ns,
            )
        return {
            "rows": self.sums.rows,
            "batches": self.sums.batches,
            "last_ms": self.sums.last_ms,
            "stages": stages,
            "sizes": sizes,
        }
