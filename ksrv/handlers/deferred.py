"""Handlers that answer their batches later: they have neither coroutines nor a thread of their own.

Such a handler begins a batch and says so when it has ended, on whatever thread knows that first. So many
batches are under way at a time, as with coroutines, without the changes of thread that an event loop costs.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeAlias

from ksrv.handlers.base import BaseHandler
from ksrv.handlers.batch import Batch
from ksrv.handlers.context import Context
from ksrv.request import BatchInputs

Result: TypeAlias = Mapping[str, Any] | BaseException
"""The outputs by name, or why there are none."""
Ended: TypeAlias = Callable[[Result], None]


class DeferredHandler(BaseHandler):
    """A handler that answers its batches later."""

    def begin(self, inputs: BatchInputs, ended: Ended) -> Callable[[], None]:
        """Begin a batch.

        Args:
            ended: To be called once with the result, on any thread.

        Returns:
            A function that gives the batch up; any thread may call it.

        Raises:
            Exception: The batch has failed, and `ended` is not called.
        """
        raise NotImplementedError

    def handle(self, batch: Batch, context: Context) -> Any:
        """Run one batch to its end, for a warm-up or a test."""
        result: Future[Result] = Future()
        running: Any = context
        self.begin(running.running_inputs(), result.set_result)
        found = result.result()
        if isinstance(found, BaseException):
            raise found
        return found
