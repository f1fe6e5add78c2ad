# It relies on the GIL: a ticket's answer and callbacks are plain attributes.
"""The native queues as Python sees them: tickets go in, batches of tickets come out.

A `Ticket` owns one reference to its entry. While the queue holds the ticket, the entry in turn owns
one reference to the ticket; it passes to the batch that takes it. When the timer, or another thread
without the GIL, ends a waiting request, that reference is left on a list of completions: a thread that
sits in `wait_completions`, or the next one that waits for or cancels a ticket, lets it go and runs the
ticket's callbacks. Whoever sleeps in `Ticket.join` is woken before that and without the GIL.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.vector cimport vector

cdef extern from "queue/deadline_timer.hpp" namespace "ksrv" nogil:
    cdef cppclass Timer:
        bint watch(CQueue *queue) noexcept
        void forget(CQueue *queue) noexcept

    Timer &process_timer() noexcept


cdef extern from "queue/completions.hpp" namespace "ksrv" nogil:
    void publish_all() noexcept
    void publish_later(Entry *entry) noexcept

    cdef cppclass Completions:
        void add(Entry *entry) noexcept
        Entry *fetch() noexcept
        void wait() noexcept
        void wake() noexcept

    Completions &completions() noexcept


OK = <int>PUSH_OK
FULL = <int>PUSH_FULL
BYTES_IN_FLIGHT = <int>PUSH_BYTES
CLOSED = <int>PUSH_CLOSED
EXPIRED = <int>PUSH_EXPIRED
NO_MEMORY = <int>PUSH_MEMORY

NO_DEADLINE = <int64_t>NEVER


cdef void ksrv_ticket_over(Ticket ticket, Entry *entry) noexcept:
    retain_entry(entry)
    ticket.entry = entry


# ---- tickets --------------------------------------------------------------------------------

cdef void *_ticket_taken(Entry *entry) except NULL:
    return entry.payload  # the entry's reference passes to the batch


cdef void _ticket_ended(Entry *entry) noexcept nogil:
    completions().add(entry)


cdef void _ticket_freed(Entry *entry) noexcept nogil:
    del entry


cdef int _run_completions() except -1:
    """Let go of tickets that ended in the queue, and run the callbacks of those that ended."""
    cdef Entry *entry
    cdef Ticket ticket
    while True:
        entry = completions().fetch()
        if entry == NULL:
            return 0
        ticket = None if entry.payload == NULL else <Ticket>entry.payload
        if entry.ended_in == STATE_QUEUED:
            Py_DECREF(ticket)
        release_entry(entry)
        if ticket is not None:
            ticket._call_back()


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
    _run_completions()


def wake_completions() -> None:
    """Let every thread in `wait_completions` return."""
    completions().wake()


cdef void _call(object callback, Ticket ticket) noexcept:
    """Call back; what that raises goes to `sys.unraisablehook`, and others are answered still."""
    callback(ticket)


cdef class Ticket:
    """One submitted request.

    Args:
        request: What is asked; handed on as it is.
        rows: How many rows it adds to a batch.
        batch_key: Requests of equal numbers may be joined.
        priority: 1 is the most urgent; 0 comes after all others.
        deadline_ns: `time.monotonic_ns` at which it expires, or None.
        nbytes: What it adds to the bytes in flight.
    """

    def __init__(self, object request, uint32_t rows, uint64_t batch_key, uint32_t priority=0,
                 object deadline_ns=None, uint64_t nbytes=0):
        if self.entry != NULL:
            raise TypeError("a ticket is made once")
        self.entry = new Entry()
        self._request = request
        self.entry.taken = _ticket_taken
        self.entry.ended = _ticket_ended
        self.entry.freed = _ticket_freed
        # Borrowed until a push is accepted, when the entry gets a reference of its own.
        self.entry.payload = <void *>self
        self.entry.rows = rows
        self.entry.batch_key = batch_key
        self.entry.priority = priority
        self.entry.nbytes = nbytes
        if deadline_ns is not None:
            self.entry.deadline_ns = deadline_ns

    def __dealloc__(self):
        if self.entry != NULL:
            if self.entry.payload == <void *>self:
                self.entry.payload = NULL  # a notice of the entry's end may still be on its way
            release_entry(self.entry)

    cdef int _call_back(self) except -1:
        cdef list callbacks = self.callbacks
        self.callbacks = None
        if callbacks is not None:
            for callback in callbacks:
                _call(callback, self)
        return 0

    cdef object _make_request(self):
        raise TypeError("a ticket has its request from the start")

    @property
    def request(self):
        """What is asked."""
        if self._request is None:
            self._request = self._make_request()
        return self._request

    @property
    def rows(self):
        """How many rows it adds to a batch."""
        return self.entry.rows

    @property
    def batch_key(self):
        """The number that joinable requests share."""
        return self.entry.batch_key

    @property
    def deadline_ns(self):
        """When it expires, on the clock of `time.monotonic_ns`; `NO_DEADLINE` for never."""
        return self.entry.deadline_ns

    @property
    def enqueued_ns(self):
        """When the queue accepted it."""
        return self.entry.enqueued_ns

    @property
    def started_ns(self):
        """When a handler got it, or 0."""
        return self.entry.started_ns

    @property
    def ended_ns(self):
        """When it was answered, expired or cancelled, or 0."""
        return self.entry.ended_ns

    @property
    def state(self):
        """"new", "queued", "taken", "running", "answered", "cancelled" or "expired"."""
        return _STATES[self.entry.state.load()]

    @property
    def ended_running(self):
        """Whether a handler had it when it was expired or cancelled."""
        return self.entry.ended_in == STATE_RUNNING

    def done(self) -> bool:
        """Tell whether the request has ended."""
        return self.entry.done.load() != 0

    def join(self, object until_ns=None) -> bool:
        """Sleep until the request has ended; the GIL is released and signals are heeded.

        Args:
            until_ns: `time.monotonic_ns` at which to give up, or None.

        Returns:
            Whether it has ended.
        """
        cdef int64_t until = NEVER if until_ns is None else until_ns
        cdef Waited waited = WAIT_DONE
        while self.entry.done.load() == 0:
            with nogil:
                waited = wait_done(self.entry, until)
            if waited == WAIT_INTERRUPTED:
                PyErr_CheckSignals()
            elif waited == WAIT_TIMEOUT:
                return False
        if self.entry.state.load() != STATE_ANSWERED:
            _run_completions()
        return True

    def cancel(self) -> bool:
        """End the request as cancelled; one that runs is detached from its batch.

        Returns:
            Whether this ended it; False when it had ended before or was never accepted.
        """
        cdef bint ended
        with nogil:
            ended = cancel_entry(self.entry)
        if ended:
            _run_completions()
        return ended

    def add_done_callback(self, callback not None) -> None:
        """Have `callback(ticket)` called once the request has ended; at once if it has already.

        Args:
            callback: Called on whichever thread ends the request; it must not block, and what it
                raises goes to `sys.unraisablehook`.
        """
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append(callback)
        if self.entry.done.load() == 0 and self.answer is not None:
            publish(self.entry)  # answered, but its waiters were to be woken later
        if self.entry.done.load() != 0:
            self._call_back()


_STATES = ("new", "queued", "taken", "running", "answered", "cancelled", "expired")


# ---- the queue ------------------------------------------------------------------------------

cdef class Queue:
    """The bounded queue of one model version.

    Args:
        capacity: How many requests may wait.
        name: Of the model, for `repr`.
    """

    def __cinit__(self, size_t capacity, str name=""):
        self.queue = new CQueue(capacity)
        self.name = name
        if not process_timer().watch(self.queue):
            raise RuntimeError("the thread that watches deadlines cannot be started")

    def __dealloc__(self):
        if self.queue != NULL:
            process_timer().forget(self.queue)
            release_queue(self.queue)

    def __repr__(self):
        return f"<Queue {self.name!r}: {self.waiting} waiting, {self.open} open>"

    def push(self, Ticket ticket not None) -> int:
        """Accept a ticket, or say at once why not.

        Args:
            ticket: A new ticket.

        Returns:
            `OK`, `FULL`, `BYTES_IN_FLIGHT`, `CLOSED`, `EXPIRED` or `NO_MEMORY`.
        """
        if ticket.entry.state.load() != STATE_NEW:
            raise ValueError("a ticket is pushed once")
        # A short critical section: releasing the GIL for it costs more than it gives.
        Py_INCREF(ticket)
        cdef Push pushed = self.queue.push(ticket.entry, NULL)
        if pushed != PUSH_OK:
            self.queue.refused(pushed)
            Py_DECREF(ticket)
        return <int>pushed

    def push_and_join(self, Ticket ticket not None, bint allow_inline=False) -> int:
        """Push a ticket and, where it is accepted, sleep until it has ended.

        As `push` and `join`, with the GIL released once for both. Where an idle instance's slot is
        claimed, the caller runs the ticket on that instance, finishes it and calls `return_slot`.

        Args:
            ticket: A new ticket.
            allow_inline: Whether the caller can run the request itself.

        Returns:
            As `push`; or -1 - n when slot n was claimed.
        """
        cdef Push pushed
        cdef size_t slot = 0
        cdef Waited waited = WAIT_DONE
        if ticket.entry.state.load() != STATE_NEW:
            raise ValueError("a ticket is pushed once")
        Py_INCREF(ticket)
        if allow_inline and (self.queue.inline_for_all.load() or self.queue.inline_for_blocked.load()):
            # With a claimed slot no thread is woken, so no thread waits for the GIL.
            pushed = self.queue.push(ticket.entry, &slot, True)
            if pushed == PUSH_INLINE:
                Py_DECREF(ticket)  # the caller's own reference is the batch's
                return -1 - <int>slot
        else:
            with nogil:
                pushed = self.queue.push(ticket.entry, NULL)
                if pushed == PUSH_OK:
                    waited = wait_done(ticket.entry, NEVER)
        if pushed != PUSH_OK:
            self.queue.refused(pushed)
            Py_DECREF(ticket)
            return <int>pushed
        if waited != WAIT_DONE:
            PyErr_CheckSignals()
        ticket.join()
        return <int>pushed

    def push_inline(self, Ticket ticket not None, bint caller_blocks=False) -> int:
        """As `push`, but an idle instance's slot may be claimed (see `push_and_join`).

        Args:
            ticket: A new ticket.
            caller_blocks: Whether the caller would only wait for the ticket, so that `inline_for_blocked`
                is enough.
        """
        cdef Push pushed
        cdef size_t slot = 0
        if ticket.entry.state.load() != STATE_NEW:
            raise ValueError("a ticket is pushed once")
        Py_INCREF(ticket)
        pushed = self.queue.push(ticket.entry, &slot, caller_blocks)
        if pushed != PUSH_OK:
            self.queue.refused(pushed)
            Py_DECREF(ticket)
        return -1 - <int>slot if pushed == PUSH_INLINE else <int>pushed

    def return_slot(self, size_t slot) -> None:
        """Give a claimed slot back to its instance."""
        self.queue.return_slot(slot)

    def nudge(self, size_t slot) -> None:
        """Have `take` return no tickets on the thread of an instance, once it is idle."""
        self.queue.nudge(slot)

    def add_slot(self) -> int:
        """Return the number of a new slot; each instance has one."""
        cdef size_t slot = self.queue.add_slot()
        if slot == <size_t>-1:
            raise MemoryError
        return slot

    def take(self, size_t slot, size_t room, uint64_t max_rows, int64_t delay_ns=0):
        """Wait for work as an idle instance.

        Args:
            slot: The instance's.
            room: The most requests that one batch joins.
            max_rows: The most rows of a batch; one request is taken whatever its rows.
            delay_ns: How long the oldest request of a batch waits for a full one.

        Returns:
            The tickets of a batch in order (none after a nudge), True when a ready batch is to
            be run, or None when the queue is closed and nothing is left.
        """
        cdef vector[Entry *] entries
        cdef size_t count = 0
        cdef Take taken
        entries.resize(room)
        with nogil:
            publish_all()
            taken = self.queue.take(slot, entries.data(), room, &count, max_rows, delay_ns)
        if taken == TAKE_READY_BATCH:
            return True
        if taken == TAKE_CLOSED:
            return None
        return _tickets(entries.data(), count)

    def prefetch(self, size_t room, uint64_t max_rows, uint64_t rows=0, int64_t oldest_ns=0,
                   int64_t delay_ns=0):
        """Wait for work as the prefetcher, while every instance is busy.

        Args:
            room: The most requests to take now.
            max_rows: The most rows of a batch.
            rows: How many the open batch holds; 0 when none is open.
            oldest_ns: When the open batch's oldest request was accepted.
            delay_ns: How long the oldest request of a batch waits for a full one.

        Returns:
            Tickets for the open batch (the first ones open it), True when it is to be closed now,
            or None when the queue is closed and nothing is left.
        """
        cdef vector[Entry *] entries
        cdef size_t count = 0
        cdef Take taken
        entries.resize(room)
        with nogil:
            taken = self.queue.prefetch(
                entries.data(), room, &count, max_rows, rows, oldest_ns, delay_ns
            )
        if taken == TAKE_INSTANCE_IDLE:
            return True
        if taken == TAKE_CLOSED:
            return None
        return _tickets(entries.data(), count)

    def close_open_batch(self, bint ready) -> None:
        """End the prefetcher's turn.

        Args:
            ready: Whether an instance has a batch to take over; False when all of it has ended.
        """
        self.queue.close_open_batch(ready)

    def requeue(self) -> None:
        """Have an instance take over a batch that its own instance could not run."""
        self.queue.requeue()

    def start(self, list tickets not None) -> list:
        """Move the tickets of a batch to running.

        Args:
            tickets: What `take` returned.

        Returns:
            Those that have not ended meanwhile; the others are no longer the batch's.
        """
        cdef vector[Entry *] entries
        cdef vector[unsigned char] alive
        cdef Ticket ticket
        cdef size_t i
        cdef bint all_alive = True
        alive.resize(len(tickets))
        for ticket in tickets:
            entries.push_back(ticket.entry)
        self.queue.start(entries.data(), entries.size(), alive.data())
        for i in range(alive.size()):
            all_alive = all_alive and alive[i]
        if all_alive:
            return tickets
        _run_completions()
        return [tickets[i] for i in range(alive.size()) if alive[i]]

    def finish(self, list tickets not None, list answers not None, bint later=False) -> list:
        """Answer the tickets of a batch, each once.

        Args:
            tickets: Tickets that `take` or `start` returned.
            answers: For each its response, or the exception that it failed with.
            later: Wake the waiters only when this thread next calls `take` or `wake_waiters`, once
                the GIL is free for them. Then the thread must call one of the two soon.

        Returns:
            For each whether it was answered now; False where it had expired or was cancelled, or
            was finished before.
        """
        cdef vector[Entry *] entries
        cdef vector[unsigned char] won
        cdef Ticket ticket
        cdef size_t i
        cdef list result = [False] * len(tickets)
        if len(tickets) != len(answers):
            raise ValueError(f"{len(answers)} answers for {len(tickets)} tickets")
        won.resize(len(tickets))
        for ticket in tickets:
            entries.push_back(ticket.entry)
        # Nothing behind this raises: who wins a request answers it.
        self.queue.finish(entries.data(), entries.size(), won.data())
        for i in range(won.size()):
            if not won[i]:
                continue
            ticket = <Ticket>tickets[i]
            result[i] = True
            if ticket.entry.answered != NULL:
                ticket.entry.answered(ticket.entry, <void *>answers[i])
            else:
                ticket.answer = answers[i]
            if later:
                publish_later(ticket.entry)
            else:
                publish(ticket.entry)
            if ticket.callbacks is not None:
                if later:
                    publish_all()
                ticket._call_back()
            release_entry(ticket.entry)
        return result

    def close(self) -> None:
        """Accept nothing more; what waits is still served."""
        self.queue.close()

    def take_all(self) -> list:
        """Take out every ticket that still waits, whatever its batch key, without blocking."""
        cdef vector[Entry *] entries
        cdef size_t count
        entries.resize(self.queue.waiting())
        count = self.queue.take_all(entries.data(), entries.size())
        return _tickets(entries.data(), count)

    def wait_empty(self, object until_ns=None) -> bool:
        """Sleep until nothing accepted is left.

        Args:
            until_ns: `time.monotonic_ns` at which to give up, or None.

        Returns:
            Whether nothing is left.
        """
        cdef int64_t until = NEVER if until_ns is None else until_ns
        cdef bint empty
        with nogil:
            empty = self.queue.wait_empty(until)
        return empty

    @property
    def may_prefetch(self):
        """Whether the prefetcher is to work while every instance is busy."""
        return self.queue.may_prefetch.load()

    @may_prefetch.setter
    def may_prefetch(self, bint value):
        self.queue.may_prefetch.store(value)

    @property
    def inline_for_all(self):
        """Whether any thread that pushes a request may claim a slot: the handler is quick."""
        return self.queue.inline_for_all.load()

    @inline_for_all.setter
    def inline_for_all(self, bint value):
        self.queue.inline_for_all.store(value)

    @property
    def inline_for_blocked(self):
        """Whether a thread that would only wait for its request may claim a slot."""
        return self.queue.inline_for_blocked.load()

    @inline_for_blocked.setter
    def inline_for_blocked(self, bint value):
        self.queue.inline_for_blocked.store(value)

    @property
    def waiting(self):
        """Requests that take a place: queued, or in a batch that does not run yet."""
        return self.queue.waiting()

    @property
    def open(self):
        """Requests that were accepted and are still held by the queue or a batch."""
        return self.queue.open()

    @property
    def idle(self):
        """Instances that wait for work."""
        return self.queue.idle()

    @property
    def closed(self):
        """Whether `close` was called."""
        return self.queue.closed()

    def count_invalid(self) -> None:
        """Note a request that was refused before the queue."""
        self.queue.counters[<int>COUNT_INVALID].fetch_add(1)

    def counts(self) -> dict:
        """Return what happened to requests here, apart from answers.

        Returns:
            `pushed`, `full`, `bytes_in_flight`, `cancelled`, `expired_queued`, `expired_running`,
            `invalid`.
        """
        cdef CQueue *q = self.queue
        return {
            "pushed": q.counters[<int>COUNT_PUSHED].load(),
            "full": q.counters[<int>COUNT_FULL].load(),
            "bytes_in_flight": q.counters[<int>COUNT_BYTES].load(),
            "cancelled": q.counters[<int>COUNT_CANCELLED].load(),
            "expired_queued": q.counters[<int>COUNT_EXPIRED_QUEUED].load(),
            "expired_running": q.counters[<int>COUNT_EXPIRED_RUNNING].load(),
            "invalid": q.counters[<int>COUNT_INVALID].load(),
        }


cdef list _tickets(Entry **entries, size_t count):
    cdef list tickets = PyList_New(<Py_ssize_t>count)
    cdef size_t i
    cdef void *ticket
    for i in range(count):
        ticket = entries[i].taken(entries[i])
        PyList_SET_ITEM(tickets, <Py_ssize_t>i, <object>ticket)
    return tickets
