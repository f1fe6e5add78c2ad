"""A batch of plain requests, which the door queued without Python: see native/lane.

It stands in for an `Assembly`: its arrays come straight from the received blocks, nothing about it
can fail, and nobody looks at the requests themselves unless the handler does.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from ksrv._native import lane
from ksrv.engine.ticket import QueuedTicket
from ksrv.request import BatchInputs, BatchRequest, Tensor


class PlainBatch:
    """The requests of one batch, all of them plain.

    Args:
        tickets: The requests, in row order.
        lease: Returns a writable block of at least so many bytes.

    Attributes:
        tickets: As given, without those that ended before the batch started.
        rows: How many rows the batch has; 0 until `inputs` was called.
        spent_ns: How long joining the requests took; 0 for one alone, which is seen where it lies.
        attempts: Always 0: what is run again is assembled in the general way.
        ran_ns: How long the executor took.
        timings: Nanoseconds by stage.
    """

    __slots__ = ("_lease", "attempts", "ran_ns", "rows", "spent_ns", "tickets", "timings")

    def __init__(self, tickets: list[QueuedTicket], lease: Callable[[int], Any]) -> None:
        self.tickets = tickets
        self._lease = lease
        self.rows = 0
        self.spent_ns = 0
        self.attempts = 0
        self.ran_ns = 0
        self.timings: dict[str, int] = {}

    def keep(self, alive: list[QueuedTicket]) -> None:
        """Drop the requests that ended before the batch started.

        Args:
            alive: Those that remain, in order.
        """
        self.tickets = alive

    def inputs(self) -> BatchInputs:
        """Return the batch as an executor takes it."""
        joined = len(self.tickets) > 1
        began = time.monotonic_ns() if joined else 0
        tensors = {}
        rows = 0
        for name, datatype, shape, array in lane.inputs(self.tickets, self._lease):
            tensors[name] = Tensor(name, datatype, shape, array)
            rows = shape[0]
        self.rows = rows
        if joined:
            self.spent_ns = time.monotonic_ns() - began
        return BatchInputs(tensors, rows, PlainRequests(self.tickets))


class PlainRequests(Sequence[BatchRequest]):
    """`BatchInputs.requests` of plain requests, made when somebody looks.

    Args:
        tickets: The requests, in row order.
    """

    __slots__ = ("_made", "_tickets")

    def __init__(self, tickets: list[QueuedTicket]) -> None:
        self._tickets = tickets
        self._made: list[BatchRequest] | None = None

    def _all(self) -> list[BatchRequest]:
        if self._made is None:
            self._made = []
            row = 0
            for ticket in self._tickets:
                end = row + ticket.rows
                self._made.append(BatchRequest.of(ticket.request, slice(row, end)))
                row = end
        return self._made

    def __len__(self) -> int:
        return len(self._tickets)

    @overload
    def __getitem__(self, place: int) -> BatchRequest: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[BatchRequest]: ...
    def __getitem__(self, place: int | slice) -> BatchRequest | Sequence[BatchRequest]:
        return self._all()[place]

    def __iter__(self) -> Iterator[BatchRequest]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(other)
