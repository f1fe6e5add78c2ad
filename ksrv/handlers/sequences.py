"""The sequences as a handler sees them, and the states that the handler keeps for them.

`ksrv.engine.sequences` opens and ends the sequences and chooses the instance. This module is beside the handler, in its
process.
"""

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, NoReturn

from ksrv.errors import SequenceEnded, quote
from ksrv.request import ExecutorInputs

ENDED_EARLY = 256
"""How many ended sequences without a state are remembered, because a batch may still bring their first request."""


class Sequence:
    """The sequence of a row, as its handler sees it: `batch.sequences[row]`.

    Rows of one request have the same sequence. A batch never has two requests of a sequence.

    Attributes:
        id: The id that the client chose.
        start: Whether this is the sequence's first request.
        end: Whether this is the sequence's last request.
        state: A dict that the handler keeps from one request of the sequence to the next; empty at the start. Fill it
            in place, because another object in its stead would be lost with the batch.
    """

    __slots__ = ("_state", "end", "id", "start")

    def __init__(
        self,
        id: int | str = "",
        start: bool = True,
        end: bool = True,
        state: dict[str, Any] | None = None,
    ) -> None:
        self.id = id
        self.start = start
        self.end = end
        self._state = {} if state is None else state

    @property
    def state(self) -> dict[str, Any]:
        return self._state

    @state.setter
    def state(self, value: object) -> NoReturn:
        raise AttributeError(
            "sequence.state cannot be replaced, because ksrv keeps the dictionary that it is; set what is in it: "
            "sequence.state['total'] = ..."
        )


class SequenceStates:
    """The states of the sequences that a handler object serves.

    A state is made for the first request of a sequence, and released with the last request. If the client
    of the first request leaves while its batch begins, the sequence may end before its state is made: then
    no state is kept.
    """

    def __init__(self) -> None:
        self._states: dict[int, dict[str, Any]] = {}  # by the sequence's number
        self._over: deque[int] = deque(maxlen=ENDED_EARLY)  # sequences that ended without a state
        self._lock = threading.Lock()

    def of_batch(self, inputs: ExecutorInputs, failures: dict[int, Any]) -> list[Sequence]:
        """Return the sequence of each row.

        Args:
            inputs: The batch. Requests without a sequence, as in a warm-up, get separate sequences.
            failures: Gets the error of each request whose state is missing, by the request's index.
        """
        found: list[Sequence] = []
        for index, request in enumerate(inputs.requests):
            part = request.sequence
            sequence = Sequence()
            if part is not None:
                state = {} if part.start else self._states.get(part.number)
                if state is None:
                    failures[index] = SequenceEnded(
                        f"the state of the sequence {quote(part.id)} is gone; begin it anew with 'sequence_start'"
                    )
                    state = {}
                else:
                    self._keep(part.number, None if part.end else state)
                sequence = Sequence(part.id, part.start, part.end, state)
            found += [sequence] * request.rows
        return found

    def end(self, numbers: Iterable[int]) -> None:
        """Drop the states of sequences that have ended."""
        with self._lock:
            for number in numbers:
                if self._states.pop(number, None) is None:
                    self._over.append(number)

    def _keep(self, number: int, state: dict[str, Any] | None) -> None:
        with self._lock:
            if state is None:
                self._states.pop(number, None)
            elif number in self._states or number not in self._over:
                self._states[number] = state

    def __len__(self) -> int:
        return len(self._states)
