"""A batch that a handler process runs, as the worker keeps it."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ksrv.errors import KsrvError
from ksrv.handlers.concurrent import Done
from ksrv.request import ExecutorInputs, ExecutorOutputs, RequestHandle


@dataclass(eq=False)
class Run:
    """A batch that a process runs.

    Args:
        inputs: Returns the batch. A batch of the ring gets its Python form only if a message needs it, and this form is
            released when no call needs it, because it keeps the bodies of the requests in memory.
        done: Called once with the outcome; None if a thread waits for the outcome.
        due_ns: `time.monotonic_ns` at which the batch is given up, or None.

    Attributes:
        calls: The calls without a result, by their numbers.
        failure: The outcome if it is decided before the process answers, such as a passed deadline.
        outcome: The outcome, once the batch has ended.
        lock: Guards `owed_bytes` and `awaits_room`.
        owed_bytes: The bytes of chunks that were passed on, for which the process has not got ROOM yet.
        awaits_room: Whether `_note_room` will be called when the slow client has taken chunks.
    """

    number: int
    inputs: Callable[[], ExecutorInputs]
    done: Done | None = None
    due_ns: int | None = None
    calls: dict[int, RequestHandle] = field(default_factory=dict)
    failure: KsrvError | None = None
    outcome: ExecutorOutputs | KsrvError | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    owed_bytes: int = 0
    awaits_room: bool = False
    _caller: ExecutorInputs | None = None

    def caller(self) -> ExecutorInputs:
        """Return the Python form of the batch, for its calls and answers."""
        batch = self._caller
        if batch is None:
            batch = self._caller = self.inputs()
        return batch

    def hold(self, batch: ExecutorInputs) -> None:
        """Keep the Python form, because the dispatcher has handed the batch over and can make no other form of it."""
        self.inputs = lambda: batch
        self._caller = batch

    def rest(self) -> None:
        """Release the Python form if none of its calls is under way, because it keeps the bodies of the requests."""
        if not self.calls:
            self._caller = None

    def cancel_calls(self, numbers: Iterable[int] | None = None) -> None:
        """Cancel calls without a result, by default all. Each still gets a result: an error."""
        for number in list(self.calls) if numbers is None else numbers:
            pending = self.calls.get(number)  # None if its result is being sent
            if pending is not None:
                pending.cancel()

    def cancel_abandoned_calls(self) -> None:
        """Cancel the calls if no client waits for the batch any more. The handler gets an error for each."""
        handles = self.caller().handles if self.calls else []
        if handles and all(handle.done() for handle in handles):
            self.cancel_calls()
