"""Calls to other models from a handler in a process of its own: CALL and RESULT at the worker's end.

The process's end is `ksrv.engine.processes.child.calls`. A call is submitted when it comes, and its result is sent as
soon as it is there, by the thread that ended the call. So several calls are under way at a time, and each costs one
message in either direction: every CALL has one RESULT, also where it was given up. The process answers a batch
once it has the results of the batch's calls, so that none of them is made or ended behind the answer. It does not wait
until the worker has read which of them it gave up, and the answer in the ring may be seen before that message.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ksrv._native.process import plain_tensors, tensor_descriptors
from ksrv._native.process.batch_ring import FIRST_BATCH_NUMBER
from ksrv._native.process.channel import ChannelClosed, ChannelError, Frame, Link
from ksrv.engine.processes import messages
from ksrv.engine.processes.messages import MessageType, NumbersMessage
from ksrv.engine.processes.outbox import Outbox
from ksrv.errors import HandlerFailed, KsrvError, Overloaded
from ksrv.handlers.models import Submit
from ksrv.request import BatchInputs, BatchOutputs, RequestHandle, Tensor

log = logging.getLogger("ksrv.engine")

MOST_CALLS = 1024
"""Calls of one process that are under way, or whose results it has not taken."""

LOST = "the result of the call is lost"


def is_outdated(frame: Frame, batch_number: int) -> bool:
    """Tell whether a message gives up calls of a batch of the ring that was answered before another one."""
    of_ring = frame.batch_number >= FIRST_BATCH_NUMBER
    return frame.kind == MessageType.CANCEL_CALL and of_ring and frame.batch_number != batch_number


class ProcessCalls:
    """How the calls of one process are submitted, and how their results come back to it.

    Attributes:
        submit: As given.
        link: As given.
        outbox: As given.
        under_way: The numbers of the calls that are under way, in whichever batch.
    """

    def __init__(self, submit: Submit, link: Link, outbox: Outbox) -> None:
        self.submit = submit
        self.link = link
        self.outbox = outbox
        self.under_way: set[int] = set()

    def check(self, number: int) -> None:
        """Check that a process may make a call.

        The process counts its calls itself, and tells its handler where they are too many.

        Raises:
            ChannelError: It may not.
        """
        if number in self.under_way:
            raise ChannelError(f"it made call {number} twice")
        not_taken = self.outbox.waiting and self.outbox.count(MessageType.RESULT)
        if len(self.under_way) + not_taken >= MOST_CALLS:
            raise ChannelError(f"it made more than {MOST_CALLS} calls without taking their results")

    def send_result(
        self, batch_number: int, number: int, outcome: list[Tensor] | KsrvError
    ) -> None:
        """Send the result of a call; it is kept where the process does not take it now.

        Args:
            outcome: The outputs, or why there are none.
        """
        with suppress(ChannelClosed):  # whoever waits for the batch learns of it
            try:
                self._send_result(batch_number, number, outcome)
            except ChannelClosed:
                raise
            except (MemoryError, KsrvError) as error:
                told = Overloaded(str(error), "memory") if isinstance(error, MemoryError) else error
                self._send_result(batch_number, number, told)
            except Exception as error:
                log.error("the result of a call between models is lost", exc_info=error)
                self._send_result(batch_number, number, HandlerFailed(LOST))

    def _send_result(
        self, batch_number: int, number: int, outcome: list[Tensor] | KsrvError
    ) -> None:
        send = self.outbox.send
        tensors: list[Tensor] = []
        failures: dict[int, KsrvError] = {}
        nbytes = 0
        if isinstance(outcome, KsrvError):
            failures[0] = outcome
        else:
            payload = plain_tensors.write(number, "", "", outcome)
            if payload is not None:
                send(MessageType.RESULT, payload, batch_number=batch_number, plain=True)
                return
            tensors, nbytes = outcome, sum(one.nbytes for one in outcome)
            self._check_room(nbytes)
        written, blocks = tensor_descriptors.write(tensors, self.link.exported)
        payload, lenient = messages.pack_answer(BatchOutputs(tensors, failures), written, number)
        send(
            MessageType.RESULT,
            payload,
            batch_number=batch_number,
            blocks=blocks,
            lenient=lenient,
            nbytes=nbytes,
        )

    def _check_room(self, nbytes: int) -> None:
        """Raise `Overloaded` where the results that the process does not take become too many bytes."""
        kept, most = self.outbox.kept_bytes, self.link.imported.most_bytes
        if kept and kept + nbytes > most:
            raise Overloaded(
                f"the results of calls that the handler has not taken have {kept} bytes, and this one "
                f"{nbytes}; together they have at most {most}, the larger of the limits 'body' and "
                f"'in_flight'. Take results before you make further calls"
            )


class BatchCalls:
    """The calls of one batch that a handler process runs.

    Args:
        batch: Gives the batch when it makes a call; it is held while calls of it are under way.

    Attributes:
        pending: The calls that are under way, by their numbers.
    """

    def __init__(
        self, process: ProcessCalls, batch: Callable[[], BatchInputs], batch_number: int
    ) -> None:
        self._process = process
        self._make_batch = batch
        self._batch: BatchInputs | None = None
        self._inherited: Any = None
        self._batch_number = batch_number
        self.pending: dict[int, RequestHandle] = {}

    def close(self) -> None:
        """Give up the calls that are under way; each has its result all the same."""
        for one in list(self.pending.values()):
            one.cancel()

    def _caller(self) -> BatchInputs:
        batch = self._batch
        if batch is None:
            batch = self._batch = self._make_batch()
            batch.inherited = self._inherited
        return batch

    def _rest(self) -> None:
        """Let go of the batch, which holds its requests' bodies, where no call is under way."""
        if not self.pending:
            self._batch = None

    def cancel_abandoned(self) -> None:
        """Give up the calls once no client waits for the batch; the handler is told of each."""
        handles = self._caller().handles if self.pending else []
        if handles and all(handle.done() for handle in handles):
            self.close()

    def take(self, frame: Frame) -> None:
        """Take a CALL or CANCEL_CALL message.

        Raises:
            ChannelError: It does not add up.
        """
        if frame.kind == MessageType.CANCEL_CALL:
            for number in messages.load(NumbersMessage, frame.payload, frame.lenient).numbers:
                given_up = self.pending.get(number)  # None where its result is on the way
                if given_up is not None:
                    given_up.cancel()
            return
        process = self._process
        number, request = messages.unpack_call(frame, process.link.imported)
        process.check(number)
        caller = self._caller()
        try:
            pending = process.submit(request, caller)
        except KsrvError as error:
            self._rest()
            process.send_result(self._batch_number, number, error)
            return
        self._inherited = caller.inherited
        process.under_way.add(number)
        self.pending[number] = pending
        pending.add_done_callback(partial(self._end, number))

    def _end(self, number: int, ended: RequestHandle) -> None:
        del self.pending[number]
        self._rest()
        outcome: list[Tensor] | KsrvError
        try:
            outcome = ended.wait().outputs
        except KsrvError as error:
            outcome = error
        except BaseException as error:  # the thread is the called model's
            log.error("the result of a call between models is lost", exc_info=error)
            outcome = HandlerFailed(LOST)
        self._process.under_way.discard(number)
        self._process.send_result(self._batch_number, number, outcome)


class RingCalls:
    """The calls of the batches that a process runs out of its ring, one after the other.

    Args:
        lock: Held while the link is used, and while the process is replaced.
        confused: Ends a process that sends what does not add up.

    Attributes:
        kinds: The messages that are about calls.
    """

    kinds = (MessageType.CALL, MessageType.CANCEL_CALL)

    def __init__(
        self,
        process: ProcessCalls,
        lock: threading.Lock,
        confused: Callable[[ChannelError], object],
    ) -> None:
        self._process = process
        self._lock = lock
        self._confused = confused
        self._batch_number = 0
        self._calls: BatchCalls | None = None

    @property
    def under_way(self) -> bool:
        """Whether calls are under way, or their results wait for room in the socket."""
        calls = self._calls
        return bool((calls is not None and calls.pending) or self._process.outbox.waiting)

    def take(self, batch_number: int, batch: Callable[[], BatchInputs]) -> bool:
        """Take a message about calls, if one has come, and look after the calls that are under way.

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
            frame = self._process.link.receive(0)
        except TimeoutError:
            self._process.outbox.flush()
            calls.cancel_abandoned()
            return
        if frame.batch_number != number and is_outdated(frame, number):
            return
        if frame.batch_number != number or frame.kind not in self.kinds:
            raise ChannelError(f"it speaks of batch {frame.batch_number}, and runs {number}")
        calls.take(frame)

    def of(self, batch_number: int, batch: Callable[[], BatchInputs]) -> BatchCalls:
        """Return the calls of a batch."""
        if self._calls is None or self._batch_number != batch_number:
            self.close()
            self._batch_number = batch_number
            self._calls = BatchCalls(self._process, batch, batch_number)
        return self._calls

    def close(self) -> None:
        """Give up the calls of the batch that ran last, and keep nothing of it."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.close()
