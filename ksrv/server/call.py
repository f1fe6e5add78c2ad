"""Serves every inference call of a client: finds the model, reads, submits, watches the client, then sends or refuses.

Each protocol implements `InferCall`, and `run_infer` does these steps with it. No other module asks the engine for a
client's model or submits a client's request.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ksrv._native.server.response_stream import ResponseStream
from ksrv.engine.requests.handle import SplitRequest
from ksrv.errors import HandlerFailed, KsrvError, NotLoaded
from ksrv.observe import traffic
from ksrv.request import InferRequest, InferResponse, RequestHandle

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.engine.model import ModelVersion

log = logging.getLogger(__name__)

Find: TypeAlias = "Callable[[str, str], ModelVersion]"
"""Returns the model for a name and a version ("" for the highest); see `Engine.find`."""


_SOUND_THREADS = ThreadPoolExecutor(4, "ksrv-sound")
"""Submit requests with sounds, because decoding them may take long, and I/O threads must not wait for it."""


class InferCall(Protocol):
    """A client's call for inference. `run_infer` calls either `send` or `refuse`, and calls it once.

    Attributes:
        blocks: Whether the calling thread waits for the response and sends it. Otherwise the thread that ends the
            request sends it. Read after `read`.
        may_run: Whether a waiting thread may run the request itself. It cannot watch the client meanwhile.
    """

    blocks: bool
    may_run: bool

    def authorize(self) -> None:
        """Check the caller's rights.

        Raises:
            KsrvError: The caller may not infer.
        """

    def read(self, find: Find) -> InferRequest:
        """Return the request, with the model that `find` returned as its `target`.

        Raises:
            KsrvError: The model does not serve, or the message is wrong.
        """

    def watch(self, handle: RequestHandle) -> None:
        """Arrange that a queued request is cancelled when its client disconnects."""

    def send(self, response: InferResponse) -> None:
        """Send the response. If this raises, the call is refused with the exception."""

    def refuse(self, error: Exception) -> None:
        """Send a failure; see `report`."""


class StoredCall:
    """An `InferCall` that stores the parts of its answer, and then its outcome, for another thread.

    Subclasses add `read`.

    Args:
        notify: Called when a part was stored or the call has ended. It must not block.

    Attributes:
        answers: The stored parts of a request that streams. It also ends when the call ends.
        handle: The queued request; None if the request had ended before `watch` could be called.
    """

    blocks = may_run = False

    def __init__(self, notify: Callable[[], object] | None = None) -> None:
        self.answers = ResponseStream(notify)
        self.handle: RequestHandle | None = None
        self._response: InferResponse | None = None
        self._error: Exception | None = None

    def authorize(self) -> None:
        """See `InferCall.authorize`: the caller was checked before the call was made."""

    def watch(self, handle: RequestHandle) -> None:
        """See `InferCall.watch`."""
        self.handle = handle

    def send(self, response: InferResponse) -> None:
        """See `InferCall.send`."""
        self._response = response
        self.answers.end()

    def refuse(self, error: Exception) -> None:
        """See `InferCall.refuse`."""
        self._error = error
        self.answers.end()

    def check(self) -> None:
        """Raise the error of the call, if it has failed."""
        # Taken out, because the traceback of the error will refer to this frame, and so to `self`: a cycle.
        error, self._error = self._error, None
        if error is not None:
            raise error

    def response(self) -> InferResponse:
        """Return the response of a call that has ended.

        Raises:
            KsrvError: Why the call failed.
        """
        self.check()
        assert self._response is not None, "a call ends with a response or an error"
        return self._response

    def cancel(self) -> None:
        """Cancel the request, unless it has ended, and drop the stored parts."""
        if self.handle is not None:
            self.handle.cancel()
        self.answers.give_up()


def run_infer(call: InferCall, engine: "Engine", *, waits: bool) -> None:
    """Serve an inference call of any protocol and answer it exactly once.

    Args:
        call: The call.
        engine: The engine that runs it.
        waits: Whether the calling thread may wait until the model is loaded. I/O threads may not wait, but may run the
            request themselves if the handler is quick.
    """
    try:
        call.authorize()
        request = call.read(partial(engine.find, waits=waits))
        target = request.target
        if waits or target is None or not target.validator.decodes(request):
            _submit(call, engine, request, waits=waits)
        else:
            _SOUND_THREADS.submit(_submit, call, engine, request, waits=True)
    except NotLoaded as error:
        # The call is served again on another thread, which may wait for the load.
        again = partial(run_infer, call, engine, waits=True)
        if waits or not engine.wait_elsewhere(error.model, again, call.refuse):
            _refuse(call, error)
    except Exception as error:  # noqa: BLE001  (becomes the answer)
        _refuse(call, error)


def _submit(call: InferCall, engine: "Engine", request: InferRequest, *, waits: bool) -> None:
    """Submit the request of a call. A refusal is its answer, unless its model is dormant.

    Raises:
        NotLoaded: The model is dormant, and the calling thread may not wait.
    """
    try:
        handle = engine.submit(
            request,
            None if call.blocks else partial(finish, call),
            allow_inline=not waits,
            caller_blocks=call.may_run,
            waits=waits,
        )
    except Exception as error:
        if isinstance(error, NotLoaded) and not waits:
            raise
        _refuse(call, error)
        return
    # To cancel one part of a split request cancels all parts, so watching the last part is enough.
    watched = handle.parts[-1] if isinstance(handle, SplitRequest) else handle
    if not watched.done():
        call.watch(watched)
    if call.blocks:
        finish(call, handle)


def find_model(engine: "Engine", name: str, version: str) -> "ModelVersion":
    """Return the model of a call whose body is not received yet, so that a call of an unknown model needs no body.

    Raises:
        KsrvError: The model does not serve.
    """
    return engine.find(name, version)


def finish(call: InferCall, handle: RequestHandle) -> None:
    """Answer a call when its request has ended, and wait for that if necessary."""
    try:
        response = handle.wait()
    except Exception as error:  # noqa: BLE001  (becomes the answer)
        _refuse(call, error)
    else:
        deliver(call, response)


def deliver(call: InferCall, response: InferResponse) -> None:
    """Send a response. If it cannot be sent, refuse the call."""
    try:
        call.send(response)
    except Exception as error:  # noqa: BLE001  (becomes the answer)
        _refuse(call, error)


def _refuse(call: InferCall, error: Exception) -> None:
    """Refuse a call with an error that refers to none of its buffers.

    A call may keep its error. The tracebacks of the error, and of the exception that was handled when it was raised,
    refer to frames that refer to the call: its buffers would stay until the garbage collector finds the cycle. Only an
    unforeseen error is logged with its traceback.
    """
    if isinstance(error, KsrvError):
        error = error.with_traceback(None)
        error.__cause__ = error.__context__ = None
    call.refuse(error)


def report(
    error: Exception, protocol: traffic.Protocol, name: str, fields: Mapping[str, str] | None = None
) -> KsrvError:
    """Log and count a failure that is sent to a client.

    Unexpected exceptions are logged. A `KsrvError` is logged only over HTTP, if its status is 500 or higher, it does
    not ask the client to try again and the log does not have it yet.

    Args:
        name: The failed call, for the log: "POST /v2/models/cats/infer".
        fields: The fields of the log record that identify the call.

    Returns:
        The error that the client gets. It has no traceback: the frames hold the call and its buffers.
    """
    if not isinstance(error, KsrvError):
        log.error("%s failed", name, exc_info=error, extra=fields)
        error = HandlerFailed(f"the server failed with {type(error).__name__}; see its log")
    elif (
        protocol == "http"
        and error.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR
        and error.retry_after is None
        and not error.was_logged
    ):
        log.error("%s: %s", name, error.message, extra=fields)
    traffic.count_refusal(protocol, error.reason)
    if protocol == "grpc":  # the HTTP servers count statuses themselves
        traffic.count_status(protocol, error.grpc_code)
    return error.with_traceback(None)
