# It relies on the GIL: a handle's answer and callbacks are plain attributes.
"""Handles of requests in the native queues, as Python sees them, and the completions of requests.

A `NativeHandle` owns one reference to its request. While the queue has the request, the request in
turn owns one reference to the handle, which passes to the batch that takes it. When the timer, or
another thread without the GIL, ends a waiting request, the request goes to the list of completions.
The next thread that calls `wait_completions`, or waits for or cancels a handle, releases that
reference and runs the handle's callbacks, unless it is inside of a callback: then it does so
afterwards. A thread that sleeps in `NativeHandle.join` is woken before that, without the GIL.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int64_t, uint32_t, uint64_t

if not cython.compiled:
    from collections.abc import Callable, Mapping
    from typing import Any


cdef extern from "queue/completions.hpp" namespace "ksrv" nogil:
    cdef cppclass Completions:
        void add(CRequest *request) noexcept
        CRequest *fetch() noexcept
        void wait() noexcept
        void wake() noexcept

    Completions &completions() noexcept


cdef extern from *:
    """
    static thread_local bool ksrv_runs_completions = false;
    """
    bint runs_completions "ksrv_runs_completions"


NO_DEADLINE: int = <int64_t>NEVER


def deadline_of(timeout_us: int, /) -> int:
    """Return when a timeout ends that begins now, on the clock of `time.monotonic_ns`.

    Args:
        timeout_us: Microseconds, at least 0; from about thirty years on they count as thirty years.
    """
    return now_ns() + 1000 * <int64_t>min(timeout_us, <object>LONGEST_TIMEOUT_US)


cdef void ksrv_bind_handle(NativeHandle handle, CRequest *request) noexcept:
    retain_request(request)
    handle.native = request


cdef void *_handle_taken(CRequest *request) except NULL:
    return request.payload  # the request's reference passes to the batch


cdef void _handle_ended(CRequest *request) noexcept nogil:
    completions().add(request)


cdef void _handle_freed(CRequest *request) noexcept nogil:
    del request


cdef int ksrv_run_completions() except -1:
    """Release handles whose requests ended in the queue, and run the callbacks of all.

    A callback may cancel and join other handles. Theirs run after it, in this loop: thousands of
    requests that end together would be too deep a recursion.
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
                Py_DECREF(handle)
            release_request(request)
            if handle is not None:
                handle._call_back()
    finally:
        runs_completions = False


def wake_waiters() -> None:
    """Wake the waiters that `Queue.finish` left for later on this thread."""
    with nogil:
        publish_all()


def wait_completions() -> None:
    """Sleep until a request ended without Python, then do what Python owes it.

    For a thread of its own that calls this in a loop; `wake_completions` makes it return.
    """
    with nogil:
        completions().wait()
    ksrv_run_completions()


def wake_completions() -> None:
    """Let every thread in `wait_completions` return."""
    completions().wake()


cdef void _call(object callback, NativeHandle handle) noexcept:
    """Call back; what that raises goes to `sys.unraisablehook`, and others are answered still."""
    callback(handle)


cdef class SequenceOrder:
    """The order of a sequence's requests: one instance runs them one after the other.

    Attributes:
        slot: As given.
    """

    def __cinit__(self, size_t slot):
        self.native = new CSequence(slot)
        self.slot = slot

    def __dealloc__(self):
        if self.native != NULL:
            release_sequence(self.native)


cdef class NativeHandle:
    """One submitted request.

    Args:
        request: What is asked; handed on as it is.
        rows: How many rows it adds to a batch.
        batch_key: Requests of equal numbers may be joined.
        priority: 1 is the most urgent; 0 comes after all others.
        deadline_ns: `time.monotonic_ns` at which it expires, or None.
        nbytes: What it adds to the bytes in flight.
        counted: Whether queue and stats count its end; not so of the parts of a split request.

    Attributes:
        sequence: The sequence that it belongs to, or None.
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
        # Borrowed until a push is accepted, when the request gets a reference of its own.
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
                self.native.payload = NULL  # a notice of the request's end may still be on its way
            release_request(self.native)

    def follow(self, SequenceOrder order not None, object sequence) -> None:
        """Make the request one of a sequence, before it is pushed.

        Args:
            sequence: What `NativeHandle.sequence` is from then on.
        """
        if self.native.sequence != NULL or self.native.state.load() != STATE_NEW:
            raise ValueError("a handle follows one sequence, before it is pushed")
        retain_sequence(order.native)
        self.native.sequence = order.native
        self.native.priority = 0
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
        """What is asked."""
        if self._request is None:
            self._request = self._make_request()
        return self._request

    @property
    def headers(self) -> Mapping[str, str]:
        """The request's headers, found without the rest of it where that was not made yet."""
        return self._headers()

    cdef object _headers(self):
        return self.request.headers

    @property
    def lengths(self) -> Mapping[str, int]:
        """The lengths of the request's rows, by the names that the model gives them."""
        return self._lengths()

    cdef object _lengths(self):
        return self.request.lengths

    @property
    def rows(self) -> int:
        """How many rows it adds to a batch."""
        return self.native.rows

    @property
    def batch_key(self) -> int:
        """The number that joinable requests share."""
        return self.native.batch_key

    @property
    def deadline_ns(self) -> int:
        """When it expires, on the clock of `time.monotonic_ns`; `NO_DEADLINE` for never."""
        return self.native.deadline_ns

    @property
    def enqueued_ns(self) -> int:
        """When the queue accepted it."""
        return self.native.enqueued_ns

    @property
    def started_ns(self) -> int:
        """When a handler got it, or 0."""
        return self.native.started_ns

    @property
    def ended_ns(self) -> int:
        """When it was answered, expired or cancelled, or 0."""
        return self.native.ended_ns

    @property
    def state(self) -> str:
        """"new", "queued", "taken", "running", "answered", "cancelled" or "expired"."""
        return _STATES[self.native.state.load()]

    @property
    def ended_running(self) -> bool:
        """Whether a handler had it when it was expired or cancelled."""
        return self.native.ended_in == STATE_RUNNING

    def done(self) -> bool:
        """Tell whether the request has ended."""
        return self.native.done.load() != 0

    def join(self, object until_ns: int | None = None) -> bool:
        """Sleep until the request has ended; the GIL is released and signals are heeded.

        Args:
            until_ns: `time.monotonic_ns` at which to give up, or None.

        Returns:
            Whether it has ended.
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
            ksrv_run_completions()
        return True

    def cancel(self) -> bool:
        """End the request as cancelled; a running request is detached from its batch.

        Returns:
            Whether this ended it; False when it had ended before or was never accepted.
        """
        cdef bint ended
        with nogil:
            ended = cancel_request(self.native)
        if ended:
            ksrv_run_completions()
        return ended

    def add_done_callback(self, callback not None: Callable[[Any], object]) -> None:
        """Have `callback(handle)` called once the request has ended; at once if it has already.

        Args:
            callback: Called on whichever thread ends the request; it must not block, and what it
                raises goes to `sys.unraisablehook`.
        """
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append(callback)
        if self.native.done.load() == 0 and self.answer is not None:
            publish(self.native)  # answered, but its waiters were to be woken later
        if self.native.done.load() != 0:
            self._call_back()


_STATES = ("new", "queued", "taken", "running", "answered", "cancelled", "expired")
