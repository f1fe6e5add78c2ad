"""A table of the workers in shared memory, for gunicorn's master and the workers themselves.

The master makes it before it forks; each worker has one slot. After a reload, a new worker reads in the table when it
may accept connections, and an old worker reads when it may leave, so that ready models always serve. gunicorn itself
would replace workers before their models are loaded.
"""

import ctypes
import mmap
import time
from enum import IntEnum

CAPACITY = 512
"""The most workers that are alive at a time."""


class State(IntEnum):
    """The state of the worker in a slot."""

    EMPTY = 0
    LOADING = 1
    READY = 2
    FAILED = 3
    RETIRING = 4
    STOPPING = 5
    NEVER_SERVED = 6
    """The worker failed before it could serve, and is about to end."""


class Stop(IntEnum):
    """How the whole server stops. See `WorkerTable.begin_stop` for the order of the values."""

    NOT = 0
    TAKEN_OVER = 1
    """Another master serves on the same addresses, so the workers leave as at a reload, without the drain delay."""
    ORDERLY = 2
    QUICK = 3
    """Without the drain delay; running requests are finished."""


class Worker(ctypes.Structure):
    """The worker in a slot.

    Attributes:
        state: A `State`.
        generation: The number of reloads before this worker's start.
        accepting: Whether it accepts connections.
        pid: Its process.
        read: The position up to which it has read the change log.
        follows: The position of the change log from which it makes the changes. Earlier changes are a part of its
            start.
    """

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("state", "generation", "pid", "read", "follows")),
        ("accepting", ctypes.c_bool),
    ]


class WorkerTable(ctypes.Structure):
    """The table; `shared_table` makes it. One process at a time writes a field: the master or the slot's worker.

    Attributes:
        started: When the server was started, in seconds since 1970.
        generation: How many times the configuration was reloaded.
        target_count: How many workers one generation has.
        stopping: A `Stop`: whether the master stops the server, and how.
        served: Whether any worker has ever served.
        last_reload: When the last reload (SIGHUP) was asked for, in seconds since 1970; 0 for never.
        reload_begun: Whether the last reload has begun and not succeeded yet.
        reload_successful: Whether every worker of the last reload got ready. True before the first.
        certificate_expiry: When the served certificate ends, in seconds since 1970; 0 without TLS.
        restarts: How many workers ended without a signal of the master.
        beside_another: Whether the master that SIGUSR2 replaces still serves on the same addresses.
        workers: The slots.
    """

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("started", "generation", "target_count", "stopping")),
        *((name, ctypes.c_int64) for name in ("last_reload", "certificate_expiry", "restarts")),
        *((name, ctypes.c_bool) for name in ("served", "reload_begun", "reload_successful")),
        ("beside_another", ctypes.c_bool),
        ("workers", Worker * CAPACITY),
    ]

    stopping: int

    def begin_stop(self, stop: Stop) -> None:
        """Note that the server stops. Of several calls, the largest value wins: a quick stop stays quick."""
        self.stopping = max(self.stopping, stop)

    def note_reload(self, *, accepted: bool) -> None:
        """Note that a reload was asked for.

        Args:
            accepted: Whether the reload was begun; a refused reload has failed.
        """
        self.last_reload = int(time.time())
        self.reload_begun, self.reload_successful = accepted, False

    def end_reload(self) -> None:
        """Note that the reload that was begun has succeeded, if all of its workers are ready."""
        ready = [
            row
            for row in self.workers
            if row.generation == self.generation and row.state == State.READY
        ]
        if self.reload_begun and len(ready) >= self.target_count:
            self.reload_begun, self.reload_successful = False, True

    def alive(self, slot: int) -> bool:
        """Whether `slot` has a worker."""
        return bool(self.workers[slot].state != State.EMPTY)

    def read_by_all(self) -> int:
        """Return the position up to which every worker has read the change log."""
        return min((row.read for row in self.workers if row.state != State.EMPTY), default=0)

    def followers(self, position: int) -> list[int]:
        """Return the slots of the workers that serve and will make, or have made, the change before a position of the log.

        Args:
            position: The position after the change. Workers that began later began with the result of the change.
        """
        loaded = (State.READY, State.FAILED)
        return [
            slot
            for slot, row in enumerate(self.workers)
            if row.state in loaded and row.follows < position
        ]

    def begin_following(self, slot: int, position: int) -> None:
        """Note from which position of the change log on the worker in `slot` makes the changes."""
        self.workers[slot].follows = self.workers[slot].read = position

    def began_before(self, slot: int, position: int) -> bool:
        """Whether the worker in `slot` is alive and began before the change at a position of the log, and so makes it."""
        return self.alive(slot) and self.workers[slot].follows < position

    def allocate(self) -> int:
        """Give the next worker a slot. The worker may accept at once if no other worker accepts or is about to.

        Raises:
            RuntimeError: Every slot is taken.
        """
        for slot, row in enumerate(self.workers):
            if row.state == State.EMPTY:
                others = any(other.accepting for other in self.workers)
                row.accepting = not (others or self._another_is_ready(slot) or self.beside_another)
                row.generation = self.generation
                self.begin_following(slot, 0)
                row.state = State.LOADING
                return slot
        raise RuntimeError(f"more than {CAPACITY} workers are alive at once")

    def release(self, slot: int) -> None:
        """Note that the worker in `slot` has ended."""
        self.workers[slot].accepting = False
        self.workers[slot].state = State.EMPTY

    def may_accept(self, slot: int) -> bool:
        """Whether the worker in `slot` should begin to accept.

        A READY worker accepts, except while another worker accepts and is still LOADING, because readiness
        probes would alternate between 200 and 503. A LOADING or FAILED worker accepts only if no worker in
        a better state, of this or another master, accepts.
        """
        others = [other.state for other in self._others(slot) if other.accepting]
        state = self.workers[slot].state
        if state == State.READY:
            return State.LOADING not in others
        if self.beside_another:
            return False
        if state == State.FAILED:
            return State.READY not in others and State.RETIRING not in others
        return not (others or self._another_is_ready(slot))

    def _others(self, slot: int) -> list[Worker]:
        return [row for other, row in enumerate(self.workers) if other != slot]

    def _another_is_ready(self, slot: int) -> bool:
        """Whether another worker is ready: it accepts, or will do so as soon as it reads this table."""
        return any(other.state == State.READY for other in self._others(slot))

    def replaced(self, generation: int, *, by_failed: bool) -> bool:
        """Whether enough workers of newer generations serve, so that a worker of `generation` may leave.

        Args:
            by_failed: Whether workers whose models failed to load count, because the models of the
                retiring worker failed too.
        """
        newer = [
            row
            for row in self.workers
            if row.generation > generation and _stands_in(row, by_failed=by_failed)
        ]
        return bool(len(newer) >= self.target_count)

    def served_by_another(self, slot: int) -> bool | None:
        """Whether a worker in another slot is ready and accepts; None if none does yet, but may do so soon."""
        others = self._others(slot)
        if any(_stands_in(other, by_failed=False) for other in others):
            return True
        coming = (State.LOADING, State.READY)
        return None if any(other.state in coming for other in others) else False


def _stands_in(worker: Worker, *, by_failed: bool) -> bool:
    # A failed worker does not accept before the worker that it replaces has left.
    if worker.state == State.FAILED:
        return by_failed
    return bool(worker.state == State.READY and worker.accepting)


def shared_table() -> WorkerTable:
    """Return a new table, which the processes that are forked from now on share."""
    table = WorkerTable.from_buffer(mmap.mmap(-1, ctypes.sizeof(WorkerTable)))
    table.started, table.target_count, table.reload_successful = int(time.time()), 1, True
    return table
