"""The queues, for other compiled modules."""

from libc.stdint cimport int64_t, uint64_t

from ksrv._native.queue.request_handle cimport CRequest


cdef extern from "queue/request_queue.hpp" namespace "ksrv" nogil:
    int64_t regroup_delay_ns(uint64_t rows, int64_t ran_ns) noexcept

    cdef enum Push:
        PUSH_OK
        PUSH_FULL
        PUSH_BYTES
        PUSH_CLOSED
        PUSH_EXPIRED
        PUSH_MEMORY
        PUSH_INLINE

    cdef enum Take:
        TAKE_READY_BATCH
        TAKE_CLOSED
        TAKE_INSTANCE_IDLE

    cdef enum Counter:
        COUNTERS

    cdef cppclass AtomicCount "std::atomic<std::uint64_t>":
        uint64_t load()
        void store(uint64_t value)
        uint64_t fetch_add(uint64_t value)

    cdef cppclass AtomicFlag "std::atomic<bool>":
        bint load()
        void store(bint value)

    cdef cppclass CQueue "ksrv::Queue":
        CQueue(size_t capacity) except +
        AtomicCount counters[COUNTERS]
        AtomicFlag may_prefetch
        AtomicFlag inline_for_all
        AtomicFlag inline_for_blocked
        void note_run(int64_t ran_ns, int64_t assembled_ns) noexcept
        size_t add_slot() noexcept
        Push push(CRequest *request, size_t *slot) noexcept
        Push push(CRequest *request, size_t *slot, bint caller_blocks) noexcept
        size_t push_some(CRequest **requests, size_t count, uint64_t max_rows, Push *results,
                         size_t *slot) noexcept
        Take take(size_t slot, CRequest **out, size_t room, size_t *count, uint64_t max_rows,
                  int64_t delay_ns) noexcept
        void nudge(size_t slot) noexcept
        void return_slot(size_t slot) noexcept
        Take prefetch(CRequest **out, size_t room, size_t *count, uint64_t max_rows, uint64_t rows,
                      int64_t oldest_ns, int64_t delay_ns) noexcept
        void close_open_batch(bint ready) noexcept
        void requeue() noexcept
        void start(CRequest **requests, size_t count, unsigned char *alive) noexcept
        void finish(CRequest **requests, size_t count, unsigned char *won) noexcept
        void close() noexcept
        size_t take_all(CRequest **out, size_t room) noexcept
        bint wait_empty(int64_t until_ns) noexcept
        size_t waiting() noexcept
        size_t lines() noexcept
        size_t open() noexcept
        size_t idle() noexcept
        bint closed() noexcept
        bint full() noexcept
        void refused(Push pushed) noexcept

    void retain_queue "ksrv::retain"(CQueue *queue) noexcept
    void release_queue "ksrv::release"(CQueue *queue) noexcept


cdef class Queue:
    cdef CQueue *queue
    cdef readonly str name
    cdef object __weakref__
