"""Calls from handlers to other models: requests with the deadline, the clients and the callers of a batch."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from ksrv._native.queue.request_handle import NO_DEADLINE, NativeHandle
from ksrv.engine.requests.handle import QueuedRequest, SplitRequest
from ksrv.errors import Cancelled, InferenceError
from ksrv.handlers.diagnostics.debugging import came_through_a_proxy
from ksrv.observe.tracing import TRACEPARENT, current_traceparent
from ksrv.request import BatchInputs, InferRequest, InferResponse, RequestHandle

LOOK_NS = 50_000_000
"""Between two looks whether a client still waits for the batch that called."""
VIA = "ksrv"
"""The header `via` of a call for a batch with a request that came through a proxy."""


class CallFromBatch:
    """A request that a batch waits for: given up once no client waits for the batch.

    Args:
        handle: The request.
        callers: The requests of the batch.
    """

    def __init__(
        self, handle: QueuedRequest | SplitRequest, callers: Sequence[NativeHandle]
    ) -> None:
        self._handle = handle
        self._callers = callers

    def wait(self) -> InferResponse:
        """See `RequestHandle.wait`.

        Raises:
            Cancelled: No client waits for the batch any more.
        """
        while not self._handle.join(time.monotonic_ns() + LOOK_NS):
            if self._is_abandoned():
                self._handle.cancel()
                raise Cancelled("no client waits for the batch that called this model any more")
        return self._handle.wait()

    def cancel(self) -> bool:
        """See `RequestHandle.cancel`."""
        return self._handle.cancel()

    def done(self) -> bool:
        """See `RequestHandle.done`; a call that no client waits for any more has ended."""
        return self._handle.done() or self._is_abandoned()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """See `RequestHandle.add_done_callback`."""

        def ended(_: RequestHandle) -> None:
            callback(self)

        self._handle.add_done_callback(ended)

    def _is_abandoned(self) -> bool:
        return bool(self._callers) and all(caller.done() for caller in self._callers)


class ModelCalls:
    """Submits what the handlers of one model call; see `ksrv.handlers.models.Submit`.

    Args:
        submit: `Engine.submit`.
        name: The calling model's name.
    """

    def __init__(self, submit: Callable[..., Any], name: str) -> None:
        self._submit = submit
        self._name = name

    def __call__(self, request: InferRequest, caller: BatchInputs | None) -> CallFromBatch:
        """Submit a request on behalf of a batch.

        Args:
            request: The request.
            caller: The batch that is running, or None outside of one.

        Raises:
            KsrvError: It is refused.
        """
        callers: list[NativeHandle] = [] if caller is None else list(caller.handles or ())
        request.callers = self._chain(callers)
        if caller is not None:
            span = request.headers.get(TRACEPARENT) or current_traceparent()
            request.headers = inherited_headers(caller) | ({TRACEPARENT: span} if span else {})
        if request.model_name in request.callers:
            chain = " -> ".join([*request.callers, request.model_name])
            raise InferenceError(f"models call each other in a circle: {chain}", 500)
        deadline = max((one.deadline_ns for one in callers), default=NO_DEADLINE)
        if deadline != NO_DEADLINE:
            request.deadline_ns = deadline
        # A handler that waits for its call may as well run it; where it hangs, the call ends in time. A
        # thread that many batches share would keep all of them waiting.
        alone = caller is None or not caller.beside_others
        return CallFromBatch(self._submit(request, allow_inline=alone), callers)

    def _chain(self, callers: Sequence[NativeHandle]) -> tuple[str, ...]:
        """Return the models that wait for this one, and this one; requests from the wire have none."""
        found: dict[str, None] = {}
        for caller in callers:
            if isinstance(caller, QueuedRequest):
                found |= dict.fromkeys(caller.request.callers)
        found[self._name] = None
        return tuple(found)


def inherited_headers(caller: BatchInputs) -> dict[str, str]:
    """Return a call's headers: the ids that a batch's requests share, and that one came by proxy.

    Args:
        caller: The batch that calls.
    """
    found: dict[str, str] = {}
    for name in ("x-request-id", TRACEPARENT):
        values = {request.headers.get(name, "") for request in caller.requests}
        if len(values) == 1 and (value := values.pop()):
            found[name] = value
    if came_through_a_proxy(caller):
        found["via"] = VIA
    return found
