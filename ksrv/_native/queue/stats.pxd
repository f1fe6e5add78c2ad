"""Counts and times of an instance, for other compiled modules."""

from libc.stdint cimport int64_t, uint64_t
from libcpp.map cimport map as cpp_map

from ksrv._native.queue.request_handle cimport CRequest


cdef extern from "queue/stats.hpp" namespace "ksrv" nogil:
    cdef enum:
        BOUNDS

    const uint64_t DURATION_BOUNDS[BOUNDS]

    int64_t unix_milliseconds() noexcept

    cdef enum Stage:
        STAGE_REQUEST
        STAGE_FAILED
        STAGE_QUEUE
        STAGE_CACHE_HIT
        STAGE_CACHE_MISS
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

    cdef struct RunTimes:
        uint64_t assemble
        uint64_t preprocess
        uint64_t inference
        uint64_t postprocess

    cdef cppclass StatsMutex "std::mutex":
        void lock() noexcept
        void unlock() noexcept

    cdef cppclass Sums:
        StatsMutex mutex
        Histogram stages[STAGES]
        cpp_map[uint64_t, SizeSums] sizes
        uint64_t rows
        uint64_t batches
        int64_t last_ms
        void add_served(const CRequest &request, const RunTimes &times) noexcept
        void add_batch(uint64_t size, uint64_t served, const RunTimes &times) noexcept
        void absorb(const Sums &other) noexcept


cdef class Stats:
    cdef Sums sums
