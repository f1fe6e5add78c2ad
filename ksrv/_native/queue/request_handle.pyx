# Needs the GIL: a handle's answer and callbacks are plain attributes.
"""Handles of requests in the native queues, and the completion of requests.

References: a `NativeHandle` owns one reference to its request. While the request is queued, the
request owns one reference to the handle; the batch that takes the request takes over that
reference.

Completions: the deadline timer, or another thread without the GIL, may end a waiting request. Such
a thread cannot touch Python objects, so it adds the request to the list of completions. The next
thread that calls `wait_completions`, `NativeHandle.join` or `NativeHandle.cancel` takes the request
from the list, releases the request's reference to the handle, and runs the handle's callbacks. A
callback may call these functions too; requests that end then are completed after the callback.
Threads that wait in `join` are woken at once, without the GIL.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_DECREF
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from native.base.clock cimport LONGEST_TIMEOUT_US, NEVER, now_ns
from native.queue.completions cimport completions, publish_all
from native.queue.request cimport (
    STATE_ANSWERED, STATE_NEW, STATE_QUEUED, STATE_RUNNING, WAIT_DONE, WAIT_INTERRUPTED,
    WAIT_TIMEOUT, Waited, publish, release, retain, wait_done,
)
from native.queue.request_queue cimport cancel

if not cython.compiled:
    from collections.abc import Callable, Mapping
    from typing import Any


cdef extern from *:
    """
    // Whether this thread is in ksrv_run_completions, which callbacks may call again.
    static thread_local bool ksrv_runs_completions = false;
    """
    bint runs_completions "ksrv_runs_completions"


NO_DEADLINE: int = <int64_t>NEVER


def deadline_of(timeout_us: int, /) -> int:
    """Return the end of a timeout that begins now, on the clock of `time.monotonic_ns`.

    Args:
        timeout_us: Microseconds, at least 0. Capped at about thirty years.
    """
    return now_ns() + 1000 * <int64_t>min(timeout_us, <object>LONGEST_TIMEOUT_US)


cdef void ksrv_bind_handle(NativeHandle handle, CRequest *request) noexcept:
    retain(request)
    handle.native = request


# The callbacks of `Request` (native/queue/request.hpp) for requests that were pushed with a handle.

cdef void *_handle_taken(CRequest *request) noexcept:
    return request.payload  # the request's reference passes to the batch


cdef void _handle_ended(CRequest *request) noexcept nogil:
    completions().add(request)


cdef void _handle_freed(CRequest *request) noexcept nogil:
    del request


cdef int ksrv_run_completions() except -1:
    """Release handles whose requests ended in the queue, and run all of their callbacks.

    A callback may cancel and join other handles. Their callbacks run after it, in this loop,
    because thousands of requests that end together would exceed the recursion limit.
    """
    global runs_completions
    cdef CRequest *request
    cdef NativeHandle handle
    if runs_completions:
        return 0
    runs_completions = True
    try:
        while True:
            request = completions().fetch()
            if request == NULL:
                return 0
            handle = None if request.payload == NULL else <NativeHandle>request.payload
            if request.ended_in == STATE_QUEUED:
                Py_DECREF(handle)  # the request's reference, which no batch took over
            release(request)  # the reference of the list
            if handle is not None:
                handle._call_back()
    finally:
        runs_completions = False


def wake_waiters() -> None:
    """Wake the waiters that `Queue.finish(later=True)` has deferred on this thread."""
    with nogil:
        publish_all()


def wait_completions() -> None:
    """Sleep until a request has ended without Python, then run its callbacks.

    For a dedicated thread that calls this in a loop. `wake_completions` makes it return.
    """
    with nogil:
        completions().wait()
    ksrv_run_completions()


def wake_completions() -> None:
    """Make `wait_completions` return in all threads."""
    completions().wake()


cdef void _call(object callback, NativeHandle handle) noexcept:
    """Run a callback. Exceptions go to `sys.unraisablehook`, so that other callbacks still run."""
    callback(handle)


cdef class SequenceOrder:
    """The order of a sequence's requests: one instance runs them one at a time.

    Attributes:
        slot: The slot of the instance.
    """

    def __cinit__(self, size_t slot):
        self.native = new CSequence(slot)
        self.slot = slot

    def __dealloc__(self):
        if self.native != NULL:
            release(self.native)


cdef class NativeHandle:
    """A submitted request.

    Args:
        request: The request, which is passed on unchanged.
        rows: The number of rows that the request adds to a batch.
        batch_key: Only requests with equal keys may be batched together.
        priority: 1 is the most urgent. 0 is less urgent than all other priorities.
        deadline_ns: When the request expires, on the clock of `time.monotonic_ns`, or None.
        nbytes: The request's share of the bytes in flight.
        counted: Whether queue and statistics count the request's end. False for parts of a split
            request.

    Attributes:
        sequence: The request's sequence, or None.
    """

    def __init__(
        self,
        object request,
        uint32_t rows,
        uint64_t batch_key,
        uint32_t priority=0,
        object deadline_ns: int | None = None,
        uint64_t nbytes=0,
        bint counted=True,
    ):
        if self.native != NULL:
            raise TypeError("a handle is made once")
        self.native = new CRequest()
        self._request = request
        self.native.taken = _handle_taken
        self.native.ended = _handle_ended
        self.native.freed = _handle_freed
        # Borrowed until a push is accepted. Then the request owns a reference.
        self.native.payload = <void *>self
        self.native.rows = rows
        self.native.batch_key = batch_key
        self.native.priority = priority
        self.native.nbytes = nbytes
        self.native.counted = counted
        if deadline_ns is not None:
            self.native.deadline_ns = deadline_ns

    def __dealloc__(self):
        if self.native != NULL:
            if self.native.payload == <void *>self:
                self.native.payload = NULL  # a notice of the request's end may still be pending
            release(self.native)

    def follow(self, SequenceOrder order not None, object sequence) -> None:
        """Make the request part of a sequence, before it is pushed.

        Args:
            sequence: The new value of `NativeHandle.sequence`.
        """
        if self.native.sequence != NULL or self.native.state.load() != STATE_NEW:
            raise ValueError("a handle follows one sequence, before it is pushed")
        retain(order.native)
        self.native.sequence = order.native
        self.native.priority = 0  # requests of a sequence keep the order of their arrival
        self.sequence = sequence

    cdef int _call_back(self) except -1:
        cdef list callbacks = self.callbacks
        self.callbacks = None
        if callbacks is not None:
            for callback in callbacks:
                _call(callback, self)
        return 0

    cdef object _make_request(self):
        raise TypeError("a handle has its request from the start")

    @property
    def request(self) -> Any:
        """The request, as it was submitted."""
        if self._request is None:
            self._request = self._make_request()
        return self._request

    @property
    def headers(self) -> Mapping[str, str]:
        """The request's headers, read without building the rest of the request."""
        return self._headers()

    cdef object _headers(self):
        return self.request.headers

    @property
    def lengths(self) -> Mapping[str, int]:
        """The lengths of the request's rows, by the model's names for these lengths."""
        return self._lengths()

    cdef object _lengths(self):
        return self.request.lengths

    @property
    def rows(self) -> int:
        """The number of rows that the request adds to a batch."""
        return self.native.rows

    @property
    def batch_key(self) -> int:
        """Only requests with equal keys may be batched together."""
        return self.native.batch_key

    @property
    def deadline_ns(self) -> int:
        """When the request expires, on the clock of `time.monotonic_ns`, or `NO_DEADLINE`."""
        return self.native.deadline_ns

    @property
    def enqueued_ns(self) -> int:
        """When the queue accepted the request."""
        return self.native.enqueued_ns

    @property
    def started_ns(self) -> int:
        """When a handler got the request, or 0."""
        return self.native.started_ns

    @property
    def ended_ns(self) -> int:
        """When the request was answered, expired or was cancelled, or 0."""
        return self.native.ended_ns

    @property
    def state(self) -> str:
        """"new", "queued", "taken", "running", "answered", "cancelled" or "expired"."""
        return _STATES[self.native.state.load()]

    @property
    def ended_running(self) -> bool:
        """Whether the request expired or was cancelled while a handler ran it."""
        return self.native.ended_in == STATE_RUNNING

    def done(self) -> bool:
        """Return whether the request has ended."""
        return self.native.done.load() != 0

    def join(self, object until_ns: int | None = None) -> bool:
        """Sleep until the request has ended. Releases the GIL and handles signals.

        Args:
            until_ns: The time of `time.monotonic_ns` at which to give up, or None.

        Returns:
            Whether the request has ended.
        """
        cdef int64_t until = NEVER if until_ns is None else until_ns
        cdef Waited waited = WAIT_DONE
        while self.native.done.load() == 0:
            with nogil:
                waited = wait_done(self.native, until)
            if waited == WAIT_INTERRUPTED:
                PyErr_CheckSignals()
            elif waited == WAIT_TIMEOUT:
                return False
        if self.native.state.load() != STATE_ANSWERED:
            # It expired or was cancelled: its callbacks may not have run yet.
            ksrv_run_completions()
        return True

    def cancel(self) -> bool:
        """End the request as cancelled. If it is running, its batch continues without it.

        Returns:
            Whether this call ended the request. False if it had ended before or was never accepted.
        """
        cdef bint ended
        with nogil:
            ended = cancel(self.native)
        if ended:
            ksrv_run_completions()
        return ended

    def add_done_callback(self, callback not None: Callable[[Any], object]) -> None:
        """Call `callback(handle)` when the request has ended, or at once if it has ended already.

        Args:
            callback: Called on the thread that ends the request. It must not block. Its exceptions
                go to `sys.unraisablehook`.
        """
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append(callback)
        if self.native.done.load() == 0 and self.answer is not None:
            publish(self.native)  # answered, but its waiters have not been woken yet
        if self.native.done.load() != 0:
            self._call_back()


_STATES = ("new", "queued", "taken", "running", "answered", "cancelled", "expired")
