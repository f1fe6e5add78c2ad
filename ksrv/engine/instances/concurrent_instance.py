"""An instance whose handler has coroutines: it takes batches while others are under way."""

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from ksrv._native.queue.stats import Stats
from ksrv._native.server.batch_runner import APART
from ksrv.engine.batches.batch import RunnableBatch
from ksrv.engine.instances.host import InstanceHost
from ksrv.errors import KsrvError
from ksrv.request import BatchInputs, BatchOutputs

MOST_JOINED = 1024


@runtime_checkable
class ConcurrentExecutor(Protocol):
    """An executor that runs batches beside each other."""

    def begin(
        self, batch: BatchInputs, done: Callable[[BatchOutputs | KsrvError], None]
    ) -> Callable[[], None]:
        """Run a batch; return a function that cancels it.

        Args:
            batch: The batch.
            done: Called once with its answer, on any thread.
        """


class BatchAnswerer(Protocol):
    """What an instance does with batches, however they are run; see `ksrv.engine.instances.instance.Instance`."""

    stats: Stats

    @property
    def slot(self) -> int:
        """The instance's slot of the queue."""

    def _batch_of(self, handles: list[Any]) -> RunnableBatch | None:
        """Return the batch of some requests; None if none of them could be added."""

    def _answer_failed(self, batch: RunnableBatch, failure: KsrvError, later: bool) -> None:
        """Answer the requests of a batch with an error."""

    def _fail(self, handles: list[Any], error: BaseException) -> None:
        """Answer the requests of a batch that are still open."""


class ConcurrentInstance:
    """The work of an instance's thread.

    Args:
        instance: The instance.
        host: The model version.
        executor: The executor of the handler.
        most: Batches that may be under way at a time.
    """

    def __init__(
        self, instance: BatchAnswerer, host: InstanceHost, executor: ConcurrentExecutor, most: int
    ) -> None:
        self._instance = instance
        self._host = host
        self._executor = executor
        self._most = most
        self._room = threading.Semaphore(most)

    def serve(self) -> None:
        """Take batches until the model's queue is closed and empty, and wait for those under way."""
        host, instance = self._host, self._instance
        queue = host.queue
        rows = host.spec.max_batch_size
        joined = MOST_JOINED if rows else 1
        while True:
            self._room.acquire()
            taken: Any = queue.take(instance.slot, joined, rows, host.delay_ns)
            batch: Any = None
            if taken is None:
                if not host.wait_apart():
                    break
            elif taken is True:
                batch = host.take_ready()
            elif taken and taken[0].batch_key >= APART:
                host.decode_apart(taken)
            elif taken:
                batch = instance._batch_of(taken)
            if batch is None or not self._begin(batch):
                self._room.release()
            del taken, batch
        for _ in range(self._most - 1):
            self._room.acquire()

    def _begin(self, batch: RunnableBatch) -> bool:
        """Start a batch; False where none of its requests still waits, or it cannot be started."""
        handles = batch.handles
        queue = self._host.queue
        try:
            alive = queue.start(handles)
            if len(alive) != len(handles):
                batch.keep(alive)
            if not alive:
                return False
            began = time.monotonic_ns()

            def done(outputs: BatchOutputs | KsrvError) -> None:
                batch.ran_ns = time.monotonic_ns() - began
                self._end(batch, outputs)

            cancel = self._executor.begin(batch.inputs(), done)
        except BaseException as error:  # noqa: BLE001  it is the batch's failure, not the thread's
            self._instance._fail(handles, error)
            return False
        for handle in alive:
            handle.add_done_callback(lambda _: _cancel_ended(alive, cancel))
        return True

    def _end(self, batch: RunnableBatch, outputs: BatchOutputs | KsrvError) -> None:
        instance = self._instance
        try:
            if isinstance(outputs, KsrvError):
                instance._answer_failed(batch, outputs, later=False)
            else:
                batch.answer(outputs, self._host.queue, instance.stats, later=False)
        except BaseException as error:  # noqa: BLE001  it is the batch's failure, not the loop's
            instance._fail(batch.handles, error)
        finally:
            self._room.release()


def _cancel_ended(handles: list[Any], cancel: Callable[[], None]) -> None:
    if all(handle.done() for handle in handles):
        cancel()
