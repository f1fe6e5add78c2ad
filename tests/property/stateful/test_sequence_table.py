"""The table of open sequences over a real queue, beside a dictionary: begun, gone on, ended, lost, cancelled."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ksrv._native.queue import request_queue as native
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.engine.sequences.table import SequenceTable
from ksrv.errors import InvalidRequest, Overloaded, SequenceEnded
from ksrv.model.spec import SequenceLimits
from ksrv.request import InferRequest
from tests.support.examples import examples

MOST, SLOTS, CAPACITY = 3, 2, 8
NAMES = [1, 2, 3, "a", "b"]


@dataclass(eq=False)
class Open:
    """A sequence as the model knows it.

    Attributes:
        requests: Its requests that have not ended.
        last: Whether no further request may come.
        lost: Whether its state went with its process.
    """

    name: int | str
    number: int
    slot: int
    requests: int = 0
    begun: bool = False
    last: bool = False
    lost: bool = False
    ended_as: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Sent:
    handle: QueuedRequest
    of: Open
    start: bool
    done: bool = False


class SequenceMachine(RuleBasedStateMachine):
    """Three sequences at most, on two instances."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = native.Queue(CAPACITY)
        slots = [self.queue.add_slot() for _ in range(SLOTS)]
        self.away: set[int] = set()
        self.dropped: list[int] = []
        self.table = SequenceTable(
            "m", SequenceLimits(max=MOST, idle_timeout_ms=3_600_000), slots=slots,
            is_available=lambda slot: slot not in self.away,
            end_sequences=lambda slot, numbers: self.dropped.extend(numbers),
        )  # fmt: skip
        self.open: dict[int | str, Open] = {}
        self.forgotten: dict[int | str, None] = {}
        self.all: list[Open] = []
        self.sent: list[Sent] = []
        self.ended: Counter[str] = Counter()
        self.running: dict[int, Sent] = {}

    # ---- the model ------------------------------------------------------------------------------

    def end(self, one: Open, why: str, *, forgets: bool = False) -> None:
        if self.open.get(one.name) is one:
            del self.open[one.name]
        one.last = True
        self.ended[why] += 1
        if forgets:
            self.forgotten.pop(one.name, None)
            self.forgotten[one.name] = None
            while len(self.forgotten) > MOST:
                del self.forgotten[next(iter(self.forgotten))]

    def request_ended(self, sent: Sent) -> None:
        sent.done = True
        sent.of.requests -= 1
        if not sent.of.requests and not sent.of.last and not sent.of.begun:
            self.end(sent.of, "not_run")

    # ---- what may happen ------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), start=st.booleans(), end=st.booleans())
    def ask(self, name: int | str, start: bool, end: bool) -> None:
        parameters: dict[str, Any] = {"sequence_id": name, "sequence_start": start}
        request = InferRequest("m", parameters=parameters | {"sequence_end": end})
        handle = QueuedRequest(request, 1, 7)
        known = self.open.get(name)
        if start and known is None and len(self.open) >= MOST:
            with pytest.raises(Overloaded, match="open sequences"):
                self.table.push(handle, self.queue.push)
            return
        if not start and known is None:
            wanted = SequenceEnded if name in self.forgotten else InvalidRequest
            with pytest.raises(wanted, match="sequence_start"):
                self.table.push(handle, self.queue.push)
            return
        waiting = self.queue.waiting
        pushed = self.table.push(handle, self.queue.push)
        assert pushed == (native.OK if waiting < CAPACITY else native.FULL)
        if pushed != native.OK:
            return
        told = request.sequence
        assert told is not None and (told.id, told.start, told.end) == (name, start, end)
        if start:
            self.forgotten.pop(name, None)
            counts = Counter(one.slot for one in self.open.values())
            if known is not None:
                counts = Counter(one.slot for one in self.open.values())
                self.end(known, "start")
            slot = handle.sequence.order.slot
            best = min(range(SLOTS), key=lambda at: (at in self.away, counts[at]))
            assert (slot in self.away, counts[slot]) == (best in self.away, counts[best])
            one = Open(name, told.number, slot)
            assert told.number not in [other.number for other in self.all]
            self.open[name] = one
            self.all.append(one)
        else:
            assert known is not None and told.number == known.number
            one = known
        one.requests += 1
        self.sent.append(Sent(handle, one, start))
        if end:
            self.end(one, "end")

    @rule(slot=st.integers(0, SLOTS - 1))
    def run(self, slot: int) -> None:
        """An instance takes a request; one whose sequence has not begun, or is gone, is refused there."""
        waits = [
            sent for sent in self.sent if not sent.done and sent.of.slot == slot
            and sent is not self.running.get(slot)
        ]  # fmt: skip
        if slot in self.running or not waits:
            return
        [handle] = self.queue.take(slot, 1, 1)
        [sent] = [one for one in waits if one.handle is handle]
        earlier = next(one for one in waits if one.of is sent.of)
        assert sent is earlier, "the requests of a sequence keep their order"
        if not self.queue.start([handle]):
            return
        refusal = handle.sequence.refusal(handle.request.sequence)
        assert (refusal is not None) == (sent.of.lost or not (sent.of.begun or sent.start))
        if refusal is None:
            handle.sequence.begun = sent.of.begun = True
            self.running[slot] = sent
        else:
            self.request_ended(sent)
            self.queue.finish([handle], [refusal])

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def answer(self, data: Any) -> None:
        slot = data.draw(st.sampled_from(sorted(self.running)))
        sent = self.running.pop(slot)
        was_open = not sent.done
        if was_open:
            self.request_ended(sent)
        assert self.queue.finish([sent.handle], ["answer"]) == [was_open]

    @precondition(lambda self: any(not sent.done for sent in self.sent))
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        sent = data.draw(st.sampled_from([one for one in self.sent if not one.done]))
        self.request_ended(sent)
        assert sent.handle.cancel()

    @rule(slot=st.integers(0, SLOTS - 1))
    def lose(self, slot: int) -> None:
        """The process of an instance dies, with the state of all its sequences that have begun."""
        for one in [*self.open.values()]:
            if one.slot == slot and one.begun:
                self.end(one, "process", forgets=True)
                one.lost = True
        self.table.lose(slot, "killed")

    @rule(slot=st.integers(0, SLOTS - 1))
    def toggle(self, slot: int) -> None:
        self.away ^= {slot}

    # ---- what always holds ----------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        assert self.table.open == len(self.open) <= MOST
        assert {why: count for why, count in self.table.ended.items() if count} == dict(self.ended)

    @invariant()
    def state_is_dropped_once_and_never_early(self) -> None:
        gone = [one.number for one in self.all if one.last and not one.requests]
        assert set(gone) <= set(self.dropped)
        assert {one.number for one in self.all if not one.last} & set(self.dropped) == set()
        under_way = {one.number for one in self.all if one.requests and one.begun and not one.lost}
        assert under_way & set(self.dropped) == set()

    def teardown(self) -> None:
        for sent in self.sent:
            sent.handle.cancel()
        self.queue.finish([sent.handle for sent in self.running.values()], list(self.running))
        self.table.close()
        assert self.table.open == 0
        assert {one.number for one in self.all} <= set(self.dropped) | {
            one.number for one in self.open.values()
        }


TestSequences = SequenceMachine.TestCase
TestSequences.settings = examples(300, stateful_step_count=30)
