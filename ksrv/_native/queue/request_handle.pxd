"""Requests in the native queues, and their handles, for other compiled modules."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t


cdef extern from "base/clock.hpp" namespace "ksrv" nogil:
    const int64_t NEVER
    const uint64_t LONGEST_TIMEOUT_US
    int64_t now_ns() noexcept


cdef extern from "queue/request_queue.hpp" namespace "ksrv" nogil:
    cdef cppclass CRequest "ksrv::Request"

cdef extern from "queue/request.hpp" namespace "ksrv" nogil:
    cdef cppclass CSequence "ksrv::Sequence":
        CSequence(size_t slot) except +

    void retain_sequence "ksrv::retain"(CSequence *sequence) noexcept
    void release_sequence "ksrv::release"(CSequence *sequence) noexcept

# These two callbacks are called with the GIL.
ctypedef void *(*Taken)(CRequest *request) except NULL
ctypedef void (*Answered)(CRequest *request, void *answer) noexcept


cdef extern from "queue/request_queue.hpp" namespace "ksrv" nogil:
    cdef enum State:
        STATE_NEW
        STATE_QUEUED
        STATE_RUNNING
        STATE_ANSWERED

    cdef enum Waited:
        WAIT_DONE
        WAIT_TIMEOUT
        WAIT_INTERRUPTED

    cdef cppclass AtomicInt "std::atomic<std::int32_t>":
        int32_t load() noexcept

    cdef cppclass CRequest "ksrv::Request":
        CRequest() except +
        void *payload
        Taken taken
        Answered answered
        void (*ended)(CRequest *request) noexcept nogil
        void (*freed)(CRequest *request) noexcept nogil
        uint64_t batch_key
        uint32_t rows
        uint32_t priority
        int64_t deadline_ns
        uint64_t nbytes
        bint reserved
        bint counted
        CSequence *sequence
        int64_t enqueued_ns
        int64_t started_ns
        int64_t ended_ns
        int32_t ended_in
        AtomicInt state
        AtomicInt done

    void retain_request "ksrv::retain"(CRequest *request) noexcept
    void release_request "ksrv::release"(CRequest *request) noexcept
    bint cancel_request "ksrv::cancel"(CRequest *request) noexcept
    void publish(CRequest *request) noexcept
    Waited wait_done(CRequest *request, int64_t until_ns) noexcept


cdef extern from "queue/completions.hpp" namespace "ksrv" nogil:
    void publish_all() noexcept
    void publish_later(CRequest *request) noexcept


cdef class SequenceOrder:
    cdef CSequence *native
    cdef readonly size_t slot


cdef class NativeHandle:
    cdef CRequest *native
    cdef object _request
    cdef public object answer
    cdef public object sequence
    cdef list callbacks
    cdef object __weakref__
    cdef int _call_back(self) except -1
    cdef object _make_request(self)
    cdef object _headers(self)
    cdef object _lengths(self)


# Makes `handle` the handle of a request that was submitted without a handle.
cdef void ksrv_bind_handle(NativeHandle handle, CRequest *request) noexcept

# Runs the callbacks of handles whose requests ended without the GIL.
cdef int ksrv_run_completions() except -1
