"""The C++ of queue.hpp and completions.hpp as request_queue.pyx alone sees it."""

from libc.stdint cimport int64_t, uint64_t

from ksrv._native.memory.memory_budget cimport CMemoryBudget
from ksrv._native.queue.request_queue cimport CQueue, Entry, Push


cdef extern from "queue/queue.hpp" namespace "ksrv" nogil:
    cdef enum Take:
        TAKE_ENTRIES
        TAKE_OFFER
        TAKE_CLOSED
        TAKE_READY
        TAKE_NUDGED

    cdef enum Counter:
        COUNT_PUSHED
        COUNT_FULL
        COUNT_BYTES
        COUNT_CANCELLED
        COUNT_EXPIRED_QUEUED
        COUNT_EXPIRED_RUNNING
        COUNT_INVALID
        COUNTERS

    cdef enum Waited:
        WAIT_DONE
        WAIT_TIMEOUT
        WAIT_INTERRUPTED

    cdef cppclass AtomicCount "std::atomic<std::uint64_t>":
        uint64_t load()
        void store(uint64_t value)
        uint64_t fetch_add(uint64_t value)

    cdef cppclass AtomicFlag "std::atomic<bool>":
        bint load()
        void store(bint value)

    cdef cppclass Timer:
        bint watch(CQueue *queue) noexcept
        void forget(CQueue *queue) noexcept

    CMemoryBudget *queue_budget
    Timer &process_timer() noexcept
    int64_t now_ns() noexcept
    void retain_entry "ksrv::retain"(Entry *entry) noexcept
    void release_entry "ksrv::release"(Entry *entry) noexcept
    void retain_queue "ksrv::retain"(CQueue *queue) noexcept
    void release_queue "ksrv::release"(CQueue *queue) noexcept
    bint cancel_entry "ksrv::cancel"(Entry *entry) noexcept
    void publish(Entry *entry) noexcept
    Waited wait_done(Entry *entry, int64_t until_ns) noexcept


cdef extern from "queue/completions.hpp" namespace "ksrv" nogil:
    CQueue *new_queue(size_t capacity) noexcept
    Entry *new_entry() noexcept
    void publish_all() noexcept
    void publish_later(Entry *entry) noexcept
    void delete_entry(Entry *entry) noexcept

    cdef cppclass Notices:
        void add(Entry *entry) noexcept
        Entry *fetch() noexcept
        void wait() noexcept
        void wake() noexcept

    Notices &notices() noexcept


# The methods of ksrv::Queue; its declaration in the pxd is opaque to other modules.
cdef extern from "queue/queue.hpp" namespace "ksrv" nogil:
    cdef cppclass QueueMethods "ksrv::Queue":
        AtomicCount counters[7]
        AtomicFlag may_take_ahead
        AtomicFlag may_lend
        AtomicFlag may_lend_to_waiting
        size_t add_seat() noexcept
        Push push(Entry *entry, size_t *seat) noexcept
        Push push(Entry *entry, size_t *seat, bint waits) noexcept
        size_t push_some(Entry **entries, size_t count, uint64_t max_rows, Push *results,
                         size_t *seat) noexcept
        Take take(size_t seat, Entry **out, size_t room, size_t *count, uint64_t max_rows,
                  int64_t delay_ns) noexcept
        void nudge(size_t seat) noexcept
        void return_seat(size_t seat) noexcept
        Take take_ahead(Entry **out, size_t room, size_t *count, uint64_t max_rows, uint64_t rows,
                        int64_t oldest_ns, int64_t delay_ns) noexcept
        void close_open_batch(bint offer) noexcept
        void offer() noexcept
        void start(Entry **entries, size_t count, unsigned char *alive) noexcept
        void finish(Entry **entries, size_t count, unsigned char *won) noexcept
        bint cancel(Entry *entry) noexcept
        void close() noexcept
        size_t take_all(Entry **out, size_t room) noexcept
        bint wait_empty(int64_t until_ns) noexcept
        size_t waiting() noexcept
        size_t open() noexcept
        size_t idle() noexcept
        bint closed() noexcept
        bint full() noexcept
        void refused(Push pushed) noexcept
