"""Calls from a handler in a separate process to other models. The worker runs them; this is the side of the process.

The process sends each call as a CALL and gets one RESULT for it, even if it cancels the call. Any thread of the handler
may call. A handler without coroutines runs one batch at a time, and its batch is answered only when the results of all
its calls have arrived. So between two batches no thread of the handler receives messages, and no message about a call
is on the way.
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
    """Makes the calls; calling the object submits a request, see `Submit`.

    Attributes:
        always_receiving: Whether the main thread receives messages all the time, because the handler has coroutines.
            Then no other thread has to be started for results.
        ring: The shared memory for batches, or None.
    """

    def __init__(self, link: Link, inbox: Inbox) -> None:
        self._link = link
        self._inbox = inbox
        self._lock = threading.Lock()
        # The numbers of the running batches, by the id() of the batch.
        self._batches: dict[int, int] = {}
        self._number = 0  # of the last call
        self._open: dict[int, PendingCall] = {}  # the calls without an outcome, by number
        self._missing_results = 0  # RESULT messages that have not arrived, also of cancelled calls
        # Calls with a callback, for which `_receive` receives.
        self._awaited: set[PendingCall] = set()
        self._has_receiver = False  # whether the thread of `_receive` runs
        self.always_receiving = False
        self.ring: ProcessRing | None = None
        inbox.on(MessageType.RESULT, self._handle_result)
        inbox.on(MessageType.CALL_CHUNK, self._handle_chunk)

    def begin(self, batch: ExecutorInputs, batch_number: int) -> None:
        """Let a batch make calls."""
        self._batches[id(batch)] = batch_number

    def end(self, batch: ExecutorInputs) -> None:
        """Let a batch make no further calls, because it has ended. Its open calls fail. For handlers with
        coroutines.
        """
        with self._lock:
            number = self._batches.pop(id(batch))
            over = [call for call in self._open.values() if call.batch_number == number]
            for call in over:
                self._close(call, HandlerFailed("the batch that called another model is over"))
        for call in over:
            call.run_callbacks()
        self._inbox.wake()

    def end_alone(self, batch: ExecutorInputs) -> None:
        """Let a batch make no further calls, and wait for the results. For handlers without coroutines."""
        with self._lock:
            del self._batches[id(batch)]
        self._drain()

    def _drain(self) -> None:
        """Cancel the open calls, and wait for the results of all calls."""
        with self._lock:
            left = list(self._open.values())
        for call in left:
            self._give_up(call, HandlerFailed("the batch that called another model is over"))
        self._inbox.wait_for(lambda: self._missing_results == 0)

    def __call__(self, request: InferRequest, caller: ExecutorInputs | None) -> RequestHandle:
        """Submit a request on behalf of a batch.

        Raises:
            HandlerFailed: No batch runs, or the request is too large.
            Overloaded: Too many calls are under way.
        """
        call = self._submit(request, caller)
        if call is None:
            # The results may have arrived, and no thread has received them: a handler may call without waiting.
            self._inbox.receive_arrived()
            call = self._submit(request, caller)
        if call is None:
            raise Overloaded(
                f"the process of the handler has calls to other models under way, which are at most "
                f"{MOST_CALLS}: wait for some of their results before further calls"
            )
        return call

    def _submit(self, request: InferRequest, caller: ExecutorInputs | None) -> "PendingCall | None":
        """Send a call; return None if too many are under way. Several threads may do this at the same time."""
        with self._lock:
            if self._missing_results >= MOST_CALLS:
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
            self._missing_results += 1
        return call

    def _number_of(self, caller: ExecutorInputs | None) -> int | None:
        """Return the number of the batch that calls, or None if no call is allowed now.

        A batch of a message has its number from `begin`. A batch of the ring gets its number from the ring, which calls
        `_drain` before it answers the batch. Outside of a batch, only handlers with coroutines may call:
        `messages.NO_BATCH`.
        """
        number = self._batches.get(id(caller))
        if number is None and self.ring is not None and caller is not None:
            number = self.ring.begin_call(caller, self._drain)
        return messages.NO_BATCH if number is None and self.always_receiving else number

    def _handle_chunk(self, frame: Frame) -> None:
        number, outputs = messages.unpack_answer(frame)
        with self._lock:  # the thread that sends a call adds it to `_open` under the same lock
            call = self._open.get(number)
        if call is None:
            return  # the call was cancelled, or its batch has ended
        if 0 in outputs.failures:
            self._give_up(call, HandlerFailed(outputs.failures[0].message))
        else:
            call.take_chunk(outputs)

    def _handle_result(self, frame: Frame) -> None:
        number, outcome = messages.unpack_answer(frame)
        with self._lock:
            call = self._open.get(number)
            if call is not None:  # else the call was cancelled, or its batch has ended
                self._close(call, outcome)
            self._missing_results -= 1
        if call is not None:
            call.run_callbacks()

    def _close(self, call: "PendingCall", outcome: ExecutorOutputs | KsrvError) -> None:
        """Settle an open call. The caller holds the lock.

        A call is settled before `_missing_results` falls. Otherwise a thread that waits for the call could receive once
        more after the last result, and take a message for the next batch.
        """
        del self._open[call.number]
        self._awaited.discard(call)
        call.settle(outcome)

    def wait(self, call: "PendingCall") -> None:
        """Wait for the end of a call."""
        self._inbox.wait_for(call.settled)

    def cancel(self, call: "PendingCall") -> bool:
        """Cancel a call; return whether the call was still open."""
        return self._give_up(call, Cancelled(f"the call to {call.request.model_name} was given up"))

    def _give_up(self, call: "PendingCall", why: KsrvError) -> bool:
        with self._lock:
            if call.number not in self._open:
                return False
            self._close(call, why)
            note = messages.dump(CancelCalls([call.number]))
            self._link.send(MessageType.CANCEL_CALL, note, batch_number=call.batch_number)
        call.run_callbacks()
        self._inbox.wake()
        return True

    def receive_for(self, call: "PendingCall") -> None:
        """Ensure that a thread receives the result of a call which has a callback, so that no thread waits for it."""
        with self._lock:
            if self.always_receiving or call.number not in self._open:
                return
            self._awaited.add(call)
            starts, self._has_receiver = not self._has_receiver, True
        if starts:
            threading.Thread(target=self._receive, name="ksrv-calls", daemon=True).start()

    def _receive(self) -> None:
        # The main thread gets the same error, and ends the process.
        with suppress(ChannelClosed, ChannelError):
            self._inbox.wait_for(self._has_received)

    def _has_received(self) -> bool:
        """Tell whether no call is awaited any more; then the receiving thread ends."""
        with self._lock:
            self._has_receiver = bool(self._awaited)
            return not self._has_receiver


@dataclass(eq=False)
class PendingCall:
    """A call to another model that the worker runs for this process: a `RequestHandle`.

    Attributes:
        batch_number: The number of the batch that called.
        number: The number of the call, unique in the process.
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
        """Set the result or the error of the call. The caller then calls `run_callbacks`, without its lock."""
        settled: InferResponse | KsrvError
        if isinstance(outcome, KsrvError):
            settled = outcome
        else:
            settled = outcome.failures.get(0) or self._response(outcome)
        with self._lock:
            self._outcome = settled

    def run_callbacks(self) -> None:
        """Run the callbacks. The caller holds no lock, because a callback may make calls."""
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
            # Otherwise a handler that polls `done` would never get the result.
            self.calls.receive_for(self)
        return self._outcome is not None

    def settled(self) -> bool:
        """Tell whether the call has its outcome. Unlike `done`, this starts no thread."""
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
