"""The answers of a handler process on their way to the worker."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ksrv._native.process import tensor_descriptors
from ksrv._native.process.channel import Link
from ksrv._native.process.shared_blocks import TooLarge
from ksrv.engine.processes import messages
from ksrv.engine.processes.messages import MessageType
from ksrv.engine.processes.outbox import Outbox
from ksrv.errors import HandlerFailed, KsrvError
from ksrv.request import BatchOutputs

log = logging.getLogger("ksrv.handler")


@contextmanager
def bounded(what: str) -> Iterator[None]:
    """Tell a handler that what it has the process send is more than the worker takes.

    Raises:
        HandlerFailed: It is too large.
    """
    try:
        yield
    except TooLarge as error:
        raise HandlerFailed(
            f"{what} has {error}, the larger of the limits 'body' and 'in_flight'"
        ) from None


class Answers:
    """Sends answers, intermediate answers and failures.

    Attributes:
        outbox: Sends on it.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self.outbox = Outbox(link, waits=True)

    def send(self, kind: MessageType, batch_number: int, outputs: BatchOutputs) -> None:
        """Send an answer or an intermediate one; its tensors are gone from `outputs` afterwards.

        Args:
            kind: ANSWER or CHUNK.

        Raises:
            HandlerFailed: It is too large.
        """
        link = self._link
        with bounded("the handler's answer"):
            written, blocks = tensor_descriptors.write(outputs.tensors, link.exported)
            payload, lenient = messages.pack_answer(outputs, written)
            # Emptied before sending, because the message names the input blocks without references,
            # and an output may be a view of an input.
            outputs.tensors.clear()
            self.outbox.send(
                kind, payload, batch_number=batch_number, blocks=blocks, lenient=lenient
            )

    def fail_batch(self, batch_number: int, error: BaseException) -> None:
        """Tell the worker why a batch has no answer."""
        if isinstance(error, KsrvError):
            self.fail(error.with_traceback(None), batch_number)
            return
        # The runner's own fault, or outputs that do not fit.
        log.error("a batch failed outside of its handler", exc_info=error)
        text = f"the batch's answer cannot be sent: {type(error).__name__}"
        self.fail(HandlerFailed(text), batch_number)

    def fail(self, error: KsrvError, batch_number: int = 0) -> None:
        """Send a failure.

        Args:
            batch_number: The batch; 0 for the load.
        """
        payload, lenient = messages.dump(messages.to_message(error))
        self.outbox.send(MessageType.FAILED, payload, batch_number=batch_number, lenient=lenient)
