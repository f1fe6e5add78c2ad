"""The event loop's C++ class, for its Cython shell."""

from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool


ctypedef void (*ServePython)(void *owner) noexcept  # called with the GIL held


cdef extern from "reactor/pending_decrefs.hpp" namespace "ksrv" nogil:
    cdef cppclass PendingDecrefs[Item]:
        Item *take() noexcept


cdef extern from "reactor/listeners.hpp" namespace "ksrv" nogil:
    cdef cppclass Listeners:
        uint64_t last_seen_ns() noexcept


cdef extern from "reactor/event_loop.hpp" namespace "ksrv" nogil:
    ctypedef void (*HoldGil)(void (*work)(CEventLoop *) noexcept nogil, CEventLoop *loop) noexcept
    cdef cppclass CEventLoop "ksrv::EventLoop":
        CEventLoop(int threads, HoldGil hold_gil) noexcept
        void run(int index) noexcept
        void stop() noexcept
        uint64_t stuck_ns() noexcept
        int epoll() noexcept


cdef class EventLoop:
    cdef CEventLoop *loop
    cdef readonly int threads
    cdef list servers
    cdef int running
