"""Runs the batches of an instance whose handler has coroutines: several batches run at the same time.

The instance's thread only takes batches from the queue and gives them to the executor. The executor calls `done` on
another thread when a batch has ended; that thread sends the answers.
"""

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from ksrv._native.server.batch_spans import BatchSpans
from ksrv._native.server.instance_runner import FIRST_UNSHARED_KEY, InstanceRunner
from ksrv._native.server.request_batch import RequestBatch
from ksrv.engine.executor import Executor
from ksrv.engine.instances.host import InstanceHost
from ksrv.engine.instances.restarts import ExecutorRestarts
from ksrv.errors import KsrvError
from ksrv.request import ExecutorOutputs

MOST_JOINED = 1024
"""The most requests in a batch."""


@dataclass(eq=False)
class ConcurrentInstance:
    """The loop of an instance's thread, if the handler has coroutines.

    Args:
        instance: The instance. Its helpers make batches and answer failures.
        most: The most batches that run at the same time.
    """

    instance: InstanceRunner
    host: InstanceHost
    executor: Executor
    restarts: ExecutorRestarts
    most: int

    def __post_init__(self) -> None:
        self._room = threading.Semaphore(self.most)  # each running batch holds it once
        # After a process died, its batches run again one at a time. So a batch that killed the process
        # cannot fail the others a second time.
        self._again = threading.Semaphore(1)

    def serve(self) -> None:
        """Take batches until the model's queue is closed and empty, then wait until no batch runs."""
        host, instance = self.host, self.instance
        queue = host.queue
        rows = host.spec.max_batch_size
        joined = MOST_JOINED if rows else 1
        while True:
            self._room.acquire()
            if self.restarts.due and not self._restart():
                break
            # Handles; True: a batch is ready to be run; None: the queue is closed and empty. An empty list: the thread
            # was woken without work, to restart the executor.
            taken: Any = queue.take(instance.slot, joined, rows, host.delay_ns)
            batch: Any = None
            if taken is None:
                # Unless it is false, the decode thread may have made a batch ready since.
                if not host.wait_decoded():
                    break
            elif taken is True:
                batch = host.take_ready()
            elif taken and taken[0].batch_key >= FIRST_UNSHARED_KEY:
                host.decode_slow(taken)
            elif taken:
                batch = instance._batch_of(taken)
            if batch is None or not self._begin(batch):
                self._room.release()
            del taken, batch
        for _ in range(self.most - 1):  # this thread has acquired it once above
            self._room.acquire()

    def _restart(self) -> bool:
        """Start the executor again once the batches of the dead process have ended.

        The caller has acquired `_room` once, so it is acquired `most - 1` times here.
        """
        for _ in range(self.most - 1):
            self._room.acquire()
        restarted = self.restarts.restart()
        for _ in range(self.most - 1):
            self._room.release()
        return restarted

    def _begin(self, batch: RequestBatch) -> bool:
        """Start a batch. Return False if all of its requests have ended, or it cannot be started."""
        handles = batch.handles
        queue, instance = self.host.queue, self.instance
        spans: BatchSpans | None = None
        if batch.attempts:
            self._again.acquire()
        try:
            alive = queue.start(handles)
            if len(alive) != len(handles):
                batch.keep(alive)
            if not alive:
                return self._not_begun(batch)
            spans = None if instance.tracing is None else instance.tracing.spans_of(batch)
            began = time.monotonic_ns()

            def done(outputs: ExecutorOutputs | KsrvError) -> None:
                batch.ran_ns = time.monotonic_ns() - began
                self._end(batch, outputs)
                _end_spans(spans, outputs)

            inputs = batch.inputs()
            with nullcontext() if spans is None else spans:
                cancel = self.executor.begin(inputs, done, instance._deadline(alive, began))
        except BaseException as error:  # noqa: BLE001  it is the batch's failure, not the thread's
            self._fail(batch, error)
            _end_spans(spans, error)
            return self._not_begun(batch)
        for handle in alive:
            handle.add_done_callback(lambda _: _cancel_ended(alive, cancel))
        return True

    def _not_begun(self, batch: RequestBatch) -> bool:
        if batch.attempts:
            self._again.release()
        return False

    def _end(self, batch: RequestBatch, outputs: ExecutorOutputs | KsrvError) -> None:
        instance = self.instance
        try:
            if isinstance(outputs, KsrvError):
                self._fail(batch, outputs)
            else:
                batch.answer(outputs, self.host.queue, instance.stats, later=False)
        except BaseException as error:  # noqa: BLE001  it is the batch's failure, not the loop's
            instance._fail(batch.handles, error)
        finally:
            if batch.attempts:
                self._again.release()
            self._room.release()

    def _fail(self, batch: RequestBatch, error: BaseException) -> None:
        """Answer the requests of a batch with an error, or queue them again."""
        failure = self.instance._failure_of(batch, error)
        if failure is not None:
            self.instance._answer_failed(batch, failure, later=False)


def _end_spans(spans: BatchSpans | None, result: ExecutorOutputs | BaseException) -> None:
    if spans is not None:
        spans.finish(result)
        spans.end()


def _cancel_ended(handles: list[Any], cancel: Callable[[], None]) -> None:
    if all(handle.done() for handle in handles):
        cancel()
