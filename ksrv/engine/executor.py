"""The interface of executors, which run a handler in the worker or in a handler process.

An executor belongs to one instance of one model version, and runs one batch at a time. The engine knows only this
interface: batches and answers are arrays over blocks, whatever the kind of executor.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ksrv._native.process.batch_ring import WorkerRing
from ksrv.errors import HandlerFailed, KsrvError
from ksrv.model.spec import ModelSpec
from ksrv.request import ExecutorInputs, ExecutorOutputs


class ExecutorDied(HandlerFailed):
    """The handler process has ended, by itself or by a signal. Its batch may be run again.

    The text has the exit status or the signal, never a process id or a path.

    Args:
        killed: Whether a signal from outside of ksrv ended the process.
    """

    def __init__(self, message: str, *, killed: bool = False) -> None:
        super().__init__(message)
        self.killed = killed


class ExecutorAbsent(ExecutorDied):
    """The handler process had ended before it got the batch. Running the batch again counts as its first run."""


class Executor(Protocol):
    """One instance of a model: the handler and the process that it runs in.

    Attributes:
        any_thread: Whether `run` may be called from any thread, one at a time.
        keeps_deadlines: Whether `run` returns at its deadline even if the handler hangs.
        ring: The shared memory for batches that reach a handler process without Python, or None. A new process has a
            new ring.
    """

    any_thread: bool
    keeps_deadlines: bool

    @property
    def ring(self) -> WorkerRing | None:
        """See above."""

    @property
    def alive(self) -> bool:
        """Whether `run` can be expected to succeed: started, not dead, not closed."""

    def start(self) -> ModelSpec:
        """Load the handler.

        After the death of its process it may be called again, and first waits for a pause that grows with each death.
        On a living executor it has no effect.

        Returns:
            The model's description, completed from the model file.

        Raises:
            KsrvError: The handler failed, or the start took too long.
        """

    def lease(self, nbytes: int) -> Any:
        """Return a writable block of at least `nbytes` bytes for assembling a batch.

        Tensors in such a block reach the handler without another copy. The block may be
        leased again as soon as nothing refers to it.
        """

    def run(self, batch: ExecutorInputs, deadline_ns: int | None) -> ExecutorOutputs:
        """Run one batch.

        Args:
            deadline_ns: `time.monotonic_ns` at which the wait ends, or None for no deadline. Ignored if
                `keeps_deadlines` is false.

        Raises:
            ExecutorDied: The process has ended; `start` replaces it.
            DeadlineExceeded: The deadline passed. A process is then killed: `alive` is false, and
                `start` replaces it.
            KsrvError: The handler failed the whole batch.
        """

    def begin(
        self,
        batch: ExecutorInputs,
        done: Callable[[ExecutorOutputs | KsrvError], None],
        deadline_ns: int | None,
    ) -> Callable[[], None]:
        """Run a batch while others run, if the handler has coroutines; return a function that cancels it.

        Args:
            done: Called once with the answer, on any thread.
            deadline_ns: See `run`.
        """

    def end_sequences(self, numbers: Sequence[int]) -> None:
        """Drop the handler's state of sequences that have ended. Never waits."""

    def on_death(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the reason when the process ends, even between batches.

        Another thread calls it, at most once for each `start`, and never after `close` has begun. An executor without
        a process never calls it.
        """

    def close(self) -> None:
        """Let the handler clean up, and free everything. Further calls have no effect."""
