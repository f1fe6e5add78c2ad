"""The bound on bytes in flight: what was announced by clients and is not answered yet."""

import threading
from types import TracebackType

from ksrv.errors import BodyTooLarge, Overloaded


class ByteBudget:
    """Bytes that requests of this process may hold together.

    Args:
        cap: The bound.
    """

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes held now."""
        return self._held

    def reserve(self, nbytes: int) -> None:
        """Take bytes out of the budget; `release` gives them back.

        Raises:
            Overloaded: The requests in flight hold too much already.
        """
        with self._lock:
            if self._held + nbytes > self.cap:
                raise Overloaded(
                    f"{nbytes} more bytes would take the requests in flight to "
                    f"{self._held + nbytes} bytes; limit 'in_flight' allows {self.cap}",
                    "bytes_in_flight",
                )
            self._held += nbytes

    def release(self, nbytes: int) -> None:
        """Give reserved bytes back."""
        with self._lock:
            self._held -= nbytes


class Reservation:
    """The bytes that one request holds; leaving the context gives them back."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._nbytes = 0

    def grow(self, nbytes: int) -> None:
        """Hold `nbytes` more.

        Raises:
            BodyTooLarge: It would be too much even alone.
            Overloaded: The budget is spent.
        """
        total = self._nbytes + nbytes
        if total > self._budget.cap:
            raise BodyTooLarge(
                f"the request holds {total} bytes; limit 'in_flight' allows {self._budget.cap} for "
                f"all requests together"
            )
        self._budget.reserve(nbytes)
        self._nbytes = total

    def close(self) -> None:
        """Give everything back; further calls do nothing."""
        self._budget.release(self._nbytes)
        self._nbytes = 0

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
