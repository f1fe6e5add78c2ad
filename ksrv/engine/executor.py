"""The interface of executors, whether the handler runs here or in a separate process.

An executor is one instance of one model version: it runs one batch at a time. The engine knows only
this protocol; batches go in as arrays over blocks and come back the same way, so that a third kind
of executor needs no change elsewhere.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ksrv._native.process.batch_ring import WorkerRing
from ksrv.errors import HandlerFailed, KsrvError
from ksrv.model.spec import ModelSpec
from ksrv.request import ExecutorInputs, ExecutorOutputs


class ExecutorDied(HandlerFailed):
    """The handler's process ended, by itself or by a signal; the batch it ran may be tried again.

    The text names the exit status or the signal, never a process id or a path.

    Args:
        killed: Whether a signal ended it that is sent from outside, and that ksrv has not sent.
    """

    def __init__(self, message: str, *, killed: bool = False) -> None:
        super().__init__(message)
        self.killed = killed


class ExecutorAbsent(ExecutorDied):
    """No process was there to be given the batch, which is tried again as if for the first time."""


class Executor(Protocol):
    """One instance of a model: the handler and the process that it runs in.

    Attributes:
        any_thread: Whether `run` may be called from any thread, one at a time.
        keeps_deadlines: Whether `run` returns at its deadline, whatever the handler does.
        ring: The memory for batches that reach the handler's process without Python, or None. A process that
            replaces another has a new ring.
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

        After a death it may be called again, and waits for the pause that the earlier deaths ask for. On a living
        executor it changes nothing.

        Returns:
            The model's description, completed by what the model file says.

        Raises:
            KsrvError: The handler's own error, or that the start took too long.
        """

    def lease(self, nbytes: int) -> Any:
        """Return a writable block of at least `nbytes` bytes for assembling a batch.

        Tensors in such a block reach the handler without another copy. The block may be
        leased again as soon as nothing refers to it.
        """

    def run(self, batch: ExecutorInputs, deadline_ns: int | None) -> ExecutorOutputs:
        """Run one batch.

        Args:
            deadline_ns: `time.monotonic_ns` at which the wait ends; None for never, and always
                where `keeps_deadlines` is false.

        Raises:
            ExecutorDied: The process went; `start` replaces it.
            DeadlineExceeded: The deadline passed. A process is then killed: `alive` is false and
                `start` replaces it.
            KsrvError: The handler failed the whole batch.
        """

    def begin(
        self,
        batch: ExecutorInputs,
        done: Callable[[ExecutorOutputs | KsrvError], None],
        deadline_ns: int | None,
    ) -> Callable[[], None]:
        """Run a batch beside others, where the handler has coroutines; return a function that cancels it.

        Args:
            done: Called once with its answer, on any thread.
            deadline_ns: See `run`.
        """

    def end_sequences(self, numbers: Sequence[int]) -> None:
        """Drop the handler's state of sequences whose last request has ended; this never waits."""

    def on_death(self, callback: Callable[[str], None]) -> None:
        """Have `callback` called with the reason when the process ends, between batches as well.

        It is called from another thread, at most once for each `start`, and never after `close`
        has begun. An executor without a process never calls it.
        """

    def close(self) -> None:
        """Let the handler clean up and free everything; further calls do nothing."""
