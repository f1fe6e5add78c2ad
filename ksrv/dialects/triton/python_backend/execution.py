"""Runs the batches of one model instance: passes requests to `execute`, and collects the responses.

`Executions` calls `execute` on the thread that has called `initialize`, for one batch at a time, as in Triton. A
`ListOfRequests` is one batch, and an `Answering` has the responses to one request. A request lasts until its last
response. A decoupled model may send responses later and from any thread, so several of its batches can be open. A batch
without waiting clients ends at once, and later responses to it are dropped.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ksrv._native.batch.stages import BoundContext
from ksrv.dialects.triton.python_backend.api.errors import TritonModelException, to_client
from ksrv.dialects.triton.python_backend.api.request import RELEASE_RESCHEDULE, InferenceRequest
from ksrv.dialects.triton.python_backend.api.response import InferenceResponse
from ksrv.errors import Cancelled, HandlerFailed, InferenceError, KsrvError, StreamNeeded
from ksrv.handlers.batch_threads import working_for
from ksrv.request import ExecutorInputs, ExecutorOutputs, Parameter
from ksrv.request import Tensor as WireTensor

log = logging.getLogger("ksrv.dialects.triton.python_backend")

Done = Callable[[ExecutorOutputs | KsrvError], None]
MakeRequests = Callable[[ExecutorInputs], tuple[dict[int, InferenceRequest], dict[int, KsrvError]]]
"""Returns the requests of a batch, and the errors of refused requests, by their indices in the batch."""

_UNANSWERED = (
    "Python model '{}' returned no response to the request, and asked for no response sender"
)
_DROPPED = "Unable to send response. Response sender has been closed."


class Answering:
    """The responses to one request: a `ksrv.dialects.triton.python_backend.api.response.Receiver`.

    Any thread of the model may call it.

    Args:
        index: The index of the request in the batch.
        decoupled: Whether the model may send any number of responses.
    """

    def __init__(self, batch: "ListOfRequests", index: int, *, decoupled: bool) -> None:
        self._batch = batch
        self._index = index
        self._decoupled = decoupled
        # Whether the model has sent its final response. A further response is an error of the model.
        self._closed = False
        self.sent = 0  # the responses of the model, without a bare final flag
        # Whether the request takes no response any more; also set if ksrv ends it. Later responses are dropped.
        self.ended = False
        # Responses for the answer of the batch, if no client streams.
        self.kept: list[InferenceResponse] = []
        self.failure: KsrvError | None = None

    def send(self, response: InferenceResponse | None, *, final: bool) -> None:
        """Take a response; see `Receiver.send`."""
        with self._batch.lock:
            self._check(response, final)
            self._closed = self._closed or final
            self.sent += response is not None
        if response is not None:
            self._take(response, last=final)
        if final or not self._decoupled:
            self.end()

    def _check(self, response: InferenceResponse | None, final: bool) -> None:
        if not self._decoupled:
            if response is not None and self.sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one response."
                )
            if response is None and final and not self.sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
                )
        if self._closed:
            raise TritonModelException(_DROPPED)

    def _take(self, response: InferenceResponse, *, last: bool) -> None:
        error = response.error()
        if error is not None:
            self.fail(to_client(error))
        elif self.failure is None and not self.ended:
            if self._decoupled and self._batch.emit is not None:
                self._batch.stream(self._index, response, last=last)
            else:
                self.kept.append(response)

    def fail(self, failure: KsrvError) -> None:
        """Fail the request, unless it has failed; a client that streams gets the error at once."""
        if self.failure is None and not self.ended:
            self.failure = failure
            if self._decoupled and self._batch.emit is not None:
                self._batch.stream_failure(self._index, failure)

    def end(self) -> None:
        """Take no further response."""
        with self._batch.lock:
            if self.ended:
                return
            self.ended = True
        if self._decoupled:
            self._batch.stream_end(self._index)
        self._batch.note_ended()

    def is_cancelled(self) -> bool:
        """Tell whether nobody waits for the request any more."""
        return self._batch.has_lost(self._index)


class ListOfRequests:
    """The requests of one batch.

    Args:
        inputs: The batch as the engine made it.
        done: Called once with the answer of the batch.
        decoupled: Whether the model may send any number of responses.

    Attributes:
        requests: The requests that the model sees, by their indices in the batch; without refused requests.
        answers: The responses so far, for every request of the batch.
        bound: The batch for `execute`, and for the coroutines and threads that it starts.
        lock: Guards the ends of the batch and of its answers.
        emit: Takes responses when they arrive; None if no client streams.
        is_over: Whether the batch has its answer.
    """

    def __init__(
        self, inputs: ExecutorInputs, make: MakeRequests, done: Done, *, decoupled: bool
    ) -> None:
        self.inputs = inputs
        self.bound = BoundContext(self, inputs)
        self.lock = threading.Lock()
        self.emit = inputs.emit
        self.is_over = False
        self._decoupled = decoupled
        self._done = done
        self._cancelled = False
        self._began = time.perf_counter_ns()
        self._left = len(inputs.requests)  # requests that still take responses
        self.requests, self._refused = make(inputs)
        self.answers = [Answering(self, index, decoupled=decoupled) for index in range(self._left)]
        for index, request in self.requests.items():
            request.deliver_to(self.answers[index])

    def refuse(self) -> None:
        """Answer the refused requests with their errors."""
        for index, failure in self._refused.items():
            self.answers[index].fail(failure)
            self.answers[index].end()

    def has_lost(self, index: int) -> bool:
        """Tell whether the client of a request has gone."""
        if self._cancelled or self.is_over:
            return True
        return self.emit is not None and index not in self.emit.listening()

    def stream(self, index: int, response: InferenceResponse, *, last: bool) -> None:
        """Send a response to its client at once; the last response ends the request."""
        tensors = wire_tensors(response)
        if not tensors:  # without tensors a chunk would end the request
            return
        self.emit(
            ExecutorOutputs(
                tensors,
                parameters={index: response.given_parameters()},
                only=frozenset((index,)),
                parts={index: (0, len(tensors))},
                last=last,
            )
        )

    def stream_end(self, index: int) -> None:
        """End a streamed request now, because other requests of its batch may take longer.

        A request that is alone in its batch ends with the batch.
        """
        if self.emit is not None and len(self.answers) > 1:
            self.emit(ExecutorOutputs([], only=frozenset((index,))))

    def stream_failure(self, index: int, failure: KsrvError) -> None:
        """Send the error of a request to its client at once."""
        self.emit(ExecutorOutputs([], {index: failure}, only=frozenset((index,))))

    def note_ended(self) -> None:
        """Count a request that takes no further response; the last such request ends the batch."""
        with self.lock:
            self._left -= 1
            if self._left or self.is_over:
                return
            self.is_over = True
        self.bound.release()
        try:
            outcome: ExecutorOutputs | KsrvError = self._outputs()
        except Exception as error:
            log.error("the responses of a batch cannot be sent", exc_info=error)
            outcome = HandlerFailed(f"the response cannot be sent: {error}")
        self._done(outcome)

    def fail(self, failure: KsrvError) -> None:
        """Fail the requests that still take responses."""
        for answer in self.answers:
            if not answer.ended:
                answer.fail(failure)
                answer.end()

    def cancel(self) -> None:
        """End the batch, because no client waits for it any more."""
        with self.lock:
            self._cancelled = True
            if self.is_over:
                return
            self.is_over = True
        self.bound.release()
        self._done(Cancelled("no client waits for the batch any more"))

    def _outputs(self) -> ExecutorOutputs:
        """Return the answer of the batch: the only response to each request, or nothing if the clients stream."""
        tensors: list[WireTensor] = []
        parts: dict[int, tuple[int, int]] = {}
        parameters: dict[int, dict[str, Parameter]] = {}
        failures: dict[int, KsrvError] = {}
        streams = self._decoupled and self.emit is not None
        for index, answer in enumerate(self.answers):
            if answer.failure is not None:
                failures[index] = answer.failure
            elif streams:
                continue
            elif len(answer.kept) != 1:
                failures[index] = _not_one(len(answer.kept))
            else:
                [response] = answer.kept
                first = len(tensors)
                try:
                    tensors += wire_tensors(response)
                except TritonModelException as error:
                    failures[index] = HandlerFailed(str(error))
                parts[index] = (first, len(tensors))
                parameters[index] = response.given_parameters()
        if streams:
            # For no request: marks the answers as streamed, even if the model sent no response.
            self.emit(ExecutorOutputs([], only=frozenset()))
        timings = {"inference": time.perf_counter_ns() - self._began}
        return ExecutorOutputs(
            tensors, failures, timings, parameters=parameters, parts=None if streams else parts
        )


def _not_one(count: int) -> KsrvError:
    """Return the error of a request that does not stream and has not exactly one response."""
    if count:
        return StreamNeeded(
            f"the model answered {count} times; ask for the stream with 'Accept: text/event-stream', or over "
            f"ModelStreamInfer"
        )
    return HandlerFailed("the model sent no response to the request")


def wire_tensors(response: InferenceResponse) -> list[WireTensor]:
    """Return the outputs of a response in the engine's form."""
    return [tensor.on_wire() for tensor in response.output_tensors()]


class Executions:
    """Calls `execute`, and runs an event loop if `execute` is a coroutine.

    Any thread may call `begin` and `end`; `serve` runs on the thread that has loaded the model.

    Args:
        model: The object of the class TritonPythonModel.
        name: The name of the model's instance, for threads and errors.
        make: Makes the requests of a batch.
        decoupled: Whether the model may send any number of responses.
        describe: Returns the error that clients get for an exception of the model.
    """

    def __init__(
        self,
        model: Any,
        name: str,
        make: MakeRequests,
        *,
        decoupled: bool,
        describe: Callable[[BaseException, ExecutorInputs], KsrvError],
    ) -> None:
        self._model = model
        self._name = name
        self._make = make
        self._decoupled = decoupled
        self._describe = describe
        self._waiting: queue.SimpleQueue[ListOfRequests | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, inputs: ExecutorInputs, done: Done) -> Callable[[], None]:
        """Queue a batch for `serve`; return a function that cancels it."""
        try:
            batch = ListOfRequests(inputs, self._make, done, decoupled=self._decoupled)
        except Exception as error:  # noqa: BLE001  the thread serves other batches as well
            done(self._describe(error, inputs))
            return lambda: None
        batch.refuse()
        self._waiting.put(batch)
        return batch.cancel

    def end(self) -> None:
        """Let `serve` return after the batches that are queued."""
        self._waiting.put(None)

    def serve(self) -> None:
        """Execute batches on this thread."""
        while (batch := self._waiting.get()) is not None:
            left = list(batch.requests)
            with working_for(batch.bound):
                while left and not batch.is_over:
                    left = self._execute(batch, left)
            batch = None  # keep no reference to its memory while waiting for the next batch
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _execute(self, batch: ListOfRequests, indices: Sequence[int]) -> list[int]:
        """Call `execute` with requests of a batch; return the indices of the requests that it wants to get again."""
        requests = [batch.requests[index] for index in indices]
        try:
            result = self._model.execute(requests)
            if asyncio.iscoroutine(result):
                running = asyncio.run_coroutine_threadsafe(result, self._event_loop())
                if self._decoupled:
                    running.add_done_callback(lambda ended: self._take_later(batch, ended))
                    return []
                result = running.result()
            return self._take_result(batch, indices, requests, result)
        except BaseException as error:  # noqa: BLE001  a model may raise anything
            if isinstance(error, SystemExit):
                log.critical("the model %s ended its process with sys.exit()", self._name)
            batch.fail(self._describe(error, batch.inputs))
            return []

    def _take_later(self, batch: ListOfRequests, ended: Any) -> None:
        """Fail a batch of a decoupled model if its coroutine failed or returned responses."""
        error = ended.exception()
        if error is None and ended.result() is not None:
            error = TritonModelException(_must_return_none(self._name))
        if error is not None:
            batch.fail(self._describe(error, batch.inputs))

    def _take_result(
        self,
        batch: ListOfRequests,
        indices: Sequence[int],
        requests: Sequence[InferenceRequest],
        result: Any,
    ) -> list[int]:
        """Take the responses that `execute` returned; return the indices of the requests that it wants to get again."""
        again = [
            index
            for index, request in zip(indices, requests, strict=True)
            if request.take_release_flags() == RELEASE_RESCHEDULE
        ]
        if result is None:
            self._fail_unanswered(batch, indices, again)
            return again
        if self._decoupled:
            raise TritonModelException(_must_return_none(self._name))
        if not isinstance(result, list):
            raise TritonModelException(
                f"Expected a list in the execute return, found type '{type(result)}'."
            )
        if len(result) != len(requests):
            raise TritonModelException(
                f"Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(result)}"
            )
        for index, response in zip(indices, result, strict=True):
            if response is None:
                continue
            if index in again:
                raise TritonModelException(
                    f"Expected a None object in the execute function return list for reschduled request, found "
                    f"type '{type(response)}'."
                )
            if not isinstance(response, InferenceResponse):
                raise TritonModelException(
                    f"Expected an 'InferenceResponse' object in the execute function return list, found type "
                    f"'{type(response)}'."
                )
            batch.answers[index].send(response, final=True)
        self._fail_unanswered(batch, indices, again)
        return again

    def _fail_unanswered(
        self, batch: ListOfRequests, indices: Sequence[int], again: Sequence[int]
    ) -> None:
        """Fail the requests that have no response and no response sender, so the model cannot answer them later."""
        if self._decoupled:
            return  # a thread of the model may still ask for a sender
        for index in indices:
            if index not in again and not batch.requests[index].has_sender():
                batch.answers[index].fail(HandlerFailed(_UNANSWERED.format(self._name)))
                batch.answers[index].end()

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = self._loop = asyncio.new_event_loop()
            threading.Thread(
                target=loop.run_forever, name=f"ksrv-{self._name}-loop", daemon=True
            ).start()
        return self._loop


def _must_return_none(name: str) -> str:
    return f"Python model '{name}' is using the decoupled mode and the execute function must return None."


def client_error_of(error: BaseException, name: str) -> KsrvError:
    """Return the error that clients get for an exception of a model, with Triton's text."""
    if isinstance(error, KsrvError):
        return error
    text = f"Failed to process the request(s) for model '{name}', message: "
    if isinstance(error, TritonModelException):
        return InferenceError(f"{text}{error}", 500)
    return HandlerFailed(f"{text}{type(error).__name__}: {error}")
