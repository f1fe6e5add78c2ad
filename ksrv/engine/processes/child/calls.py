"""Calls to other models from a handler in a separate process: CALL and RESULT on the side of the process.

A batch that runs alone is answered once each of its calls has its result: so between two batches no thread of the
handler receives, and no message about calls is on its way.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ksrv._native.process.batch_ring import ProcessRing
from ksrv.engine.processes import messages
from ksrv.engine.processes.child.inbox import Inbox
from ksrv.engine.processes.link import ChannelClosed, ChannelError, Frame, Link
from ksrv.engine.processes.messages import MOST_CALLS, CancelCalls, MessageType, bounded
from ksrv.errors import Cancelled, HandlerFailed, KsrvError, Overloaded
from ksrv.request import ExecutorInputs, ExecutorOutputs, InferRequest, InferResponse, RequestHandle


class WorkerCalls:
    """Submits requests through the worker; see `Submit`.

    Attributes:
        always_receiving: Whether a thread receives all the time, so that coroutines need not start one.
        ring: The memory for batches, or None.
    """

    def __init__(self, link: Link, inbox: Inbox) -> None:
        self._link = link
        self._inbox = inbox
        self._lock = threading.Lock()
        self._batches: dict[int, int] = {}
        self._number = 0
        self._open: dict[int, PendingCall] = {}
        self._unanswered = 0
        self._awaited: set[PendingCall] = set()
        self._has_receiver = False
        self.always_receiving = False
        self.ring: ProcessRing | None = None
        inbox.on(MessageType.RESULT, self._take_result)
        inbox.on(MessageType.CALL_CHUNK, self._take_chunk)

    def begin(self, batch: ExecutorInputs, batch_number: int) -> None:
        """Let a batch make calls."""
        self._batches[id(batch)] = batch_number

    def end(self, batch: ExecutorInputs) -> None:
        """Let a batch make no further call: it has its answer."""
        with self._lock:
            number = self._batches.pop(id(batch))
            over = [call for call in self._open.values() if call.batch_number == number]
            for call in over:
                self._close(call, HandlerFailed("the batch that called another model is over"))
        for call in over:
            call.tell()
        self._inbox.wake()

    def finish(self, batch: ExecutorInputs) -> None:
        """Let a batch that ran alone make no further call, before its answer."""
        with self._lock:
            del self._batches[id(batch)]
        self._drain()

    def _drain(self) -> None:
        """Give up the calls that are left, and wait for the results of all."""
        with self._lock:
            left = list(self._open.values())
        for call in left:
            self._give_up(call, HandlerFailed("the batch that called another model is over"))
        self._inbox.wait_for(lambda: self._unanswered == 0)

    def __call__(self, request: InferRequest, caller: ExecutorInputs | None) -> RequestHandle:
        """Submit a request on behalf of a batch.

        Raises:
            HandlerFailed: No batch runs, or the request is too large.
            Overloaded: Too many calls are under way.
        """
        call = self._submit(request, caller)
        if call is None:
            self._inbox.receive_waiting()  # for a handler that makes calls without waiting for any
            call = self._submit(request, caller)
        if call is None:
            raise Overloaded(
                f"the process of the handler has calls to other models under way, which are at most "
                f"{MOST_CALLS}: wait for some of their results before further calls"
            )
        return call

    def _submit(self, request: InferRequest, caller: ExecutorInputs | None) -> "PendingCall | None":
        """Send a call, unless too many are under way; threads of the handler call side by side."""
        with self._lock:
            if self._unanswered >= MOST_CALLS:
                return None
            batch_number = self._number_of(caller)
            if batch_number is None:
                raise HandlerFailed(
                    f"the handler called the model {request.model_name} outside of a batch: use "
                    f"`self.context.models[...]` in the stages, and in threads that they start and wait for; a handler "
                    f"with coroutines, or with executor: inline, may call at any time"
                )
            self._number += 1
            call = PendingCall(self, request, batch_number, self._number)
            with bounded(f"the request to the model {request.model_name}"):
                packed = messages.pack_call(request, call.number, self._link)
                self._link.send(MessageType.CALL, packed, batch_number=batch_number)
            self._open[call.number] = call
            self._unanswered += 1
        return call

    def _number_of(self, caller: ExecutorInputs | None) -> int | None:
        """Return the number of the batch that calls, or None if it may not call; see `messages.NO_BATCH`."""
        number = self._batches.get(id(caller))
        if number is None and self.ring is not None and caller is not None:
            number = self.ring.begin_call(caller, self._drain)
        return messages.NO_BATCH if number is None and self.always_receiving else number

    def _take_chunk(self, frame: Frame) -> None:
        number, outputs = messages.unpack_answer(frame)
        with self._lock:  # another thread may have sent the call and not noted it yet
            call = self._open.get(number)
        if call is None:
            return  # it was given up, or its batch is over
        if 0 in outputs.failures:
            self._give_up(call, HandlerFailed(outputs.failures[0].message))
        else:
            call.take_chunk(outputs)

    def _take_result(self, frame: Frame) -> None:
        number, outcome = messages.unpack_answer(frame)
        with self._lock:
            call = self._open.get(number)
            if call is not None:  # else it was given up, or its batch is over
                self._close(call, outcome)
            self._unanswered -= 1
        if call is not None:
            call.tell()

    def _close(self, call: "PendingCall", outcome: ExecutorOutputs | KsrvError) -> None:
        """Settle an open call, under the lock.

        A call is settled before its result is counted. Else a thread that waits for the call would receive once
        more after the last result, and take what the worker sends for the next batch.
        """
        del self._open[call.number]
        self._awaited.discard(call)
        call.settle(outcome)

    def wait(self, call: "PendingCall") -> None:
        """Wait for the end of a call."""
        self._inbox.wait_for(call.settled)

    def cancel(self, call: "PendingCall") -> bool:
        """Give a call up; return whether this ended it."""
        return self._give_up(call, Cancelled(f"the call to {call.request.model_name} was given up"))

    def _give_up(self, call: "PendingCall", why: KsrvError) -> bool:
        with self._lock:
            if call.number not in self._open:
                return False
            self._close(call, why)
            note = messages.dump(CancelCalls([call.number]))
            self._link.send(MessageType.CANCEL_CALL, note, batch_number=call.batch_number)
        call.tell()
        self._inbox.wake()
        return True

    def receive_for(self, call: "PendingCall") -> None:
        """Have a thread receive the result of a call that a coroutine waits for."""
        with self._lock:
            if self.always_receiving or call.number not in self._open:
                return
            self._awaited.add(call)
            starts, self._has_receiver = not self._has_receiver, True
        if starts:
            threading.Thread(target=self._receive, name="ksrv-calls", daemon=True).start()

    def _receive(self) -> None:
        with suppress(ChannelClosed, ChannelError):  # the process ends
            self._inbox.wait_for(self._has_received)

    def _has_received(self) -> bool:
        with self._lock:
            self._has_receiver = bool(self._awaited)
            return not self._has_receiver


@dataclass(eq=False)
class PendingCall:
    """A call to another model that the worker runs for this process: a `RequestHandle`.

    Attributes:
        request: The call's request.
        batch_number: The batch of the call.
        number: The call's number.
    """

    calls: WorkerCalls
    request: InferRequest
    batch_number: int
    number: int
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _callbacks: list[Callable[[Any], object]] = field(default_factory=list)
    _outcome: InferResponse | KsrvError | None = None

    def take_chunk(self, outputs: ExecutorOutputs) -> None:
        """Hand an intermediate answer to the handler."""
        if self.request.stream is not None:
            self.request.stream.put(self._response(outputs))

    def _response(self, outputs: ExecutorOutputs) -> InferResponse:
        parameters = outputs.parameters.get(0, {})
        request = self.request
        return InferResponse(
            request.model_name, request.model_version, "", outputs.tensors, parameters
        )

    def settle(self, outcome: ExecutorOutputs | KsrvError) -> None:
        """Set the result or the error of the call; `tell` follows."""
        settled: InferResponse | KsrvError
        if isinstance(outcome, KsrvError):
            settled = outcome
        else:
            settled = outcome.failures.get(0) or self._response(outcome)
        with self._lock:
            self._outcome = settled

    def tell(self) -> None:
        """Call what waits for the end of the call, without a lock: a callback may make calls."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            with suppress(RuntimeError):  # the event loop that waited is closed
                callback(self)

    def wait(self) -> InferResponse:
        """See `RequestHandle.wait`."""
        if self._outcome is None:
            self.calls.wait(self)
        outcome = self._outcome
        assert outcome is not None, "a call that was waited for has a result"
        if isinstance(outcome, KsrvError):
            raise outcome.with_traceback(None)
        return outcome

    def cancel(self) -> bool:
        """See `RequestHandle.cancel`."""
        return self.calls.cancel(self)

    def done(self) -> bool:
        """See `RequestHandle.done`."""
        if self._outcome is None:
            self.calls.receive_for(self)  # for a handler that asks again and again
        return self._outcome is not None

    def settled(self) -> bool:
        """Tell whether the result is here."""
        return self._outcome is not None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """See `RequestHandle.add_done_callback`."""
        with self._lock:
            waits = self._outcome is None
            if waits:
                self._callbacks.append(callback)
        if waits:
            self.calls.receive_for(self)
        else:
            callback(self)
