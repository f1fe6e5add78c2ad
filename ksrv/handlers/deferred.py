"""Handlers that answer their batches later, with neither coroutines nor a thread.

Such a handler begins a batch and calls `ended` when it has ended, on the thread that learns of it first. So many
batches are under way at a time, as with coroutines, without the changes of thread that an event loop costs.
"""

from collections.abc import Callable
from typing import NoReturn, TypeAlias

from ksrv.handlers.base import BaseHandler
from ksrv.handlers.batch import Batch
from ksrv.handlers.context import Context
from ksrv.request import ExecutorInputs, Tensor

Result: TypeAlias = list[Tensor] | BaseException
"""The outputs, which are not compared with the declared outputs; or the error."""
Ended: TypeAlias = Callable[[Result], None]


class DeferredHandler(BaseHandler):
    """A handler that answers its batches later. Each batch is one request, and the model is not warmed up."""

    def begin(self, inputs: ExecutorInputs, ended: Ended) -> Callable[[], None]:
        """Begin a batch.

        Args:
            ended: To be called once with the result, on any thread.

        Returns:
            A function that gives the batch up; any thread may call it.

        Raises:
            Exception: The batch has failed, and `ended` is not called.
        """
        raise NotImplementedError

    def handle(self, batch: Batch, context: Context) -> NoReturn:
        """See `BaseHandler.handle`; batches are begun, and never run to their end here."""
        raise NotImplementedError
