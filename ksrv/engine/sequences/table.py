"""The open sequences of a model version: which instance has their state, how many are open, when they end.

A sequence begins with a request marked as its start, on the instance with the fewest sequences, and stays there. The
native queue keeps the order of its requests and gives them to that instance alone. It ends with a request marked as its
end, after a time without requests, with its handler process, or with the model version.

The state itself is in the handler's process or thread (`ksrv.handlers.sequences`). A separate thread ends sequences
that had no request for too long.
"""

import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Literal, TypeAlias

from ksrv._native.queue import request_queue as native
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.engine.sequences.sequence import OpenSequence, SequenceId, read_parameters, shown
from ksrv.errors import InvalidRequest, Overloaded, SequenceEnded
from ksrv.limits import show_limit
from ksrv.model.spec import SequenceLimits
from ksrv.request import SequenceRequest

log = logging.getLogger("ksrv.engine")

Ending: TypeAlias = Literal["end", "start", "idle_timeout", "not_run", "process", "reload"]
"""Why a sequence ended: its last request, a second start, no request in time, a first request that was not run, the end
of its process, another version."""

ENDINGS: tuple[Ending, ...] = ("end", "start", "idle_timeout", "not_run", "process", "reload")
MILLISECOND = 1_000_000


@dataclass(eq=False)
class SequenceTable:
    """The open sequences of a model version.

    Args:
        limits: How many sequences may be open, and how long a sequence may be idle.
        is_available: Tells whether the instance of a slot can be expected to run a batch.
        end_sequences: Drops the states of sequences, by number, in the instance of a slot. It never waits for a batch.

    Attributes:
        ended: How many sequences have ended, by reason.
    """

    model: str
    limits: SequenceLimits
    slots: InitVar[Iterable[int]]
    is_available: Callable[[int], bool]
    end_sequences: Callable[[int, Sequence[int]], None]
    ended: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDINGS, 0))

    def __post_init__(self, slots: Iterable[int]) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._numbers = itertools.count(1)
        self._open: dict[SequenceId, OpenSequence] = {}
        self._counts = dict.fromkeys(slots, 0)  # open sequences, by slot
        # Sequences without a request under way and the times at which they end, the earliest first.
        self._idle: OrderedDict[OpenSequence, int] = OrderedDict()
        # The errors for further requests of sequences that ended early, the latest last.
        self._forgotten: OrderedDict[SequenceId, str] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def open(self) -> int:
        """How many sequences are open."""
        return len(self._open)

    def push(self, handle: QueuedRequest, push: Callable[[QueuedRequest], int]) -> int:
        """Push a request as the next of its sequence.

        Args:
            handle: The request.
            push: Pushes it into the queue. It is called under the lock, so that requests are queued in the order in
                which they were checked.

        Returns:
            The result of `push`. The sequence continues unless the push was refused.

        Raises:
            InvalidRequest: The request names no open sequence, and does not begin one.
            SequenceEnded: The sequence has ended early.
            Overloaded: The request begins a sequence, and too many are open.
        """
        request = handle.request
        name, start, end = read_parameters(self.model, request.parameters)
        replaced = None
        with self._changed:
            known = self._open.get(name)
            sequence = self._new(name, known) if start else self._known(name, known)
            request.sequence = SequenceRequest(sequence.number, name, start, end)
            handle.follow(sequence.order, sequence)
            handle.add_done_callback(self.request_ended)
            pushed = push(handle)
            # Refused; a number below 0 is a claimed slot. The caller raises an error, and a refused handle never ends,
            # so `request_ended` is not called.
            if pushed > native.OK:
                return pushed
            if start:
                self._forgotten.pop(name, None)
                if known is not None:
                    self._end(known, "start")
                    # If the replaced sequence has open requests, `request_ended` drops its state after their end.
                    replaced = None if known.requests else known
                self._open[name] = sequence
                self._counts[sequence.order.slot] += 1
            sequence.requests += 1
            self._idle.pop(sequence, None)
            if end:
                self._end(sequence, "end")
        if replaced is not None:
            self._drop([replaced])
        return pushed

    def request_ended(self, handle: QueuedRequest) -> None:
        """Note that a request has ended. Called by the handle, on any thread."""
        sequence: OpenSequence = handle.sequence
        with self._changed:
            sequence.requests -= 1
            if sequence.requests:
                return
            if not (sequence.last or sequence.begun):
                self._end(sequence, "not_run")
            if not sequence.last:
                self._idle[sequence] = (
                    time.monotonic_ns() + self.limits.idle_timeout_ms * MILLISECOND
                )
                if len(self._idle) == 1 or self._thread is None:
                    self._watch()
                return
        self._drop([sequence])

    def lose(self, slot: int, reason: str) -> None:
        """End the sequences whose state is gone with a handler process."""
        with self._changed:
            lost = [item for item in self._open.values() if item.order.slot == slot and item.begun]
            for sequence in lost:
                self._end(sequence, "process", f"its state is gone: {reason}")
        self._drop(lost)

    def follow(self, old: "SequenceTable") -> None:
        """Make requests of the replaced version's open sequences fail with the reason.

        The two tables share the dictionary `ended`, so that the counts of the model continue.
        """
        with old._changed:
            names = list(old._open)
            self.ended = old.ended
        with self._changed:
            for name in names:
                self._forget(name, "the model was loaded anew")

    def close(self) -> None:
        """End the sequences that are still open, and the thread of the time-outs."""
        with self._changed:
            self._closed = True
            for sequence in list(self._open.values()):
                self._end(sequence, "reload", "the model is being unloaded")
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    # ---- beginning and ending; the caller holds the lock ----------------------------------------

    def _new(self, name: SequenceId, known: OpenSequence | None) -> OpenSequence:
        most = self.limits.max
        if known is None and len(self._open) >= most:
            raise Overloaded(
                f"the model {self.model} has {len(self._open)} open sequences: "
                f"{show_limit('sequences.max', most)}",
                "sequences_full",
            )
        slot = min(self._counts, key=lambda slot: (not self.is_available(slot), self._counts[slot]))
        return OpenSequence(name, next(self._numbers), slot)

    def _known(self, name: SequenceId, known: OpenSequence | None) -> OpenSequence:
        if known is not None:
            return known
        forgotten = self._forgotten.get(name)
        if forgotten is not None:
            raise SequenceEnded(forgotten)
        raise InvalidRequest(
            f"the model {self.model} has no open sequence {shown(name)}: the first request of a sequence needs "
            f"the parameter 'sequence_start'"
        )

    def _end(self, sequence: OpenSequence, ending: Ending, why: str = "") -> None:
        """Accept no further requests of a sequence. The caller, or its last request, drops the state (`_drop`)."""
        sequence.last = True
        self._idle.pop(sequence, None)
        if self._open.get(sequence.id) is sequence:
            del self._open[sequence.id]
            self._counts[sequence.order.slot] -= 1
        self.ended[ending] += 1
        if why:
            sequence.ended = self._forget(sequence.id, why)

    def _forget(self, name: SequenceId, why: str) -> str:
        """Remember why a sequence has ended early, and return the error text."""
        text = (
            f"the sequence {shown(name)} of the model {self.model} has ended: {why}; begin it anew with "
            f"'sequence_start'"
        )
        self._forgotten[name] = text
        self._forgotten.move_to_end(name)
        while len(self._forgotten) > self.limits.max:
            self._forgotten.popitem(last=False)
        return text

    def _drop(self, sequences: Sequence[OpenSequence]) -> None:
        """Free the states of sequences. The caller does not hold the lock."""
        by_slot: dict[int, list[int]] = {}
        for sequence in sequences:
            by_slot.setdefault(sequence.order.slot, []).append(sequence.number)
        for slot, numbers in by_slot.items():
            self.end_sequences(slot, numbers)

    # ---- time-outs ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Start the thread of the time-outs, or wake it because the earliest time-out has changed."""
        if self._thread is None and not self._closed:
            name = f"ksrv-sequences-{self.model}"
            thread = threading.Thread(target=self._live, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # it is tried again with the next request that ends
                log.warning("sequences of the model %s are not timed out: %s", self.model, error)
                return
            self._thread = thread
        self._changed.notify_all()

    def _live(self) -> None:
        while True:
            with self._changed:
                ended = self._take_idle()
                if not ended:
                    if self._closed:
                        return
                    first = next(iter(self._idle.values()), None)
                    wait = None if first is None else (first - time.monotonic_ns()) / 1e9
                    self._changed.wait(None if wait is None else max(wait, 0.0))
                    continue
            self._drop(ended)

    def _take_idle(self) -> list[OpenSequence]:
        """End the sequences whose time-out has passed, and return them."""
        now = time.monotonic_ns()
        ended = list(itertools.takewhile(lambda key: self._idle[key] <= now, self._idle))
        limit = show_limit("sequences.idle_timeout_ms", self.limits.idle_timeout_ms)
        for sequence in ended:
            self._end(sequence, "idle_timeout", f"no request came for it in time: {limit}")
        return ended
