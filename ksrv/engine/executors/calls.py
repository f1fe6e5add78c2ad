"""Calls to other models from a handler in a process of its own: CALL and RESULT at the worker's end.

The process's end is `ksrv.engine.executors.child.calls`. A call is submitted when it comes, and its result is sent as
soon as it is there, by the thread that ended the call. So several calls are under way at a time, and each costs one
message in either direction: every CALL has one RESULT, also where it was given up. The process answers a batch
once it has the results of the batch's calls, so that none of them is made or ended behind the answer. It does not wait
until the worker has read which of them it gave up, and the answer in the ring may be seen before that message.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from ksrv._native.ipc import tensor_descriptors
from ksrv._native.ipc.batch_ring import FIRST_BATCH_NUMBER
from ksrv._native.ipc.channel import ChannelClosed, ChannelError, Frame, Link
from ksrv.engine.executors import messages
from ksrv.engine.executors.messages import MessageType, NumbersMessage
from ksrv.engine.executors.outbox import Outbox
from ksrv.errors import HandlerFailed, KsrvError, Overloaded
from ksrv.handlers.models import Submit
from ksrv.request import BatchInputs, BatchOutputs, RequestHandle

log = logging.getLogger("ksrv.engine")

MOST_CALLS = 1024
"""Calls of one batch that are under way."""


def is_outdated(frame: Frame, batch_number: int) -> bool:
    """Tell whether a message gives up calls of a batch of the ring that was answered before another one.

    Args:
        frame: The message.
        batch_number: The other one.
    """
    of_ring = frame.batch_number >= FIRST_BATCH_NUMBER
    return frame.kind == MessageType.CANCEL_CALL and of_ring and frame.batch_number != batch_number


class BatchCalls:
    """The calls of one batch that a handler process runs.

    Args:
        submit: Submits requests to other models.
        batch: Gives the batch when it makes a call; it is held while calls of it are under way.
        batch_number: Its number.
        link: The process's link.
        outbox: Sends on it.
    """

    def __init__(
        self,
        submit: Submit,
        batch: Callable[[], BatchInputs],
        batch_number: int,
        link: Link,
        outbox: Outbox,
    ) -> None:
        self._submit = submit
        self._make_batch = batch
        self._batch: BatchInputs | None = None
        self._batch_number = batch_number
        self._link = link
        self._outbox = outbox
        self._pending: dict[int, RequestHandle] = {}

    def __bool__(self) -> bool:
        """Tell whether calls are under way."""
        return bool(self._pending)

    def close(self) -> None:
        """Give up the calls that are under way."""
        pending, self._pending = self._pending, {}
        self._batch = None
        for one in pending.values():
            one.cancel()

    def _caller(self) -> BatchInputs:
        batch = self._batch
        if batch is None:
            batch = self._batch = self._make_batch()
        return batch

    def _rest(self) -> None:
        """Let go of the batch, which holds its requests' bodies, where no call is under way."""
        if not self._pending:
            self._batch = None

    def cancel_abandoned(self) -> None:
        """Give up the calls once no client waits for the batch; the handler is told of each."""
        handles = self._caller().handles if self._pending else []
        if handles and all(handle.done() for handle in handles):
            for one in list(self._pending.values()):
                one.cancel()

    def take(self, frame: Frame) -> None:
        """Take a CALL or CANCEL_CALL message.

        Args:
            frame: The message.

        Raises:
            ChannelError: It does not add up.
        """
        if frame.kind == MessageType.CANCEL_CALL:
            for number in messages.load(NumbersMessage, frame.payload, frame.lenient).numbers:
                given_up = self._pending.get(number)  # None where its result is on the way
                if given_up is not None:
                    given_up.cancel()
            return
        number, request = messages.unpack_call(frame, self._link.imported)
        if number in self._pending:
            raise ChannelError(f"it made call {number} twice")
        try:
            if len(self._pending) >= MOST_CALLS:
                raise Overloaded(f"a batch has {MOST_CALLS} calls under way, which is the most")
            pending = self._submit(request, self._caller())
        except KsrvError as error:
            self._rest()
            self._send_result(number, BatchOutputs([], {0: error}))
            return
        self._pending[number] = pending
        pending.add_done_callback(lambda _: self._end(number))

    def _end(self, number: int) -> None:
        pending = self._pending.pop(number, None)
        if pending is None:
            return  # the call was given up, or the batch is over
        self._rest()
        try:
            outputs = BatchOutputs(list(pending.wait().outputs))
        except KsrvError as error:
            outputs = BatchOutputs([], {0: error})
        except BaseException as error:  # the thread is the called model's
            log.error("the result of a call between models is lost", exc_info=error)
            outputs = BatchOutputs([], {0: HandlerFailed("the result of the call is lost")})
        self._send_result(number, outputs)

    def _send_result(self, number: int, outputs: BatchOutputs) -> None:
        exported = self._link.exported
        with suppress(ChannelClosed):  # whoever waits for the batch learns of it
            try:
                written, blocks = tensor_descriptors.write(outputs.tensors, exported)
                payload, lenient = messages.pack_answer(outputs, written, number)
            except (MemoryError, HandlerFailed) as error:
                told = Overloaded(str(error), "memory") if isinstance(error, MemoryError) else error
                failed = BatchOutputs([], {0: told})
                written, blocks = tensor_descriptors.write([], exported)
                payload, lenient = messages.pack_answer(failed, written, number)
            self._outbox.send(
                MessageType.RESULT,
                payload,
                batch_number=self._batch_number,
                blocks=blocks,
                lenient=lenient,
            )


class RingCalls:
    """The calls of the batches that a process runs out of its ring, one after the other.

    Args:
        submit: Submits requests to other models.
        link: The process's link.
        outbox: Sends on it.
        lock: Held while the link is used, and while the process is replaced.
        confused: Ends a process that sends what does not add up.

    Attributes:
        kinds: The messages that are about calls.
    """

    kinds = (MessageType.CALL, MessageType.CANCEL_CALL)

    def __init__(
        self,
        submit: Submit,
        link: Link,
        outbox: Outbox,
        lock: threading.Lock,
        confused: Callable[[ChannelError], object],
    ) -> None:
        self._submit = submit
        self._link = link
        self._outbox = outbox
        self._lock = lock
        self._confused = confused
        self._batch_number = 0
        self._calls: BatchCalls | None = None

    @property
    def under_way(self) -> bool:
        """Whether calls are under way, or their results wait for room in the socket."""
        return bool(self._calls) or self._outbox.waiting

    def take(self, batch_number: int, batch: Callable[[], BatchInputs]) -> bool:
        """Take a message about calls, if one has come, and look after the calls that are under way.

        Args:
            batch_number: The batch that runs.
            batch: Makes what is known of it.

        Returns:
            Whether the batch may go on; False where its process has ended.
        """
        try:
            with self._lock:
                self._take(self.of(batch_number, batch))
        except ChannelClosed:
            return False
        except ChannelError as error:
            self._confused(error)
            return False
        except Exception as error:
            log.error("a call between models cannot be made", exc_info=error)
            self._confused(ChannelError("a call of it could not be made"))
            return False
        return True

    def _take(self, calls: BatchCalls) -> None:
        number = self._batch_number
        try:
            frame = self._link.receive(time.monotonic_ns())
        except TimeoutError:
            self._outbox.flush()
            calls.cancel_abandoned()
            return
        if is_outdated(frame, number):
            return
        if frame.batch_number != number or frame.kind not in self.kinds:
            raise ChannelError(f"it speaks of batch {frame.batch_number}, and runs {number}")
        calls.take(frame)

    def of(self, batch_number: int, batch: Callable[[], BatchInputs]) -> BatchCalls:
        """Return the calls of a batch.

        Args:
            batch_number: The batch, which runs.
            batch: Makes what is known of it.
        """
        if self._calls is None or self._batch_number != batch_number:
            self.close()
            self._batch_number = batch_number
            self._calls = BatchCalls(self._submit, batch, batch_number, self._link, self._outbox)
        return self._calls

    def close(self) -> None:
        """Give up the calls of the batch that ran last, and keep nothing of it."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.close()
