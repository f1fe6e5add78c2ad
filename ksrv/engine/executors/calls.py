"""Calls to other models from a handler in a process of its own: both ends of CALL, WAIT and RESULT.

A call is submitted when it comes, and its result is sent when the handler waits for it. So several calls
are under way at a time, and the handler's thread alone receives from the link.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ksrv._native.ipc import tensor_descriptors
from ksrv._native.ipc.channel import ChannelError, Frame, Link
from ksrv.engine.executors import messages
from ksrv.engine.executors.messages import MessageType, WaitMessage
from ksrv.errors import HandlerFailed, KsrvError, Overloaded
from ksrv.handlers.models import PendingResponse, Submit
from ksrv.request import BatchInputs, BatchOutputs, InferRequest, InferResponse

MOST_CALLS = 1024
"""Calls of one batch whose results were not waited for."""


class HandlerCalls:
    """The worker's end: the calls of the batch that a handler process runs.

    Args:
        submit: Submits requests to other models.
    """

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._batch: BatchInputs | None = None
        self._pending: dict[int, PendingResponse | KsrvError] = {}

    @contextmanager
    def of_batch(self, batch: BatchInputs) -> Iterator[None]:
        """Take the calls of a batch; those that are left at its end are given up.

        Args:
            batch: The batch.
        """
        self._batch = batch
        try:
            yield
        finally:
            self._batch = None
            pending, self._pending = self._pending, {}
            for one in pending.values():
                if not isinstance(one, KsrvError):
                    one.cancel()

    def take(self, link: Link, frame: Frame) -> None:
        """Take a CALL or WAIT message.

        Args:
            link: The process's link.
            frame: The message.

        Raises:
            ChannelError: It does not add up.
        """
        if frame.kind == MessageType.CALL:
            self._begin(link, frame)
            return
        note = messages.load(WaitMessage, frame.payload, frame.lenient)
        pending = self._pending.pop(note.number, None)
        if pending is None:
            raise ChannelError(f"it waited for call {note.number}, which it did not make")
        if not note.cancel:
            self._send_result(link, frame.sequence, pending)
        elif not isinstance(pending, KsrvError):
            pending.cancel()

    def _begin(self, link: Link, frame: Frame) -> None:
        number, request = messages.unpack_call(frame, link.imported)
        if number in self._pending:
            raise ChannelError(f"it made call {number} twice")
        try:
            if len(self._pending) >= MOST_CALLS:
                raise Overloaded(f"a batch has {MOST_CALLS} calls under way, which is the most")
            self._pending[number] = self._submit(request, self._batch)
        except KsrvError as error:
            self._pending[number] = error

    def _send_result(self, link: Link, sequence: int, pending: PendingResponse | KsrvError) -> None:
        outputs = BatchOutputs([])
        try:
            if isinstance(pending, KsrvError):
                raise pending
            outputs.tensors = list(pending.wait().outputs)
            written, blocks = tensor_descriptors.write(outputs.tensors, link.exported)
        except KsrvError as error:
            outputs.failures = {0: error}
        except MemoryError as error:
            outputs.failures = {0: Overloaded(str(error), "memory")}
        if outputs.failures:
            outputs.tensors = []
            written, blocks = tensor_descriptors.write([], link.exported)
        payload, lenient = messages.pack_answer(outputs, written)
        link.send(
            MessageType.RESULT,
            payload,
            sequence=sequence,
            blocks=blocks,
            lenient=lenient,
            wait=False,
        )


class CallsHome:
    """The handler process's end: submits requests through the worker; see `Submit`.

    Args:
        link: The link for batches.
        lock: Held while the link is used.
    """

    def __init__(self, link: Link, lock: threading.Lock) -> None:
        self._link = link
        self._lock = lock
        self._sequence = 0
        self._number = 0

    def begin(self, sequence: int) -> None:
        """Let a batch make calls.

        Args:
            sequence: The batch.
        """
        self._sequence = sequence

    def end(self) -> None:
        """Make no further call: the batch has its answer."""
        with self._lock:
            self._sequence = 0

    def __call__(self, request: InferRequest, caller: BatchInputs | None) -> PendingResponse:
        """Submit a request on behalf of the running batch.

        Args:
            request: The request.
            caller: The batch, which the worker knows.

        Raises:
            HandlerFailed: No batch runs, or a batch of the ring, whose worker does not listen.
        """
        with self._lock:
            if not self._sequence:
                raise HandlerFailed(
                    f"the handler called the model {request.model_name} outside of a batch, or by a way "
                    f"that its own module does not show: use `self.context.models[...]` in the stages"
                )
            self._number += 1
            written, blocks = tensor_descriptors.write(request.inputs, self._link.exported)
            payload, lenient = messages.pack_call(request, self._number, written)
            self._link.send(
                MessageType.CALL, payload, sequence=self._sequence, blocks=blocks, lenient=lenient
            )
            return CallHome(self, request, self._sequence, self._number)

    def wait(self, sequence: int, number: int, *, cancel: bool = False) -> BatchOutputs | None:
        """Wait for a result, or give the call up.

        Args:
            sequence: The batch of the call.
            number: The call's number.
            cancel: Whether to give it up.

        Returns:
            The result, or None where the call was given up.

        Raises:
            HandlerFailed: The batch of the call is over.
        """
        with self._lock:
            if sequence != self._sequence:
                raise HandlerFailed("the batch that called another model is over")
            note, lenient = messages.dump(WaitMessage(number, cancel))
            self._link.send(MessageType.WAIT, note, sequence=sequence, lenient=lenient)
            if cancel:
                return None
            frame = self._link.receive()
            if frame.kind != MessageType.RESULT:
                raise ChannelError(f"a message was {frame.kind}, not RESULT")
            return messages.unpack_answer(frame, self._link.imported, 1)


class CallHome:
    """A call that the worker has: a `PendingResponse`.

    Args:
        calls: Sends what is asked of it.
        request: The request.
        sequence: The batch of the call.
        number: The call's number.
    """

    def __init__(self, calls: CallsHome, request: InferRequest, sequence: int, number: int) -> None:
        self._calls = calls
        self._request = request
        self._sequence = sequence
        self._number = number
        self._result: BatchOutputs | None = None
        self._cancelled = False

    def wait(self) -> InferResponse:
        """See `PendingResponse.wait`."""
        if self._result is None:
            if self._cancelled:
                raise HandlerFailed(f"the call to {self._request.model_name} was given up")
            self._result = self._calls.wait(self._sequence, self._number)
        assert self._result is not None, "a call that is waited for has a result"
        if self._result.failures:
            raise self._result.failures[0]
        request = self._request
        return InferResponse(request.model_name, request.model_version, "", self._result.tensors)

    def cancel(self) -> bool:
        """See `PendingResponse.cancel`."""
        if self._result is not None or self._cancelled:
            return False
        self._cancelled = True
        self._calls.wait(self._sequence, self._number, cancel=True)
        return True

    def done(self) -> bool:
        """See `PendingResponse.done`: whether the result is here already."""
        return self._result is not None or self._cancelled

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """See `PendingResponse.add_done_callback`."""
        if not self.done():
            self._wait_quietly()
        callback(self)

    def _wait_quietly(self) -> None:
        try:
            self.wait()
        except KsrvError:
            return  # `wait` raises it again
