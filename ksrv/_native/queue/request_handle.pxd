"""Requests in the native queues, and their handles, for other compiled modules."""

from native.queue.request cimport Request as CRequest, Sequence as CSequence


# The type of `Request.taken`.
ctypedef void *(*RaisingTaken)(CRequest *request) except NULL


cdef class SequenceOrder:
    cdef CSequence *native
    cdef readonly size_t slot


cdef class NativeHandle:
    cdef CRequest *native      # a counted reference
    cdef object _request       # the Python request; of a fast-path request None until first use
    # The response or the exception; None before, and for fast-path requests.
    cdef public object answer
    cdef public object sequence
    cdef list callbacks        # None: no callbacks, or they have been called
    cdef object __weakref__
    cdef int _call_back(self) except -1
    cdef object _make_request(self)
    cdef object _headers(self)
    cdef object _lengths(self)


# Makes `handle` the handle of a request that was submitted without a handle.
cdef void ksrv_bind_handle(NativeHandle handle, CRequest *request) noexcept

# Runs the callbacks of handles whose requests ended without the GIL.
cdef int ksrv_run_completions() except -1
