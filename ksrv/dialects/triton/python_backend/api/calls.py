"""Calls from a model to other models (Triton's BLS), and an iterator over the responses of a decoupled model."""

import threading
from collections.abc import Iterator

from ksrv._native.server.response_stream import ResponseStream
from ksrv.dialects.triton.python_backend.api.errors import (
    TritonError,
    TritonModelException,
    of_call,
)
from ksrv.dialects.triton.python_backend.api.model import running_model
from ksrv.dialects.triton.python_backend.api.response import InferenceResponse
from ksrv.dialects.triton.python_backend.api.tensor import Tensor
from ksrv.errors import KsrvError, StreamNeeded
from ksrv.request import ExecutorInputs, InferRequest, InferResponse, RequestHandle


def call(
    sent: InferRequest, decoupled: bool, caller: ExecutorInputs | None
) -> "InferenceResponse | ResponseIterator":
    """Call another model; see `InferenceRequest.exec`.

    Args:
        sent: The request.
        decoupled: Whether any number of responses may arrive.
        caller: The batch that the call works for, or None.

    Returns:
        The response, or if `decoupled` the iterator over the responses. A failed call is a response with an error.

    Raises:
        TritonModelException: The model is being initialized or finalized.
    """
    model = running_model()
    if model is None or not model.may_call:
        raise TritonModelException("BLS is only supported during the 'execute' function.")
    responses = ResponseIterator()
    if decoupled:
        sent.stream = stream = ResponseStream(lambda: responses.keep(stream.take_all(0)))
    try:
        handle = model.submit(sent, caller)
        if not decoupled:
            return _response(handle.wait())
        responses.follow(handle)
    except KsrvError as error:
        failure = _failure(sent.model_name, error)
        if not decoupled:
            return failure
        responses.end(failure)
    return responses


def _failure(model: str, error: KsrvError) -> InferenceResponse:
    found = of_call(error)
    text = f"Model {model} - Error when running inference: {found.message()}"
    if isinstance(error, StreamNeeded):
        text = (
            f"Model {model} is using the decoupled transaction policy, and answered other than once. "
            f"Please use exec(decoupled=True)"
        )
    return InferenceResponse(error=TritonError(text, found.code()))


def _response(answer: InferResponse) -> InferenceResponse:
    return InferenceResponse(
        [Tensor.of(output) for output in answer.outputs], parameters=answer.parameters
    )


class ResponseIterator:
    """The responses to one call, in the order in which they arrive.

    The thread that gets a response adds it (`keep`, `end`). The calling model iterates over them, and may do so again
    once all have arrived. If the called model reported its end after its last response, the last item is a response
    without outputs.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._responses: list[InferenceResponse] = []
        self._next = 0
        self._ended = False
        self._handle: RequestHandle | None = None

    # ---- filling ----------------------------------------------------------------------------

    def follow(self, handle: RequestHandle) -> None:
        """Wait for the end of a call without blocking."""
        self._handle = handle
        handle.add_done_callback(self._take_end)

    def _take_end(self, handle: RequestHandle) -> None:
        try:
            last = _response(handle.wait())
        except KsrvError as error:
            last = InferenceResponse(error=of_call(error))
        self.end(last)

    def end(self, last: InferenceResponse) -> None:
        """Add the last response."""
        with self._changed:
            self._responses.append(last)
            self._ended = True
            self._changed.notify_all()

    def keep(self, responses: list[InferResponse]) -> None:
        """Take responses, which stay in the memory of the calling model."""
        with self._changed:
            self._responses += map(_response, responses)
            self._changed.notify_all()

    # ---- iterating, and cancelling ----------------------------------------------------------

    def __iter__(self) -> Iterator[InferenceResponse]:
        with self._changed:
            if self._ended and self._next >= len(self._responses):
                self._next = 0
        return self

    def __next__(self) -> InferenceResponse:
        with self._changed:
            while self._next >= len(self._responses) and not self._ended:
                self._changed.wait()
            if self._next >= len(self._responses):
                raise StopIteration
            self._next += 1
            return self._responses[self._next - 1]

    def cancel(self) -> None:
        """Cancel the call; the iterator ends with an error."""
        if self._handle is not None:
            self._handle.cancel()
