"""Queues and requests: their C++, and their Python classes for other compiled modules."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t


cdef extern from "base/clock.hpp" namespace "ksrv" nogil:
    const int64_t NEVER


cdef extern from "queue/request_queue.hpp" namespace "ksrv" nogil:
    cdef cppclass CQueue "ksrv::Queue"
    cdef cppclass Entry

# These two are called with the GIL.
ctypedef void *(*Taken)(Entry *entry) except NULL
ctypedef void (*Answered)(Entry *entry, void *answer) noexcept


cdef extern from "queue/request_queue.hpp" namespace "ksrv" nogil:
    cdef enum State:
        STATE_NEW
        STATE_QUEUED
        STATE_TAKEN
        STATE_RUNNING
        STATE_ANSWERED
        STATE_CANCELLED
        STATE_EXPIRED

    cdef enum Push:
        PUSH_OK
        PUSH_FULL
        PUSH_BYTES
        PUSH_CLOSED
        PUSH_EXPIRED
        PUSH_MEMORY
        PUSH_INLINE

    cdef enum Take:
        TAKE_REQUESTS
        TAKE_READY_BATCH
        TAKE_CLOSED
        TAKE_INSTANCE_IDLE
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

    cdef cppclass AtomicInt "std::atomic<std::int32_t>":
        int32_t load() noexcept

    cdef cppclass Entry:
        Entry() except +
        void *payload
        Taken taken
        Answered answered
        void (*ended)(Entry *entry) noexcept nogil
        void (*freed)(Entry *entry) noexcept nogil
        uint64_t batch_key
        uint32_t rows
        uint32_t priority
        int64_t deadline_ns
        uint64_t nbytes
        bint reserved
        CQueue *queue
        int64_t enqueued_ns
        int64_t started_ns
        int64_t ended_ns
        int32_t ended_in
        AtomicInt state
        AtomicInt done

    cdef cppclass CQueue "ksrv::Queue":
        CQueue(size_t capacity) except +
        AtomicCount counters[COUNTERS]
        AtomicFlag may_prefetch
        AtomicFlag inline_for_all
        AtomicFlag inline_for_blocked
        size_t add_slot() noexcept
        Push push(Entry *entry, size_t *slot) noexcept
        Push push(Entry *entry, size_t *slot, bint caller_blocks) noexcept
        size_t push_some(Entry **entries, size_t count, uint64_t max_rows, Push *results,
                         size_t *slot) noexcept
        Take take(size_t slot, Entry **out, size_t room, size_t *count, uint64_t max_rows,
                  int64_t delay_ns) noexcept
        void nudge(size_t slot) noexcept
        void return_slot(size_t slot) noexcept
        Take prefetch(Entry **out, size_t room, size_t *count, uint64_t max_rows, uint64_t rows,
                        int64_t oldest_ns, int64_t delay_ns) noexcept
        void close_open_batch(bint ready) noexcept
        void requeue() noexcept
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
        bint turns_away() noexcept
        void refused(Push pushed) noexcept

    void retain_entry "ksrv::retain"(Entry *entry) noexcept
    void release_entry "ksrv::release"(Entry *entry) noexcept
    void retain_queue "ksrv::retain"(CQueue *queue) noexcept
    void release_queue "ksrv::release"(CQueue *queue) noexcept
    bint cancel_entry "ksrv::cancel"(Entry *entry) noexcept
    void publish(Entry *entry) noexcept
    Waited wait_done(Entry *entry, int64_t until_ns) noexcept


cdef class Queue:
    cdef CQueue *queue
    cdef readonly str name
    cdef object __weakref__


cdef class Ticket:
    cdef Entry *entry
    cdef object _request
    cdef public object answer
    cdef list callbacks
    cdef object __weakref__
    cdef int _call_back(self) except -1
    cdef object _make_request(self)


# What `Entry.taken` returns for an entry that is not a Ticket's own is a ticket made with this.
cdef void ksrv_ticket_over(Ticket ticket, Entry *entry) noexcept
