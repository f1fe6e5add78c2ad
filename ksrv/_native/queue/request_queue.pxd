"""The queue's C interface: entries and queues for the other compiled modules, without the GIL.

Only the structures are shared; every function that touches the process's timer or notices lives in
request_queue.pyx, so that one extension module owns them.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t


cdef extern from "queue/queue.hpp" namespace "ksrv":
    const int64_t NEVER

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
        PUSH_LENT

    cdef cppclass CQueue "ksrv::Queue":
        pass

    cdef cppclass AtomicInt "std::atomic<std::int32_t>":
        int32_t load() noexcept nogil

    cdef cppclass Entry:
        void *payload
        void *(*taken)(Entry *entry) except NULL
        void (*answered)(Entry *entry, void *answer) noexcept
        void (*ended)(Entry *entry) noexcept nogil
        void (*freed)(Entry *entry) noexcept nogil
        uint64_t group
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


# A queue for a thread without the GIL. The caller holds a reference until ksrv_queue_release.
cdef CQueue *ksrv_queue_retain(Queue queue) noexcept
cdef void ksrv_queue_release(CQueue *queue) noexcept nogil

# The caller fills an entry's first block of fields (see request.hpp) and holds one reference to it.
# With a seat that is not NULL the answer may be PUSH_LENT: the caller then runs the entry, as a
# ticket over it and with the GIL, on the instance of that seat, and then returns the seat.
cdef Push ksrv_push(CQueue *queue, Entry *entry, size_t *seat) noexcept nogil
cdef bint ksrv_cancel(Entry *entry) noexcept nogil
cdef void ksrv_entry_release(Entry *entry) noexcept nogil
# Whether the queue is full; a request that is told so is counted.
cdef bint ksrv_turns_away(CQueue *queue) noexcept nogil

# Accepts entries that arrived together (request_queue.hpp); returns how many run on a lent seat.
cdef size_t ksrv_push_some(
    CQueue *queue, Entry **entries, size_t count, uint64_t max_rows, Push *results, size_t *seat
) noexcept nogil
cdef bint ksrv_may_lend(CQueue *queue) noexcept nogil
cdef void ksrv_return_seat(CQueue *queue, size_t seat) noexcept nogil

# Ends a batch: `won` is 1 where the caller now answers, publishes and releases the entry. To finish
# entries again changes nothing.
cdef void ksrv_finish(
    CQueue *queue, Entry **entries, size_t count, unsigned char *won
) noexcept nogil
cdef void ksrv_publish(Entry *entry) noexcept nogil

# What `Entry.taken` returns for an entry that is not a Ticket's own is a ticket made with this.
cdef void ksrv_ticket_over(Ticket ticket, Entry *entry) noexcept
