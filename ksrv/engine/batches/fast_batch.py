"""A batch of plain requests, which the door queued without Python: see native/lane.

It stands in for an `Assembly`: its arrays come straight from the received blocks, nothing about it
can fail, and nobody looks at the requests themselves unless the handler does.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from ksrv._native.server import model_endpoint as lane
from ksrv.engine.ticket import QueuedTicket
from ksrv.request import BatchInputs, BatchRequest


class PlainBatch(BatchInputs):
    """The requests of one batch, all of them plain; also what an executor takes.

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

    __slots__ = ("_lease", "_requests", "ran_ns", "spent_ns", "tickets", "timings")

    attempts = 0
    explain = False
    emit = None

    def __init__(self, tickets: list[QueuedTicket], lease: Callable[[int], Any]) -> None:
        self.tickets = tickets
        self._lease = lease
        self._requests: PlainRequests | None = None
        self.rows = 0
        self.spent_ns = 0
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
        if len(self.tickets) == 1:
            self.tensors, self.rows = lane.inputs(self.tickets, self._lease)
            return self
        began = time.monotonic_ns()
        self.tensors, self.rows = lane.inputs(self.tickets, self._lease)
        self.spent_ns = time.monotonic_ns() - began
        return self

    @property
    def requests(self) -> "PlainRequests":  # type: ignore[override]
        """See `BatchInputs`; made when somebody looks."""
        if self._requests is None:
            self._requests = PlainRequests(self.tickets)
        return self._requests


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
