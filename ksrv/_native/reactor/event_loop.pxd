"""The event loop's C++ class, for its Cython shell."""

from native.reactor.event_loop cimport EventLoop as CEventLoop


cdef class EventLoop:
    cdef CEventLoop *loop
    cdef readonly int threads
    cdef list servers  # kept alive until all threads have left the loop
    cdef int running   # threads in `run`
