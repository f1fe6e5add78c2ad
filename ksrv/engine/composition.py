"""Calls from handlers to other models (`ModelCalls`).

A call works for the batch of the handler: it has the deadline, the ids and the clients of the batch. It ends once no
client waits for the batch, and it may not call a model that waits for it.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from ksrv._native.queue.request_handle import NO_DEADLINE, NativeHandle
from ksrv.engine.requests.handle import FutureHandle, QueuedRequest
from ksrv.errors import Cancelled, InferenceError, NotLoaded, NotReady, Overloaded
from ksrv.handlers.models import SERVER
from ksrv.observe.tracing import TRACEPARENT, current_traceparent
from ksrv.request import ExecutorInputs, InferRequest, InferResponse, RequestHandle, is_forwarded

LOOK_NS = 50_000_000
"""Nanoseconds between two checks whether a client still waits for the batch that called."""
_ABANDONED = "no client waits for the batch that called this model any more"
VIA = "ksrv"
"""The value of the header `via` of a call, if a request of the batch came through a proxy."""


@dataclass(eq=False)
class ForwardedCall:
    """The handle of a call to another model. The call is cancelled once no client waits for it.

    Args:
        handle: The handle of the request.
        is_abandoned: Tells whether no client waits for the call any more.
    """

    handle: Any
    is_abandoned: Callable[[], bool]

    def wait(self) -> InferResponse:
        """See `RequestHandle.wait`.

        Raises:
            Cancelled: No client waits for the call any more.
        """
        while not (self.handle.done() or self.handle.join(time.monotonic_ns() + LOOK_NS)):
            if self.is_abandoned():
                self.handle.cancel()
                raise Cancelled(_ABANDONED)
        answer: InferResponse = self.handle.wait()
        return answer

    def cancel(self) -> bool:
        """See `RequestHandle.cancel`."""
        ended: bool = self.handle.cancel()
        return ended

    def done(self) -> bool:
        """See `RequestHandle.done`. An abandoned call has ended."""
        return self.handle.done() or self.is_abandoned()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """See `RequestHandle.add_done_callback`."""
        self.handle.add_done_callback(lambda _: callback(self))


class ThreadedCall(FutureHandle):
    """A call of a handler that runs on a separate thread, because it may have to load a model.

    Args:
        call: Returns the answer. It gets a function that tells whether the call was cancelled.

    Raises:
        Overloaded: The system has no thread.
    """

    def __init__(self, call: Callable[[Callable[[], bool]], InferResponse]) -> None:
        super().__init__(Future())
        thread = threading.Thread(
            target=self._run, args=(call,), name="ksrv-handler-call", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            raise Overloaded(f"the model cannot be waited for: {error}", "threads") from error

    def _run(self, call: Callable[[Callable[[], bool]], InferResponse]) -> None:
        with suppress(InvalidStateError):  # cancelled
            try:
                self._answer.set_result(call(self._answer.cancelled))
            except InvalidStateError:
                raise
            except BaseException as error:  # noqa: BLE001  `wait` raises it
                self._answer.set_exception(error)


@dataclass(eq=False)
class ModelCalls:
    """Submits the calls of one model's handlers; see `ksrv.handlers.models.Submit`.

    Args:
        submit: `Engine.submit`.
        name: The name of the calling model.
        ask: Answers calls to the server itself.
        instances: The instances of the calling model. It may call itself as long as one instance is free to answer.
    """

    submit: Callable[..., Any]
    name: str
    ask: Callable[[InferRequest], RequestHandle] | None = None
    instances: int = 1

    def __call__(self, request: InferRequest, caller: ExecutorInputs | None) -> RequestHandle:
        """Submit a request on behalf of a batch.

        Args:
            caller: The batch that the calling code works for, or None. Without a batch, the call has no inherited
                deadline and ids, and no client whose leaving ends it.

        Raises:
            KsrvError: The call is refused.
        """
        if request.model_name == SERVER and self.ask is not None:
            return self.ask(request)
        handles: Sequence[NativeHandle] = (caller.handles if caller is not None else None) or ()
        if caller is None:
            inherited = Inherited((self.name,), {}, None)
        else:
            inherited = caller.inherited
            if inherited is None:
                inherited = caller.inherited = inherit(caller, self.name)
            span = request.headers.get(TRACEPARENT) or current_traceparent()
            request.headers = inherited.headers | ({TRACEPARENT: span} if span else {})
        request.callers = inherited.callers
        depth = inherited.callers.count(request.model_name)
        if depth and not (request.model_name == self.name and depth < self.instances):
            chain = " -> ".join([*inherited.callers, request.model_name])
            raise InferenceError(f"models call each other in a circle: {chain}", 500)
        wanted, latest = request.deadline_ns, inherited.deadline_ns
        if latest is not None and (wanted is None or latest < wanted):
            request.deadline_ns = latest
        # The thread of one batch would only wait for the call, so it may run the call itself. A thread that many
        # batches share must not, because all of them would wait.
        alone = caller is not None and not caller.beside_others

        def is_abandoned() -> bool:
            return bool(handles) and all(handle.done() for handle in handles)

        try:
            # A dormant model raises NotLoaded at once, because this thread must not wait for the load.
            handle = self.submit(request, allow_inline=alone, waits=False)
        except NotLoaded:  # the model is dormant: another thread loads it and then submits the call
            handle = ThreadedCall(
                lambda is_cancelled: ForwardedCall(
                    self.submit(request), lambda: is_cancelled() or is_abandoned()
                ).wait()
            )
        return ForwardedCall(handle, is_abandoned)


class CallGraph:
    """Remembers which models have called which. Entries are never removed.

    A change of a model makes the cached answers of its callers outdated.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callers: dict[str, set[str]] = {}  # by the called model

    def note(self, caller: str, called: str) -> bool:
        """Note that a model calls another.

        Args:
            called: The model that is called.

        Returns:
            Whether this is the first such call.
        """
        # Without the lock, because nearly every call was noted before.
        if caller in self._callers.get(called, ()):
            return False
        with self._lock:
            self._callers.setdefault(called, set()).add(caller)
        return True

    def callers_of(self, called: str) -> set[str]:
        """Return the models that call a model, or that call one of its callers."""
        found: set[str] = set()
        left = [called]
        with self._lock:
            while left:
                new = self._callers.get(left.pop(), set()) - found
                found |= new
                left += new
        return found


class Inherited(NamedTuple):
    """The properties of a batch's requests that the calls of the batch inherit.

    Attributes:
        callers: The models that wait for the call, the model that runs the batch last. A model that has called itself
            is in it several times.
        headers: The ids that all requests share, and `via` if any request came through a proxy.
        deadline_ns: The latest of their deadlines, or None.
    """

    callers: tuple[str, ...]
    headers: dict[str, str]
    deadline_ns: int | None


def inherit(caller: ExecutorInputs, name: str) -> Inherited:
    """Return the properties that the calls of a batch inherit.

    Args:
        caller: The batch.
        name: The model that runs the batch.

    Raises:
        NotReady: The batch is a warm-up, in which a model may not call other models.
    """
    handles = caller.handles or []
    chain: dict[str, None] = {}
    depth = 0
    for handle in handles:
        if isinstance(handle, QueuedRequest):  # requests of the fast path have no callers
            request = handle.request
            if request.calls_nobody:
                request.has_called = True
                raise NotReady(
                    f"the model {name} is being warmed up and cannot call other models yet"
                )
            chain |= dict.fromkeys(request.callers)
            depth = max(depth, request.callers.count(name))
    chain.pop(name, None)
    headers = [request.headers for request in handles or caller.requests]
    deadline = max((handle.deadline_ns for handle in handles), default=NO_DEADLINE)
    return Inherited(
        (*chain, *[name] * (depth + 1)),
        inherited_headers(headers),
        None if deadline == NO_DEADLINE else deadline,
    )


def inherited_headers(requests: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return a call's headers: the ids that all requests share, and `via` if any request came through a proxy."""
    found: dict[str, str] = {}
    for name in ("x-request-id", TRACEPARENT):
        values = {headers.get(name, "") for headers in requests}
        if len(values) == 1 and (value := values.pop()):
            found[name] = value
    if any(is_forwarded(headers) for headers in requests):
        found["via"] = VIA
    return found
