"""The bytes that a request or an answer takes out of the memory budget, and the texts of refusals.

The budget itself is `ksrv._native.memory.memory_budget`. HTTP, gRPC and the queues of a process share one budget. Bytes
are charged when they arrive, not when their length is announced.
"""

from ksrv._native.memory.memory_budget import PROCESS, SMALL_REQUEST, MemoryBudget
from ksrv.engine.available_memory import bytes_in_flight
from ksrv.errors import BodyTooLarge, Overloaded
from ksrv.limits import Limits, show_limit


def process_budget(limits: Limits) -> MemoryBudget:
    """Return the budget of this process, bounded as the limits say.

    Args:
        limits: The limits, with `in_flight` if it is set.
    """
    PROCESS.bound = bytes_in_flight(limits)
    return PROCESS


def no_room(budget: MemoryBudget, nbytes: int) -> Overloaded:
    """Return the refusal of bytes that a budget has no room for.

    Args:
        nbytes: How many bytes more there would be.
    """
    return Overloaded(
        f"{nbytes} more bytes would take the requests in flight to {budget.held + nbytes} bytes, "
        f"above the {show_limit('in_flight', budget.bound)}",
        "bytes_in_flight",
    )


class Reservation:
    """The bytes of one request; leaving the context gives them back.

    Args:
        budget: The budget that they are charged to.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._nbytes = 0
        self._expected = 0

    def expect(self, nbytes: int) -> None:
        """Note the announced length of the request. This charges nothing.

        Raises:
            BodyTooLarge: It would be too much even alone.
        """
        most = self._budget.most(small=nbytes <= SMALL_REQUEST)
        if nbytes > most:
            raise BodyTooLarge(
                f"the request holds {nbytes} bytes, above the {most} bytes for one of this size "
                f"under the {show_limit('in_flight', self._budget.bound)}"
            )
        self._expected = max(self._expected, nbytes)

    def grow(self, nbytes: int) -> None:
        """Charge `nbytes` more to the budget.

        Raises:
            BodyTooLarge: It would be too much even alone.
            Overloaded: The budget is spent.
        """
        self.expect(self._nbytes + nbytes)
        if not self._budget.reserve(nbytes, small=self._expected <= SMALL_REQUEST):
            raise no_room(self._budget, nbytes)
        self._nbytes += nbytes

    def adopt(self, nbytes: int) -> None:
        """Take over bytes that the native server has charged to the process's budget already."""
        self._nbytes += nbytes

    def close(self) -> None:
        """Give everything back; further calls do nothing."""
        self._budget.give_back(self._nbytes)
        self._nbytes = 0

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
