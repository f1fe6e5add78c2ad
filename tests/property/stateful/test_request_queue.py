"""The native queue beside a list: requests are pushed, taken, cancelled and finished in any order.

One thread does everything, so nothing waits: a batch is taken only if the model says that a batch is ready.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ksrv._native.queue import request_queue as native
from ksrv._native.queue.request_handle import NativeHandle, SequenceOrder
from tests.support.examples import examples

CAPACITY = 6
SLOTS = 2
LATER_NS = 3_600_000_000_000
NO_PRIORITY = 1 << 32


@dataclass(eq=False)
class Known:
    """A request as the model knows it.

    Attributes:
        state: The handle's, and "held" for a request that waits for another of its sequence.
        in_hand: Whether a batch refers to it.
        line: Its position among the requests of its priority.
    """

    handle: NativeHandle
    key: int
    rows: int
    priority: int
    sequence: "KnownSequence | None"
    state: str = "new"
    in_hand: bool = False
    line: int = 0


@dataclass(eq=False)
class KnownSequence:
    order: SequenceOrder
    slot: int
    current: Known | None = None
    held: list[Known] = field(default_factory=list)


class QueueMachine(RuleBasedStateMachine):
    """A bounded queue of two instances."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = native.Queue(CAPACITY)
        assert [self.queue.add_slot() for _ in range(SLOTS)] == list(range(SLOTS))
        self.known: list[Known] = []
        self.batches: list[list[Known]] = []
        self.sequences = [
            KnownSequence(SequenceOrder(slot), slot) for slot in range(SLOTS) for _ in range(2)
        ]
        self.closed = self.taken_all = False
        self.arrivals = 0
        self.counts = dict.fromkeys(self.queue.counts(), 0)

    # ---- the model ------------------------------------------------------------------------------

    @property
    def places(self) -> int:
        return sum(one.state in ("queued", "held", "taken") for one in self.known)

    def queued(self, slot: int | None = None) -> list[Known]:
        """Return the queued requests in order; for a slot, the requests that its instance may take."""
        found = [
            one for one in self.known
            if one.state == "queued" and (slot is None or one.sequence is None or one.sequence.slot == slot)
        ]  # fmt: skip
        return sorted(found, key=lambda one: (one.priority or NO_PRIORITY, one.line))

    def enter(self, one: Known) -> None:
        self.arrivals += 1
        one.state, one.line = "queued", self.arrivals

    def leave_sequence(self, one: Known) -> None:
        sequence = one.sequence
        if sequence is None or sequence.current is not one:
            return
        sequence.current = sequence.held.pop(0) if sequence.held else None
        if sequence.current is not None:
            self.enter(sequence.current)

    def part(self, one: Known) -> None:
        """A batch does not refer to it any more."""
        one.in_hand = False
        self.leave_sequence(one)

    # ---- what may happen ------------------------------------------------------------------------

    @rule(
        key=st.integers(0, 2),
        rows=st.integers(0, 5),
        priority=st.integers(0, 2),
        sequence=st.none() | st.integers(0, 3),
        deadline=st.sampled_from(["none", "later", "passed"]),
    )
    def push(self, key: int, rows: int, priority: int, sequence: int | None, deadline: str) -> None:
        now = time.monotonic_ns()
        until = {"none": None, "later": now + LATER_NS, "passed": now - 1}[deadline]
        handle = NativeHandle(object(), rows, key, priority, until)
        mine = None if sequence is None else self.sequences[sequence]
        one = Known(handle, key, rows, priority if mine is None else 0, mine)
        if mine is not None:
            handle.follow(mine.order, mine)  # and has no priority any more
        pushed = self.queue.push(handle)
        if deadline == "passed":
            assert pushed == native.EXPIRED
        elif self.closed:
            assert pushed == native.CLOSED
        else:
            assert pushed == (native.FULL if self.places >= CAPACITY else native.OK)
        names = {native.EXPIRED: "expired_queued", native.FULL: "full", native.OK: "pushed"}
        if pushed in names:
            self.counts[names[pushed]] += 1
        if pushed != native.OK:
            assert handle.state == "new" and not handle.done()
            return
        self.known.append(one)
        if mine is not None and mine.current is not None:
            one.state = "held"
            mine.held.append(one)
            return
        if mine is not None:
            mine.current = one
        self.enter(one)

    @rule(slot=st.integers(0, SLOTS - 1), room=st.integers(1, 4), most=st.integers(1, 6))
    def take(self, slot: int, room: int, most: int) -> None:
        waiting = self.queued(slot)
        if not waiting:
            if (
                self.closed
                and not self.queued()
                and not any(one.state == "held" for one in self.known)
            ):
                assert self.queue.take(slot, room, most) is None
            return
        expected: list[Known] = []
        for one in waiting:
            if one.key != waiting[0].key:
                continue
            rows = one.rows + sum(other.rows for other in expected)
            if expected and (len(expected) == room or rows > most):
                break
            expected.append(one)
            if rows >= most:
                break
        taken = self.queue.take(slot, room, most)
        assert taken == [one.handle for one in expected]
        for one in expected:
            one.state, one.in_hand = "taken", True
        self.batches.append(expected)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def start(self, data: Any) -> None:
        batch = data.draw(st.sampled_from(self.batches))
        alive = [one for one in batch if one.state in ("taken", "running")]
        assert self.queue.start([one.handle for one in batch]) == [one.handle for one in alive]
        for one in batch:
            if one in alive:
                one.state = "running"
            else:
                self.part(one)
        batch[:] = alive
        if not batch:
            self.batches.remove(batch)

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), twice=st.booleans())
    def finish(self, data: Any, twice: bool) -> None:
        batch = data.draw(st.sampled_from(self.batches))
        handles = [one.handle for one in batch]
        self.finish_batch(batch)
        if twice:
            assert self.queue.finish(handles, handles) == [False] * len(handles)

    def finish_batch(self, batch: list[Known]) -> None:
        handles = [one.handle for one in batch]
        open_ones = [one.state in ("taken", "running") for one in batch]
        assert self.queue.finish(handles, [id(one) for one in batch]) == open_ones
        for one, was_open in zip(batch, open_ones, strict=True):
            if was_open:
                one.state = "answered"
                assert one.handle.answer == id(one)
            self.part(one)
        self.batches.remove(batch)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        one = data.draw(st.sampled_from(self.known))
        before = one.state
        assert one.handle.cancel() == (before in ("queued", "held", "taken", "running"))
        if before in ("answered", "cancelled"):
            return
        one.state = "cancelled"
        self.counts["cancelled"] += 1
        if before == "held":
            assert one.sequence is not None
            one.sequence.held.remove(one)
        if before == "queued":
            self.leave_sequence(one)

    @rule()
    def take_all(self) -> None:
        taken = self.queue.take_all()
        self.taken_all = True  # requests of one sequence may be in one batch, which is refused
        waiting = [one for one in self.known if one.state in ("queued", "held")]
        assert set(map(id, taken)) == {id(one.handle) for one in waiting}
        by_handle = {id(one.handle): one for one in waiting}
        batch = [by_handle[id(handle)] for handle in taken]
        for one in batch:
            if one.state == "held":
                assert one.sequence is not None
                one.sequence.held.remove(one)
            one.state, one.in_hand = "taken", True
        if batch:
            self.batches.append(batch)

    @rule()
    def empty(self) -> None:
        """Nothing is left once everything is taken and finished."""
        self.take_all()
        while self.batches:
            self.finish_batch(self.batches[0])
            self.take_all()
        assert self.queue.wait_empty(time.monotonic_ns())
        assert all(one.handle.done() for one in self.known)

    @precondition(lambda self: not self.closed)
    @rule()
    def close(self) -> None:
        self.queue.close()
        self.closed = True

    # ---- what always holds ----------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        assert self.queue.waiting == self.places
        held = sum(one.in_hand or one.state in ("queued", "held") for one in self.known)
        assert self.queue.open == held
        assert self.queue.idle == 0
        assert self.queue.closed == self.closed
        assert self.queue.counts() == self.counts
        for one in self.known:
            shown = "queued" if one.state == "held" else one.state
            assert one.handle.state == shown
            assert one.handle.done() == (one.state in ("answered", "cancelled"))
        for sequence in self.sequences:
            entered = [
                one
                for one in self.known
                if one.sequence is sequence and (one.in_hand or one.state == "queued")
            ]
            assert len(entered) <= 1 or self.taken_all


TestQueue = QueueMachine.TestCase
TestQueue.settings = examples(300, stateful_step_count=30)
