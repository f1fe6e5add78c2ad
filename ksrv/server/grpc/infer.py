"""ModelInfer: bytes in, bytes out, and the public way to wait for the answer.

The scan and the writer take and give `bytes`, so grpcio (de)serialises nothing. Calls come from
grpcio's completion queue (`completion_queue`); where that cannot be had, from its sync server. There a
pool thread waits for the answer while few requests are under way, which costs the least. When many
are, a request is deferred: its thread leaves at once and comes back with the answer, so that the
engine's queue, not a pool of threads, bounds the accepted requests; a full queue refuses at once.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ksrv.errors import KsrvError
from ksrv.limits import Limits
from ksrv.observe.traffic import count_error
from ksrv.protocol import grpc as protocol
from ksrv.protocol.shared_memory import SharedMemoryRegistry
from ksrv.request import InferRequest, InferResponse, Parameter
from ksrv.server.grpc.calls import (
    Context,
    abort,
    deadline_of,
    earlier,
    failure_of,
    metadata_of,
    set_status,
    trailing,
)
from ksrv.spec import ModelSpec

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.engine.model import ModelVersion
    from ksrv.engine.request_handle import RequestHandle

Send = Callable[[bytes | None], None]


class ThreadPermits:
    """How many requests may hold a thread while they wait.

    Args:
        most: The bound.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken = 0

    def take(self) -> "Permit | None":
        """Return a permit, or None where all are taken."""
        with self._lock:
            if self._taken >= self._most:
                return None
            self._taken += 1
        return Permit(self)

    def give_back(self) -> None:
        """Free one permit."""
        with self._lock:
            self._taken -= 1


class Permit:
    """One permit; given back by `release`, or when the call that it was meant for never came."""

    __slots__ = ("_permits",)

    def __init__(self, permits: ThreadPermits) -> None:
        self._permits: ThreadPermits | None = permits

    def release(self) -> None:
        """Give the permit back; further calls do nothing."""
        permits, self._permits = self._permits, None
        if permits is not None:
            permits.give_back()

    def __del__(self) -> None:
        self.release()


class InferCalls:
    """The inference calls of one server.

    Args:
        engine: Where requests run.
        limits: Bounds for the parser.
        hides_credentials: Whether the `authorization` entry is kept from handlers.
        pool: Where deferred requests are answered.
        regions_of: Gives the shared memory that a call may name; None where that is off.

    Attributes:
        submit: `Engine.submit`.
    """

    def __init__(
        self,
        engine: "Engine",
        limits: Limits,
        *,
        hides_credentials: bool,
        pool: ThreadPoolExecutor,
        regions_of: Callable[[Context], SharedMemoryRegistry | None] = lambda context: None,
    ) -> None:
        self._engine = engine
        self.submit = engine.submit
        self._limits = limits
        self._hides_credentials = hides_credentials
        self._pool = pool
        self._regions_of = regions_of

    def read(self, message: bytes | memoryview, context: Context) -> InferRequest:
        """Read a request of a caller who may call.

        Args:
            message: A serialized ModelInferRequest.
            context: Its call, which gives metadata and deadline.

        Raises:
            KsrvError: Whatever the client is to be told.
        """
        metadata = metadata_of(context)
        if self._hides_credentials:
            metadata.pop("authorization", None)
        target: ModelVersion | None = None

        def spec_of(name: str, version: str) -> ModelSpec:
            nonlocal target
            target = self._engine.find(name, version)
            return target.spec

        request = protocol.parse_infer(
            message,
            spec_of,
            self._limits,
            metadata=metadata,
            regions=self._regions_of(context),
        )
        request.target = target
        request.deadline_ns = earlier(request.deadline_ns, deadline_of(context))
        return request

    def infer(  # noqa: RET503 - abort raises
        self, permit: Permit, message: bytes, context: Context
    ) -> bytes:
        """Answer a request on this thread.

        Args:
            permit: Allows this thread to wait.
            message: A serialized ModelInferRequest.
            context: Its call.
        """
        try:
            request = self.read(message, context)
            handle = self.submit(request, caller_blocks=True)
            if not handle.done():
                cancel_with(context, handle)
            return self.finish(context, request, handle)
        except Exception as error:  # noqa: BLE001 - the boundary to grpcio, which hides them
            failure = failure_of(error)
        finally:
            permit.release()
        abort(context, failure)

    def infer_later(self, message: bytes, context: Context, send: Send) -> None:
        """Accept a request, and answer it from the pool once it is done.

        Args:
            message: A serialized ModelInferRequest.
            context: Its call.
            send: Sends the answer; None after it ends the call.
        """
        try:
            request = self.read(message, context)
            handle = self.submit(request)
        except Exception as error:  # noqa: BLE001 - the boundary to grpcio, which hides them
            set_status(context, failure_of(error))
            send(None)
            return
        cancel_with(context, handle)

        def done(ended: "RequestHandle") -> None:
            self._pool.submit(self._answer, context, request, ended, send)

        handle.add_done_callback(done)

    def _answer(
        self, context: Context, request: InferRequest, handle: "RequestHandle", send: Send
    ) -> None:
        try:
            message = self.finish(context, request, handle)
        except Exception as error:  # noqa: BLE001 - the pool's thread would drop it
            set_status(context, failure_of(error))
        else:
            send(message)
        send(None)

    def finish(self, context: Context, request: InferRequest, handle: "RequestHandle") -> bytes:
        """Wait for an answer and serialize it.

        Raises:
            KsrvError: Whatever the client is to be told.
        """
        response = handle.wait()
        if response.headers:
            context.set_trailing_metadata(tuple(trailing(response.headers)))
        return protocol.render_infer(response, request, regions=self._regions_of(context))

    def stream_message(
        self,
        context: Context,
        response: InferResponse,
        request: InferRequest,
        parameters: Mapping[str, Parameter],
    ) -> bytes:
        """Serialize an answer for a stream."""
        return protocol.render_infer(
            response,
            request,
            parameters=parameters,
            stream=True,
            regions=self._regions_of(context),
        )


def cancel_with(context: Context, handle: "RequestHandle") -> None:
    """Give a request up when its call ends before it is answered."""

    def ended() -> None:
        if not handle.done():
            handle.cancel()

    if not context.add_callback(ended):
        ended()


def stream_error(error: KsrvError, id: str, parameters: Mapping[str, Parameter]) -> bytes:
    """Serialize and count an error for a stream; it carries the request's id where that was readable."""
    from ksrv.protocol.protobuf import message_class

    count_error(error)
    made = message_class("inference.ModelStreamInferResponse")(error_message=error.message)
    made.infer_response.id = id
    for name, value in parameters.items():
        made.infer_response.parameters[name].bool_param = bool(value)
    encoded: bytes = made.SerializeToString()
    return encoded
