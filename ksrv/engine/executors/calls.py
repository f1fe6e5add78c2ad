"""Calls to other models from a handler in a process of its own: CALL, WAIT and LOOK at both ends.

A call is submitted when it comes, and its result is sent when the handler waits for it. So several calls
are under way at a time. Whoever holds the process's lock receives the answer to what it sent. A coroutine
that waits for a call leaves that to a thread, which looks which calls have ended and never waits long.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ksrv._native.ipc import tensor_descriptors
from ksrv._native.ipc.channel import ChannelClosed, ChannelError, Frame, Link
from ksrv.engine.executors import messages
from ksrv.engine.executors.messages import MessageType, NumbersMessage, WaitMessage
from ksrv.errors import HandlerFailed, KsrvError, Overloaded
from ksrv.handlers.models import PendingResponse, Submit
from ksrv.request import BatchInputs, BatchOutputs, InferRequest, InferResponse

MOST_CALLS = 1024
"""Calls of one batch whose results were not waited for."""
LOOK_SECONDS = 0.005
"""How long a LOOK waits for a call to end; the process's other coroutines cannot use the link meanwhile."""
PAUSE_SECONDS = 0.0005
"""The pause between two LOOKs, in which other coroutines may use the link."""


class HandlerCalls:
    """The worker's end: the calls of the batch that a handler process runs.

    Args:
        submit: Submits requests to other models.
    """

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._batch: BatchInputs | None = None
        self._pending: dict[int, PendingResponse | KsrvError] = {}
        self._looked_at: set[int] = set()
        self._one_ended = threading.Event()

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
            self._looked_at.clear()
            for one in pending.values():
                if not isinstance(one, KsrvError):
                    one.cancel()

    def take(self, link: Link, frame: Frame) -> None:
        """Take a CALL, WAIT or LOOK message.

        Args:
            link: The process's link.
            frame: The message.

        Raises:
            ChannelError: It does not add up.
        """
        if frame.kind == MessageType.CALL:
            self._begin(link, frame)
            return
        if frame.kind == MessageType.LOOK:
            self._look(link, frame)
            return
        note = messages.load(WaitMessage, frame.payload, frame.lenient)
        pending = self._pending.pop(note.number, None)
        if pending is None:
            raise ChannelError(f"it waited for call {note.number}, which it did not make")
        if not note.cancel:
            self._send_result(link, frame.batch_number, pending)
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

    def _look(self, link: Link, frame: Frame) -> None:
        """Say which of some calls have ended; wait a little for the first."""
        numbers = messages.load(NumbersMessage, frame.payload, frame.lenient).numbers
        if not self._pending.keys() >= set(numbers):
            raise ChannelError(f"it looked for calls {numbers}, not all of which it made")
        self._one_ended.clear()
        for number in set(numbers) - self._looked_at:
            self._looked_at.add(number)
            pending = self._pending[number]
            if not isinstance(pending, KsrvError):
                pending.add_done_callback(lambda _: self._one_ended.set())
        ended = self._ended(numbers)
        if not ended and self._one_ended.wait(LOOK_SECONDS):
            ended = self._ended(numbers)
        payload, lenient = messages.dump(NumbersMessage(ended))
        link.send(
            MessageType.ENDED, payload, batch_number=frame.batch_number, lenient=lenient, wait=False
        )

    def _ended(self, numbers: list[int]) -> list[int]:
        found = ((number, self._pending[number]) for number in numbers)
        return [number for number, one in found if isinstance(one, KsrvError) or one.done()]

    def _send_result(
        self, link: Link, batch_number: int, pending: PendingResponse | KsrvError
    ) -> None:
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
            batch_number=batch_number,
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
        self._batch_number = 0
        self._number = 0
        self._awaited: dict[int, CallHome] = {}
        self._looks = False

    def begin(self, batch_number: int) -> None:
        """Let a batch make calls.

        Args:
            batch_number: The batch.
        """
        self._batch_number = batch_number

    def end(self) -> None:
        """Make no further call: the batch has its answer."""
        with self._lock:
            self._batch_number = 0

    def __call__(self, request: InferRequest, caller: BatchInputs | None) -> PendingResponse:
        """Submit a request on behalf of the running batch.

        Args:
            request: The request.
            caller: The batch, which the worker knows.

        Raises:
            HandlerFailed: No batch runs, or a batch of the ring, whose worker does not listen.
        """
        with self._lock:
            if not self._batch_number:
                raise HandlerFailed(
                    f"the handler called the model {request.model_name} outside of a batch, or by a way "
                    f"that its own module does not show: use `self.context.models[...]` in the stages"
                )
            self._number += 1
            written, blocks = tensor_descriptors.write(request.inputs, self._link.exported)
            payload, lenient = messages.pack_call(request, self._number, written)
            self._link.send(
                MessageType.CALL,
                payload,
                batch_number=self._batch_number,
                blocks=blocks,
                lenient=lenient,
            )
            return CallHome(self, request, self._batch_number, self._number)

    def wait(self, batch_number: int, number: int, *, cancel: bool = False) -> BatchOutputs | None:
        """Wait for a result, or give the call up.

        Args:
            batch_number: The batch of the call.
            number: The call's number.
            cancel: Whether to give it up.

        Returns:
            The result, or None where the call was given up.

        Raises:
            HandlerFailed: The batch of the call is over.
        """
        with self._lock:
            if batch_number != self._batch_number:
                raise HandlerFailed("the batch that called another model is over")
            self._awaited.pop(number, None)
            note, lenient = messages.dump(WaitMessage(number, cancel))
            self._link.send(MessageType.WAIT, note, batch_number=batch_number, lenient=lenient)
            if cancel:
                return None
            frame = self._link.receive()
            if frame.kind != MessageType.RESULT:
                raise ChannelError(f"a message was {frame.kind}, not RESULT")
            return messages.unpack_answer(frame, self._link.imported, 1)

    def look_for(self, call: "CallHome", number: int) -> None:
        """Have a thread wait for a call once its result is there, or once its batch is over.

        Args:
            call: The call.
            number: Its number.
        """
        with self._lock:
            self._awaited[number] = call
            starts, self._looks = not self._looks, True
        if starts:
            threading.Thread(target=self._look, name="ksrv-calls", daemon=True).start()

    def _look(self) -> None:
        while (ended := self._look_once()) is not None:
            for call in ended:
                with suppress(KsrvError, ChannelClosed):  # whoever asks for the result is told
                    call.wait()
            time.sleep(PAUSE_SECONDS)

    def _look_once(self) -> "list[CallHome] | None":
        """Return the awaited calls that need not be waited for any more; None where none is awaited."""
        with self._lock:
            awaited = self._awaited
            over = [one for one, call in awaited.items() if call.batch_number != self._batch_number]
            if over:
                return [awaited.pop(number) for number in over]
            if not awaited:
                self._looks = False
                return None
            try:
                note, lenient = messages.dump(NumbersMessage(list(awaited)))
                self._link.send(
                    MessageType.LOOK, note, batch_number=self._batch_number, lenient=lenient
                )
                frame = self._link.receive()
            except ChannelClosed:
                return [awaited.pop(number) for number in list(awaited)]
            if frame.kind != MessageType.ENDED:
                raise ChannelError(f"a message was {frame.kind}, not ENDED")
            ended = messages.load(NumbersMessage, frame.payload, frame.lenient).numbers
            return [awaited.pop(number) for number in ended]


class CallHome:
    """A call that the worker has: a `PendingResponse`.

    Args:
        calls: Sends what is asked of it.
        request: The request.
        batch_number: The batch of the call.
        number: The call's number.

    Attributes:
        batch_number: The batch of the call.
    """

    def __init__(
        self, calls: CallsHome, request: InferRequest, batch_number: int, number: int
    ) -> None:
        self._calls = calls
        self._request = request
        self.batch_number = batch_number
        self._number = number
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Any], object]] = []
        self._result: BatchOutputs | None = None
        self._cancelled = False

    def wait(self) -> InferResponse:
        """See `PendingResponse.wait`."""
        try:
            with self._lock:
                if self._result is None:
                    if self._cancelled:
                        text = f"the call to {self._request.model_name} was given up"
                        raise HandlerFailed(text)
                    self._result = self._calls.wait(self.batch_number, self._number)
        finally:
            self._call_back()
        assert self._result is not None, "a call that is waited for has a result"
        if self._result.failures:
            raise self._result.failures[0]
        request = self._request
        return InferResponse(request.model_name, request.model_version, "", self._result.tensors)

    def cancel(self) -> bool:
        """See `PendingResponse.cancel`."""
        with self._lock:
            if self.done():
                return False
            self._cancelled = True
            self._calls.wait(self.batch_number, self._number, cancel=True)
        self._call_back()
        return True

    def done(self) -> bool:
        """See `PendingResponse.done`: whether the result is here already."""
        return self._result is not None or self._cancelled

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """See `PendingResponse.add_done_callback`."""
        with self._lock:
            self._callbacks.append(callback)
            if not self.done():
                self._calls.look_for(self, self._number)
                return
        self._call_back()

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)
