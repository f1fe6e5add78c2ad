"""A table of the workers in shared memory, for gunicorn's master and the workers themselves.

The master makes it before it forks; each worker holds one slot. With it a replacement accepts no
connection before its models are ready, and the worker that it replaces does not leave before that;
gunicorn knows of neither.
"""

import mmap
import os
import sys
import time
from enum import IntEnum

CAPACITY = 512
_COLUMNS = 6
_HEADER = 9
_WORD = 8
_BEGUN = 2


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
    """How the whole server stops."""

    NOT = 0
    TAKEN_OVER = 1
    """Another master serves on the same addresses: as at a reload, without the drain delay."""
    ORDERLY = 2
    QUICK = 3
    """Without the drain delay: running requests are finished, no client is waited for."""


class WorkerTable:
    """The table. Every cell is written by one process at a time: the master or the slot's worker."""

    def __init__(self) -> None:
        self.started = int(time.time())
        self._memory = mmap.mmap(-1, (_HEADER + CAPACITY * _COLUMNS) * _WORD)
        self._cells = memoryview(self._memory).cast("q")
        self._cells[1] = 1
        self._cells[5] = 1

    @property
    def generation(self) -> int:
        """How many times the configuration was reloaded."""
        return self._cells[0]

    def next_generation(self) -> None:
        """Workers taken from now on replace those taken before."""
        self._cells[0] += 1

    @property
    def target_count(self) -> int:
        """How many workers one generation has."""
        return self._cells[1]

    @target_count.setter
    def target_count(self, count: int) -> None:
        self._cells[1] = count

    @property
    def stopping(self) -> Stop:
        """Whether the master stops the server, and how."""
        return Stop(self._cells[2])

    def begin_stop(self, stop: Stop) -> None:
        """Note that the server stops; a quick stop stays quick."""
        self._cells[2] = max(self._cells[2], stop)

    @property
    def served(self) -> bool:
        """Whether any worker has ever served."""
        return bool(self._cells[3])

    def set_served(self) -> None:
        """Note that a worker serves."""
        self._cells[3] = 1

    @property
    def last_reload(self) -> int:
        """When the last reload (SIGHUP) was asked for, in seconds since 1970; 0 for never."""
        return self._cells[4]

    @property
    def last_reload_successful(self) -> bool:
        """Whether the last reload ended well: every worker of it got ready. True before the first."""
        return self._cells[5] == 1

    def note_reload(self, *, accepted: bool) -> None:
        """Note that a reload was asked for.

        Args:
            accepted: Whether the reload was begun; a refused reload has failed.
        """
        self._cells[4] = int(time.time())
        self._cells[5] = _BEGUN if accepted else 0

    def end_reload(self) -> None:
        """Note that the reload that was begun has succeeded, if all of its workers are ready."""
        ready = [
            slot
            for slot in range(CAPACITY)
            if self.worker_generation(slot) == self.generation and self.state(slot) is State.READY
        ]
        if self._cells[5] == _BEGUN and len(ready) >= self.target_count:
            self._cells[5] = 1

    @property
    def certificate_expiry(self) -> int:
        """When the served certificate ends, in seconds since 1970; 0 without TLS."""
        return self._cells[6]

    @certificate_expiry.setter
    def certificate_expiry(self, seconds: int) -> None:
        self._cells[6] = seconds

    @property
    def restarts(self) -> int:
        """How many workers ended without a signal of the master."""
        return self._cells[7]

    def count_restart(self) -> None:
        """Count a worker that ended without being stopped."""
        self._cells[7] += 1

    @property
    def beside_another(self) -> bool:
        """Whether the master that SIGUSR2 replaces still serves on the same addresses."""
        return self._cells[8] == 1

    @beside_another.setter
    def beside_another(self, beside: bool) -> None:
        self._cells[8] = beside

    def _get(self, slot: int, column: int) -> int:
        return self._cells[_HEADER + slot * _COLUMNS + column]

    def _set(self, slot: int, column: int, value: int) -> None:
        self._cells[_HEADER + slot * _COLUMNS + column] = value

    def state(self, slot: int) -> State:
        """Return the state of the worker in `slot`."""
        return State(self._get(slot, 0))

    def set_state(self, slot: int, state: State) -> None:
        """Note what the worker in `slot` is doing now."""
        self._set(slot, 0, state)

    def worker_generation(self, slot: int) -> int:
        """The generation that the worker in `slot` belongs to."""
        return self._get(slot, 1)

    def accepting(self, slot: int) -> bool:
        """Whether the worker in `slot` accepts connections."""
        return bool(self._get(slot, 2))

    def set_accepting(self, slot: int, accepting: bool) -> None:
        """Note whether the worker in `slot` accepts connections."""
        self._set(slot, 2, accepting)

    def set_pid(self, slot: int) -> None:
        """Note that this process is the worker in `slot`."""
        self._set(slot, 3, os.getpid())

    def pid(self, slot: int) -> int:
        """Return the process of the worker in `slot`."""
        return self._get(slot, 3)

    def alive(self, slot: int) -> bool:
        """Whether `slot` has a worker."""
        return self.state(slot) is not State.EMPTY

    def begin_following(self, slot: int, position: int) -> None:
        """Note from which position of the change log on the worker in `slot` makes the changes."""
        self._set(slot, 5, position)
        self._set(slot, 4, position)

    def end_following(self, slot: int) -> None:
        """Note that the worker in `slot` makes no changes from now on."""
        self._set(slot, 5, sys.maxsize)

    def note_read(self, slot: int, position: int) -> None:
        """Note how far the worker in `slot` has read the change log."""
        self._set(slot, 4, position)

    def read_by_all(self) -> int:
        """How far every worker has read the change log."""
        return min(
            (self._get(slot, 4) for slot in range(CAPACITY) if self.alive(slot)),
            default=0,
        )

    def followers(self, position: int) -> list[int]:
        """Return the slots of the workers that serve and will make, or have made, the change before a position of the log.

        Args:
            position: The position after the change. Workers that began later began with the result of the change.
        """
        loaded = (State.READY, State.FAILED)
        return [
            slot
            for slot in range(CAPACITY)
            if self.state(slot) in loaded and self.began_before(slot, position)
        ]

    def began_before(self, slot: int, position: int) -> bool:
        """Whether the worker in `slot` is alive and began before the change at a position of the log, and so makes it."""
        return self.alive(slot) and self._get(slot, 5) < position

    def allocate(self) -> int:
        """Give the next worker a slot; it may accept at once if nobody else does, or is about to.

        Raises:
            RuntimeError: Every slot is taken.
        """
        for slot in range(CAPACITY):
            if self.state(slot) is State.EMPTY:
                others = any(map(self.accepting, range(CAPACITY)))
                alone = not (others or self._another_is_ready(slot) or self.beside_another)
                self._set(slot, 1, self.generation)
                self.set_accepting(slot, alone)
                self.begin_following(slot, 0)
                self.set_state(slot, State.LOADING)
                return slot
        raise RuntimeError(f"more than {CAPACITY} workers are alive at once")

    def release(self, slot: int) -> None:
        """Note that the worker in `slot` has ended."""
        self.set_accepting(slot, False)
        self.set_state(slot, State.EMPTY)

    def _others(self, slot: int) -> list[State]:
        """The states of the other workers that accept."""
        return [
            self.state(other)
            for other in range(CAPACITY)
            if other != slot and self.accepting(other)
        ]

    def may_accept(self, slot: int) -> bool:
        """Whether the worker in `slot` should begin to accept.

        A READY worker accepts, except while another worker accepts and is still LOADING: readiness
        probes would alternate between 200 and 503. A LOADING or FAILED worker accepts only if no
        other worker, or another master's, does better.
        """
        others = self._others(slot)
        if self.state(slot) is State.READY:
            return State.LOADING not in others
        if self.beside_another:
            return False
        if self.state(slot) is State.FAILED:
            return State.READY not in others and State.RETIRING not in others
        return not (others or self._another_is_ready(slot))

    def _another_is_ready(self, slot: int) -> bool:
        """Whether another worker serves, or will as soon as it looks at this table."""
        return any(self.state(other) is State.READY for other in range(CAPACITY) if other != slot)

    def replaced(self, generation: int, *, by_failed: bool) -> bool:
        """Whether a whole newer generation is ready to serve.

        Args:
            by_failed: Whether workers whose models failed to load count, because the models of the
                retiring worker failed too.
        """
        newer = [
            slot
            for slot in range(CAPACITY)
            if self.worker_generation(slot) > generation and self._stands_in(slot, by_failed)
        ]
        return len(newer) >= self.target_count

    def served_by_another(self, slot: int) -> bool | None:
        """Whether a worker besides that in `slot` is ready and accepts; None while one may become so."""
        others = [other for other in range(CAPACITY) if other != slot]
        if any(self._stands_in(other, False) for other in others):
            return True
        coming = (State.LOADING, State.READY)
        return None if any(self.state(other) in coming for other in others) else False

    def _stands_in(self, slot: int, by_failed: bool) -> bool:
        # A failed worker does not accept before the worker that it replaces has left.
        if self.state(slot) is State.FAILED:
            return by_failed
        return self.state(slot) is State.READY and self.accepting(slot)
