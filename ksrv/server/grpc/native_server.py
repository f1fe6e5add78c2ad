"""The gRPC front end on libnghttp2: a native server receives messages and sends answers, and calls Python in between.

The native server (`native/grpc/`) answers ModelInfer calls on its fast path if it can. For all other calls it calls a
method of `NativeGrpcServer` on an I/O thread: `_admit` when the head of a call has arrived, `_ready` when the message
is complete. `_ready` reads and submits a ModelInfer call on the I/O thread, and the engine may run it there. The
thread that ends the request sends the answer. Other unary calls, and streams, run on small thread pools. No Python
thread waits for the client of a unary call.
"""

import functools
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import orjson

from ksrv._native.grpc.grpc_call import Call
from ksrv._native.grpc.grpc_server import GrpcServer
from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv._native.queue.request_handle import NativeHandle
from ksrv._native.reactor.connection_limits import ConnectionLimits
from ksrv._native.reactor.event_loop import EventLoop
from ksrv._native.server.model_endpoint import ModelEndpoint
from ksrv._native.tls.tls_context import TlsContext
from ksrv.engine.available_memory import bytes_in_flight
from ksrv.errors import KsrvError, Overloaded, RequestTooSlow
from ksrv.limits import Limits, limit_name
from ksrv.observe.traffic import Traffic, counted_traffic, unwatch_connections, watch_connections
from ksrv.protocol.grpc import MAX_MESSAGE
from ksrv.request import InferRequest, InferResponse, RequestHandle
from ksrv.server.call import Find, deliver, run_infer
from ksrv.server.grpc import limits as bounds
from ksrv.server.grpc.calls import Incoming, Message, refuse, trailing
from ksrv.server.grpc.messages import inflated_message
from ksrv.server.grpc.services import Method, OtherMethods, Services, permitted
from ksrv.server.http.access_log import RecordWriter, write_calls
from ksrv.server.http.byte_budget import Reservation
from ksrv.server.settings import ServerSettings
from ksrv.server.shared.parts import ServerParts

POLL_SECONDS = 0.01
"""The pause between two looks at the open connections when the server stops."""


class NativeGrpcServer:
    """A gRPC server over an engine.

    Args:
        loop: The worker's event loop.
        parts: The parts that the front ends share.
        others: See `Services`.
    """

    def __init__(
        self, loop: EventLoop, parts: ServerParts, others: OtherMethods | None = None
    ) -> None:
        self._loop = loop
        self._engine = parts.engine
        self._settings = parts.settings
        self._services = Services(parts, others)
        self._infer_pool = self._services.pool("infer", bounds.CALL_THREADS)
        self._budget = self._services.budget
        self._methods = self._services.methods
        self._listener: socket.socket | None = None
        self._core: GrpcServer | None = None
        self._access_log: RecordWriter | None = None
        # When the grace period ends, on the clock of time.monotonic; None before `begin_stop`.
        self._end: float | None = None
        self._stopped = False

    # ---- life -------------------------------------------------------------------------------

    def start(
        self, listener: socket.socket, *, tls: TlsContext | None = None, http_address: str = ""
    ) -> None:
        """Serve.

        Args:
            listener: A socket that listens, which other workers share.
            tls: The TLS settings of all connections; None for cleartext.
            http_address: The address of REST, for the answer to clients of HTTP/1.1 that call this address.
        """
        self._listener = listener
        core = self._core = GrpcServer(
            self._loop,
            self._methods,
            self._ready,
            self._admit,
            self._deliver,
            self._budget,
            ConnectionLimits(
                self._settings,
                max_connections=bounds.most_connections(self._settings.max_connections),
                keepalive=bounds.IDLE_CONNECTION_SECONDS,
            ),
            self._config(),
            tls,
            misdirected_body(http_address),
        )
        listener.setblocking(False)
        core.listen([listener.fileno()])
        core.accept(True)
        watch_connections(self.traffic)
        if self._settings.access_log:
            self._access_log = RecordWriter(
                "ksrv-grpc-access-log", lambda: write_calls(core.records(), self._services.proxies)
            )
            self._access_log.start()

    @property
    def last_connected(self) -> float:
        """When a client was last connected, on the clock of `time.monotonic`; 0 if none ever was."""
        return 0.0 if self._core is None else self._core.last_connected

    def _config(self) -> dict[str, Any]:
        """Return the settings of the native server."""
        settings = self._settings
        limits = settings.limits
        return {
            "streams": bounds.CONCURRENT_STREAMS,
            "message": min(limits.body, MAX_MESSAGE, bytes_in_flight(limits)),
            "message_by_budget": bytes_in_flight(limits) < limits.body,
            "small_message": self._services.small.body,
            "head": limits.head,
            "calls": bounds.MAX_CALLS,
            "log": settings.access_log,
            "checks_callers": self._services.access.needs_token,
            "own_hosts": self._services.access.own_hosts,
            "decompress": settings.decompress_requests,
        }

    def begin_stop(self, grace: float, *, replaced: bool = False) -> None:
        """Stop accepting calls; accepted calls have `grace` seconds to finish.

        Clients are notified (GOAWAY), and calls that they sent before they knew are still answered. Streams end after
        the answers to the messages that they accepted. Watchers of health are notified.

        Args:
            grace: Seconds after which the remaining calls are cut off.
            replaced: Whether another worker accepts from the same listener; makes no difference here.
        """
        if self._core is None or self._end is not None:
            return
        self._end = time.monotonic() + grace
        self._services.begin_stop()
        self._core.accept(False)
        if self._listener is not None:
            self._listener.close()
        self._core.drain()

    def stop(self, grace: float) -> None:
        """Stop, and return when no call is left. Calling it again does nothing."""
        self.begin_stop(grace)
        core = self._core
        if core is None or self._end is None or self._stopped:
            return
        self._stopped = True
        while core.open_connections and time.monotonic() < self._end:
            time.sleep(POLL_SECONDS)
        core.close_all()
        if self._access_log is not None:
            self._access_log.close()
        self._services.stop()
        unwatch_connections(self.traffic)

    def set_routes(self, routes: Sequence[tuple[str, str, ModelEndpoint]]) -> None:
        """Set the models whose calls the native server may queue without Python.

        Args:
            routes: Name, version and endpoint, as for `HttpServer.set_routes`.
        """
        if self._core is not None and not self._stopped:
            self._core.set_routes(routes)

    def traffic(self) -> Traffic:
        """Return the native server's counters. Python counts the calls that it refuses."""
        if self._core is None:
            return Traffic()
        counters = self._core.counters()
        errors = {"DEADLINE_EXCEEDED": counters["late"]} if counters["late"] else {}
        return counted_traffic("grpc", counters, errors)

    # ---- unary calls ------------------------------------------------------------------------

    def _ready(self, call: Call) -> None:
        """Serve a call whose message is complete, or a new stream. Runs on an I/O thread, so it must not wait."""
        if not call.is_active():  # checked again by the methods below that run later on a pool
            return
        method = self._methods[call.path]
        try:
            # `_admit` has not run for streams. Calls that change the server are checked here in any case.
            if not call.admitted:
                self._services.check(method, call)
                call.admit()
            if method.stream is not None:
                assert method.pool is not None, "streams have a pool"
                method.pool.submit(self._run_stream, method, call)
                return
            message, compressed = call.message()
            if method.answer is not None:
                assert method.pool is not None, "a method with an answer has a pool"
                method.pool.submit(self._answer, method, call, message, compressed)
            elif compressed:
                self._infer_pool.submit(self._infer_later, method, call, message)
            else:
                infer = NativeInferCall(method, call, message)
                run_infer(infer, self._engine, waits=False)
        except Exception as error:  # noqa: BLE001  (becomes the answer)
            refuse(call, error)

    def _admit(self, call: Call) -> None:
        """Check a caller before the message arrives. Runs on an I/O thread."""
        try:
            self._services.check(self._methods[call.path], call)
        except Exception as error:  # noqa: BLE001  (becomes the answer)
            refuse(call, error)
        else:
            call.admit()

    def _answer(self, method: Method, call: Call, message: Message, compressed: bool) -> None:
        """Answer a unary call that does not run in the engine, on the pool of the method."""
        assert method.answer is not None, "only methods with an answer go to a pool"
        if not call.is_active():
            return
        try:
            with opened(
                call, message, method.limits, self._budget, compressed=compressed
            ) as written:
                made = method.answer(written, call)
            send(call, made)
        except Exception as error:  # noqa: BLE001  (becomes the answer)
            refuse(call, error)

    def _infer_later(self, method: Method, call: Call, message: Message) -> None:
        """Serve a call whose message is compressed, on a pool, because inflating may take long."""
        if call.is_active():
            inflated = opened(call, message, method.limits, self._budget, compressed=True)
            run_infer(NativeInferCall(method, call, inflated), self._engine, waits=True)

    def _deliver(self, call: Call, request: InferRequest, answer: object) -> None:
        """Send the answer of a request that the fast path read, but whose answer only Python can write."""
        infer = NativeInferCall(self._methods[call.path], call, request=request)
        if isinstance(answer, InferResponse):
            deliver(infer, answer)
        else:
            assert isinstance(answer, Exception), "a request ends with a response or an error"
            infer.refuse(answer)

    # ---- streams ----------------------------------------------------------------------------

    def _run_stream(self, method: Method, call: Call) -> None:
        """Serve a stream on a thread of the method's pool until it ends."""
        assert method.stream is not None, "only streams run as such"
        if not call.is_active():
            return
        source = functools.partial(stream_messages, call, method, self._settings, self._budget)
        try:
            with permitted(method, call):
                for answer in method.stream(source, call):
                    # None: no room in the memory budget. False: the call has ended.
                    goes_on = call.write(answer)
                    if goes_on is None:
                        raise no_room_for_answer(len(answer))
                    if not goes_on:
                        break
            call.finish()
        except Exception as error:  # noqa: BLE001  (becomes the answer)
            refuse(call, error)


class NativeInferCall:
    """An `InferCall` of the native server: a unary call, whose caller was checked before.

    Args:
        method: The call's method.
        call: The native call.
        message: The message, or for a compressed message the context that inflates it.
        request: The request, if the fast path has read it.
    """

    __slots__ = ("_call", "_form", "_message", "_request")
    blocks = may_run = False

    def __init__(
        self,
        method: Method,
        call: Call,
        message: "Message | AbstractContextManager[Message]" = b"",
        request: InferRequest | None = None,
    ) -> None:
        assert method.infer is not None, "a unary call has an answer, or runs in the engine"
        self._form = method.infer
        self._call = call
        self._message = message
        self._request = request

    def authorize(self) -> None:
        """See `InferCall.authorize`: the caller was checked before the message was received."""

    def read(self, find: Find) -> InferRequest:
        """See `InferCall.read`."""
        message, call = self._message, self._call
        if isinstance(message, bytes | memoryview):
            self._request = request = self._form.read(message, call, find)
            call.give_back_bytes()  # from now on the engine's queue counts the request in the memory budget
        else:
            with message as written:
                self._request = request = self._form.read(written, call, find)
        return request

    def watch(self, handle: RequestHandle) -> None:
        """See `InferCall.watch`."""
        if isinstance(handle, NativeHandle):
            self._call.watch(handle)

    def send(self, response: InferResponse) -> None:
        """See `InferCall.send`."""
        assert self._request is not None, "a request that has a response was read"
        message = self._form.render(response, self._request, self._call)
        metadata = trailing(response.headers) if response.headers else None
        send(self._call, message, metadata)

    def refuse(self, error: Exception) -> None:
        """See `InferCall.refuse`."""
        refuse(self._call, error)


def send(
    call: Call, message: bytes | list[Any], metadata: list[tuple[str, str]] | None = None
) -> None:
    """Answer a unary call.

    Raises:
        Overloaded: The memory budget has no room for the answer.
    """
    if not call.answer(message, metadata):
        parts = message if isinstance(message, list) else [message]
        raise no_room_for_answer(sum(memoryview(part).nbytes for part in parts))


@contextmanager
def opened(
    call: Call, message: Message, limits: Limits, budget: MemoryBudget, *, compressed: bool
) -> Iterator[Message]:
    """Yield a received message, inflated if necessary. The end of the context returns its bytes to the memory budget.

    Args:
        call: The message's call, which counted the bytes as they arrived.
    """
    reservation = Reservation(budget)
    try:
        if compressed:
            assert call.encoding is not None, "the native server lets no other encoding through"
            message = inflated_message(message, call.encoding, limits, reservation)
        yield message
    finally:
        reservation.close()
        call.give_back_bytes()


def stream_messages(
    call: Call,
    method: Method,
    settings: ServerSettings,
    budget: MemoryBudget,
    idle: Callable[[], bool],
    fail: Callable[[KsrvError], None],
) -> Iterator[Incoming]:
    """Yield the messages of a stream until its client sends no more, none arrives in time, or the call has ended.

    Args:
        idle: Returns whether the call waits only for a message, and not for an answer of the engine.
        fail: Gets the error if no message arrived in time.
    """
    timeout = settings.head_timeout if method.one_message else bounds.STREAM_TIMEOUT_SECONDS
    while True:
        # None: the client sends no more, or the call has ended. False: no message arrived within the timeout.
        found = call.next_message(timeout)
        if found is None or found is True:  # never True, but mypy does not know it
            return
        if found is not False:
            message, compressed = found
            yield functools.partial(
                opened, call, message, method.limits, budget, compressed=compressed
            )
        elif idle():
            fail(
                RequestTooSlow(
                    f"no whole request message arrived within {timeout:.3g} s; it must begin "
                    f"in time and make {settings.min_transfer_rate} bytes a second, which setting "
                    "'min_transfer_rate' asks for"
                )
            )
            return


def misdirected_body(http_address: str) -> bytes:
    """Return the JSON with which the gRPC address answers HTTP/2 requests that are not gRPC.

    Args:
        http_address: The address of REST: "http://host:port", "https://host:port" or "unix:path"; "" if it is unknown.
    """
    rest = "REST has another address"
    if http_address.startswith("unix:"):
        rest = "REST is at a unix socket of this machine"  # without the path, because strangers ask
    elif http_address:
        rest = f"REST is at {http_address}"
        for anywhere in ("://0.0.0.0:", "://[::]:"):
            scheme, found, port = http_address.partition(anywhere)
            if found:
                rest = f"REST is on port {port} of this machine ({scheme}://)"
    return orjson.dumps(
        {"error": f"this address speaks gRPC over HTTP/2, and the request is not gRPC; {rest}"}
    )


def no_room_for_answer(nbytes: int) -> Overloaded:
    """Return the error for an answer that exceeds the memory budget."""
    return Overloaded(
        f"the answer holds {nbytes} bytes, and requests and answers in flight have reached the "
        f"{limit_name('in_flight')}",
        "bytes_in_flight",
    )
