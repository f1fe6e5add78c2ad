# Needs the GIL: the handles of a batch are answered and called back one after the other.
"""The native queues for Python: handles go in, batches of handles come out.

Each instance has a slot in the queue of its model, and its thread waits for a batch in `take`. A
thread that submits a request may claim the slot of an idle instance, and run the request itself
(`push_inline`). While every instance is busy, the thread of the prefetcher
(`ksrv.engine.instances.prefetch`) may assemble the next batch, the open batch. Once it is closed,
it is a ready batch, which the next idle instance runs.
"""

from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_DECREF, Py_INCREF
cimport cython
from libc.stdint cimport int64_t, uint64_t
from libcpp.vector cimport vector

from native.base.clock cimport NEVER
from native.base.gil_gate cimport enter_gil_gate, leave_gil_gate
from native.queue.completions cimport publish_all, publish_later
from native.queue.deadline_timer cimport process_timer
from native.queue.request cimport Request as CRequest, STATE_NEW, publish
from native.queue.request_queue cimport (
    COUNTERS, PUSH_BYTES, PUSH_CLOSED, PUSH_EXPIRED, PUSH_FULL, PUSH_INLINE, PUSH_MEMORY, PUSH_OK,
    Push, TAKE_CLOSED, TAKE_INSTANCE_IDLE, TAKE_READY_BATCH, Take, regroup_delay_ns, release,
)

from ksrv._native.queue.request_handle cimport NativeHandle, RaisingTaken

if not cython.compiled:
    from collections.abc import Callable
    from typing import Any, Literal


OK: int = <int>PUSH_OK
FULL: int = <int>PUSH_FULL
BYTES_IN_FLIGHT: int = <int>PUSH_BYTES
CLOSED: int = <int>PUSH_CLOSED
EXPIRED: int = <int>PUSH_EXPIRED
NO_MEMORY: int = <int>PUSH_MEMORY
COUNTED: tuple[str, ...] = (
    "pushed", "full", "bytes_in_flight", "cancelled", "expired_queued", "expired_running",
    "invalid",
)
assert len(COUNTED) == COUNTERS


def regroup_delay(uint64_t rows, int64_t ran_ns) -> int:
    """Return how many nanoseconds an instance waits for more requests after a batch.

    Args:
        rows: The rows of the last batch.
        ran_ns: How long the last batch ran.
    """
    return regroup_delay_ns(rows, ran_ns)


cdef class Queue:
    """The bounded queue of one model version.

    Args:
        capacity: How many requests may wait.
        name: The model's name, for `repr`.
    """

    def __cinit__(self, size_t capacity, str name=""):
        self.queue = new CQueue(capacity)
        self.name = name
        if not process_timer().watch(self.queue):
            raise RuntimeError("the thread that watches deadlines cannot be started")

    def __dealloc__(self):
        if self.queue != NULL:
            process_timer().forget(self.queue)
            release(self.queue)

    def __repr__(self):
        return f"<Queue {self.name!r}: {self.waiting} waiting, {self.open} open>"

    def push(self, NativeHandle handle not None) -> int:
        """Accept a handle, or return the reason for refusing it. Never blocks.

        Returns:
            `OK`, `FULL`, `BYTES_IN_FLIGHT`, `CLOSED`, `EXPIRED` or `NO_MEMORY`.
        """
        return _push(self.queue, handle, NULL, False)

    def push_inline(self, NativeHandle handle not None, bint caller_blocks=False) -> int:
        """As `push`, but an idle instance's slot may be claimed.

        The caller then runs the handle on that instance, finishes it and calls `return_slot`.

        Args:
            caller_blocks: Whether the caller would otherwise only wait for the handle. Then
                `inline_for_blocked` is sufficient for a claim.

        Returns:
            As `push`, or -1 - SLOT if the slot SLOT was claimed.
        """
        cdef size_t slot = 0
        return _push(self.queue, handle, &slot, caller_blocks)

    def return_slot(self, size_t slot) -> None:
        """Return a claimed slot to its instance."""
        self.queue.return_slot(slot)

    def nudge(self, size_t slot) -> None:
        """Make `take` return no handles on the thread of an instance, once the instance is idle."""
        self.queue.nudge(slot)

    def add_slot(self) -> int:
        """Return the number of a new slot. Each instance has one slot."""
        cdef size_t slot = self.queue.add_slot()
        if slot == <size_t>-1:
            raise MemoryError
        return slot

    def take(
        self,
        size_t slot,
        size_t room,
        uint64_t max_rows,
        int64_t delay_ns=0,
    ) -> list[Any] | Literal[True] | None:
        """Wait for work as an idle instance.

        Args:
            room: The most requests in a batch.
            max_rows: The most rows of a batch. A single request may have more.
            delay_ns: How long the oldest request of a batch waits for the batch to fill.

        Returns:
            The handles of a batch in order (an empty list after a nudge), True if a ready batch
            must be run, or None if the queue is closed and empty.
        """
        cdef vector[CRequest *] requests
        cdef size_t count = 0
        cdef Take taken
        requests.resize(room)
        with nogil:
            publish_all()
            taken = self.queue.take(slot, requests.data(), room, &count, max_rows, delay_ns)
            enter_gil_gate()
        leave_gil_gate()
        requests.resize(count)
        return _taken(taken, requests)

    def prefetch(self, size_t room, uint64_t max_rows, uint64_t rows=0, int64_t oldest_ns=0,
                 int64_t delay_ns=0) -> list[Any] | Literal[True] | None:
        """Wait for work as the prefetcher, while every instance is busy.

        Args:
            rows: The rows of the open batch; 0 if no batch is open.
            oldest_ns: When the oldest request of the open batch was accepted.
            delay_ns: How long the oldest request of a batch waits for the batch to fill.

        Returns:
            Handles for the open batch (or for a new open batch), True if the open batch must be
            closed now, or None if the queue is closed and empty.
        """
        cdef vector[CRequest *] requests
        cdef size_t count = 0
        cdef Take taken
        requests.resize(room)
        with nogil:
            taken = self.queue.prefetch(
                requests.data(), room, &count, max_rows, rows, oldest_ns, delay_ns
            )
            enter_gil_gate()
        leave_gil_gate()
        requests.resize(count)
        return _taken(taken, requests)

    def close_open_batch(self, bint ready) -> None:
        """End the prefetcher's turn.

        Args:
            ready: Whether the batch is ready for an instance. False if all of its requests have
                ended.
        """
        self.queue.close_open_batch(ready)

    def requeue(self) -> None:
        """Let an instance take a batch that another instance could not run."""
        self.queue.requeue()

    def start(self, list handles not None: list[Any]) -> list[Any]:
        """Mark the handles of a batch as running.

        Args:
            handles: The handles that `take` returned.

        Returns:
            The handles whose requests have not ended in the meantime. The others leave the batch.
        """
        cdef vector[CRequest *] requests
        cdef vector[unsigned char] alive
        cdef NativeHandle handle
        cdef size_t i
        cdef bint all_alive = True
        alive.resize(len(handles))
        for handle in handles:
            requests.push_back(handle.native)
        self.queue.start(requests.data(), requests.size(), alive.data())
        for i in range(alive.size()):
            all_alive = all_alive and alive[i]
        if all_alive:
            return handles
        for i in range(alive.size()):
            if not alive[i]:
                # Run the callbacks now: if the batch has the last reference to the handle,
                # `ksrv_run_completions` no longer finds it.
                (<NativeHandle>handles[i])._call_back()
        return [handles[i] for i in range(alive.size()) if alive[i]]

    def finish(
        self,
        list handles not None: list[Any],
        list answers not None: list[Any],
        bint later=False,
        count: Callable[[list[bool]], object] | None = None,
    ) -> list[bool]:
        """Answer the handles of a batch, each once.

        Args:
            handles: Handles that `take` or `start` returned.
            answers: For each handle its response, or the exception that it failed with.
            later: Whether to wake the waiters only when this thread next calls `take` or
                `wake_waiters`, when the GIL is free for them. The thread must make one of these
                calls soon.
            count: Called with the return value, with False for parts of split requests, before an
                answer is sent, so that a client that has its answer finds it counted. It must not
                block.

        Returns:
            For each handle whether this call answered it. False if it had expired, was cancelled,
            or was finished before.
        """
        cdef vector[CRequest *] requests
        cdef vector[unsigned char] won
        cdef NativeHandle handle
        cdef size_t i
        cdef list result = [False] * len(handles)
        if len(handles) != len(answers):
            raise ValueError(f"{len(answers)} answers for {len(handles)} handles")
        won.resize(len(handles))
        for handle in handles:
            requests.push_back(handle.native)
        # Nothing after this raises, because this thread must answer the requests that it wins.
        self.queue.finish(requests.data(), requests.size(), won.data())
        for i in range(won.size()):
            result[i] = won[i] != 0
        if count is not None:
            _call(count, [won[i] != 0 and requests[i].counted for i in range(won.size())])
        for i in range(won.size()):
            handle = <NativeHandle>handles[i]
            if not won[i]:
                handle._call_back()  # as in `start`
                continue
            if handle.native.answered != NULL:
                handle.native.answered(handle.native, <void *>answers[i])
            else:
                handle.answer = answers[i]
            if later:
                publish_later(handle.native)
            else:
                publish(handle.native)
            if handle.callbacks is not None:
                if later:
                    publish_all()
                handle._call_back()
            release(handle.native)  # the queue's reference; the thread that wins releases it
        return result

    def close(self) -> None:
        """Accept no more requests. Waiting requests are still served."""
        self.queue.close()

    def take_all(self) -> list[Any]:
        """Take out every waiting handle, whatever its batch key, without blocking."""
        cdef vector[CRequest *] requests
        requests.resize(self.queue.waiting())
        requests.resize(self.queue.take_all(requests.data(), requests.size()))
        return ksrv_handles(requests)

    def wait_empty(self, object until_ns: int | None = None) -> bool:
        """Sleep until no accepted request is left.

        Args:
            until_ns: The time of `time.monotonic_ns` at which to give up, or None.

        Returns:
            Whether the queue is empty.
        """
        cdef int64_t until = NEVER if until_ns is None else until_ns
        cdef bint empty
        with nogil:
            empty = self.queue.wait_empty(until)
        return empty

    @property
    def may_prefetch(self) -> bool:
        """Whether the prefetcher may work while every instance is busy."""
        return self.queue.may_prefetch.load()

    @may_prefetch.setter
    def may_prefetch(self, bint value):
        self.queue.may_prefetch.store(value)

    def note_run(self, int64_t ran_ns, int64_t assembled_ns) -> None:
        """Decide from the last run and its assembly whether the prefetcher works during runs."""
        self.queue.note_run(ran_ns, assembled_ns)

    @property
    def inline_for_all(self) -> bool:
        """Whether any pushing thread may claim a slot. True if the handler is quick."""
        return self.queue.inline_for_all.load()

    @inline_for_all.setter
    def inline_for_all(self, bint value):
        self.queue.inline_for_all.store(value)

    @property
    def inline_for_blocked(self) -> bool:
        """Whether a thread that would only wait for its request may claim a slot."""
        return self.queue.inline_for_blocked.load()

    @inline_for_blocked.setter
    def inline_for_blocked(self, bint value):
        self.queue.inline_for_blocked.store(value)

    @property
    def waiting(self) -> int:
        """Requests that count against the capacity: queued, or in a batch that has not started."""
        return self.queue.waiting()

    @property
    def open(self) -> int:
        """Accepted requests that the queue or a batch still refers to."""
        return self.queue.open()

    @property
    def lines(self) -> int:
        """Lines of requests: one for each priority, and one for requests without a priority."""
        return self.queue.lines()

    @property
    def idle(self) -> int:
        """Instances that wait for work."""
        return self.queue.idle()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.queue.closed()

    def count(self, reason: str) -> None:
        """Count the end of a request that was never queued, by a reason of `counts`."""
        self.queue.counters[<size_t>COUNTED.index(reason)].fetch_add(1)

    def counts(self) -> dict[str, int]:
        """Return how many requests ended without an answer, by the reasons of `COUNTED`."""
        return {reason: self.queue.counters[i].load() for i, reason in enumerate(COUNTED)}


cdef int _push(
    CQueue *queue, NativeHandle handle, size_t *slot, bint caller_blocks
) except? -1:
    """Push a handle, and claim a slot unless `slot` is NULL; see `Queue.push` and `push_inline`."""
    if handle.native.state.load() != STATE_NEW:
        raise ValueError("a handle is pushed once")
    # The request's reference to its handle, which the taking batch takes over.
    Py_INCREF(handle)
    # A short critical section: releasing the GIL would cost more than it saves.
    cdef Push pushed = queue.push(handle.native, slot, caller_blocks)
    if pushed != PUSH_OK:
        # If the caller has claimed a slot, it has the handle, and no batch takes it.
        queue.refused(pushed)  # counts the refusal, except of PUSH_INLINE
        Py_DECREF(handle)
    return -1 - <int>slot[0] if pushed == PUSH_INLINE else <int>pushed


cdef void _call(object count, list result) noexcept:
    """Run the `count` callback. Its exceptions go to `sys.unraisablehook`."""
    count(result)


cdef object _taken(Take taken, const vector[CRequest *] &requests):
    """Return the result of `Queue.take` or `Queue.prefetch`."""
    if taken == TAKE_READY_BATCH or taken == TAKE_INSTANCE_IDLE:
        return True
    return None if taken == TAKE_CLOSED else ksrv_handles(requests)


cdef list ksrv_handles(const vector[CRequest *] &requests):
    cdef list handles = PyList_New(<Py_ssize_t>requests.size())
    cdef size_t i
    cdef void *handle
    for i in range(requests.size()):
        handle = (<RaisingTaken>requests[i].taken)(requests[i])
        PyList_SET_ITEM(handles, <Py_ssize_t>i, <object>handle)
    return handles
