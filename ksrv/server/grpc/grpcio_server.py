"""The gRPC front end on grpcio, for machines without libnghttp2: the same services on its public interface.

grpcio shows a message once it is complete, in memory that it does not bound, and each call holds a thread
until it is answered. `grpc` is imported when the server starts, which is after gunicorn has forked.
"""

import functools
import math
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from ksrv._native.protobuf.infer_response import MAX_MESSAGE
from ksrv.engine.available_memory import bytes_in_flight
from ksrv.errors import InvalidRequest, KsrvError
from ksrv.request import InferRequest, InferResponse, RequestHandle
from ksrv.server.call import Find, run_infer
from ksrv.server.grpc import limits as bounds
from ksrv.server.grpc.calls import Message, error_metadata, report_grpc, trailing
from ksrv.server.grpc.messages import admitted
from ksrv.server.grpc.services import Method, OtherMethods, Permitted, Services
from ksrv.server.grpc.stream import Incoming
from ksrv.server.http.access_log import write_calls
from ksrv.server.http.request_ids import choose_request_id
from ksrv.server.settings import ServerSettings
from ksrv.server.shared.parts import ServerParts

if TYPE_CHECKING:
    import grpc

INFER_THREADS = 256
"""Requests of ModelInfer that are under way at a time at least; each holds a thread."""

NO_AGE_MS = (1 << 31) - 1
"""grpcio's word for connections of any age."""

SECOND_NS = 1_000_000_000
ID_KEY, TRACE_KEY = "x-request-id", "traceparent"
FOREVER_S = 1e9
"""A deadline further away counts as none, because grpc represents "no deadline" as a distant deadline."""


def channel_options(settings: ServerSettings, *, shared: bool) -> list[tuple[str, int]]:
    """Return grpcio's options.

    Args:
        shared: Whether several workers share the port on purpose.
    """
    limits = settings.limits
    # A message that the budget could never admit is refused before it is received.
    message = min(limits.body, MAX_MESSAGE, bytes_in_flight(limits))
    options = [
        ("grpc.max_receive_message_length", message),
        ("grpc.max_send_message_length", min(limits.body, MAX_MESSAGE)),
        # grpcio would inflate without a bound, and before the caller's credentials are checked.
        ("grpc.per_message_decompression", 0),
        ("grpc.max_concurrent_streams", bounds.CONCURRENT_STREAMS),
        ("grpc.max_metadata_size", limits.head),
        ("grpc.absolute_max_metadata_size", limits.head),
        (
            "grpc.max_allowed_incoming_connections",
            bounds.most_connections(settings.max_connections),
        ),
        ("grpc.server_handshake_timeout_ms", max(1, int(settings.head_timeout * 1000))),
        ("grpc.max_connection_idle_ms", int(bounds.IDLE_CONNECTION_SECONDS * 1000)),
        ("grpc.max_connection_age_ms", _age_ms(settings.max_connection_age)),
        # Without this a second server would share the port silently.
        ("grpc.so_reuseport", int(shared)),
        # Triton's keepalive, except that clients may ping every 10 s, also without a call.
        ("grpc.keepalive_time_ms", 7_200_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 2),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 2),
    ]
    if (
        not settings.decompress_requests
    ):  # grpcio then refuses compressed messages, and names the encodings that it accepts
        options.append(("grpc.compression_enabled_algorithms_bitset", 1))
    return options


def _age_ms(seconds: float) -> int:
    """Return grpcio's form of an age; its largest number means none, and it spreads the others itself."""
    return min(max(1, int(seconds * 1000)), NO_AGE_MS) if seconds else NO_AGE_MS


class GrpcioCall:
    """A call of grpcio's with the methods that the services use; an `InferCall`, if its method runs in the engine.

    Args:
        path: The method's path.
        method: The method.
        context: grpcio's `ServicerContext`.

    Attributes:
        path: As given.
        message: The message, once it is received.
        answer: The answer's message, or why the call failed, once it was answered.
        request_id: The call's id, which is sent to the client.
    """

    blocks = may_run = True

    def __init__(self, path: str, method: Method, context: "grpc.ServicerContext") -> None:
        self.path = path
        self._form = method.infer
        self._request: InferRequest | None = None
        self.message: Message = b""
        self.answer: bytes | Exception = b""
        self._context: Any = context
        given = [entry.value for entry in context.invocation_metadata() if entry.key == ID_KEY]
        trace = [entry.value for entry in context.invocation_metadata() if entry.key == TRACE_KEY]
        self.request_id = choose_request_id(",".join(given), ",".join(trace))
        self.model, self.version = "", ""
        self.began_ns = time.monotonic_ns()
        context.send_initial_metadata(((ID_KEY, self.request_id),))

    def metadata(self) -> dict[str, str]:
        """Return the text metadata, names in lower case; binary entries are left out."""
        found = {
            entry.key: entry.value
            for entry in self._context.invocation_metadata()
            if isinstance(entry.value, str)
        }
        return found | {ID_KEY: self.request_id}

    @property
    def authorization(self) -> str | None:
        """The entry of that name, or None."""
        return self.metadata().get("authorization")

    @property
    def host(self) -> str:
        """The call's `:authority`, or its `host`; "" without either. grpcio names it nowhere else."""
        return str(self._context._rpc_event.call_details.host.decode("latin-1"))

    @property
    def repeats_authorization(self) -> bool:
        """Whether there is more than one entry of that name."""
        names = [str(entry.key) for entry in self._context.invocation_metadata()]
        return names.count("authorization") > 1

    @property
    def sampled(self) -> bool:
        """False: this server has no fast path, and leaves the choice to the recording."""
        return False

    def note_model(self, model: str, version: str) -> None:
        """Name the model in the access log."""
        self.model, self.version = model, version

    def client_user(self) -> None:
        """Return None: grpcio does not say who is at the other end of a unix socket."""

    def peer_address(self) -> str:
        """Return the caller's IP address, or "" for a unix socket."""
        kind, _, rest = str(self._context.peer()).partition(":")
        if kind == "ipv4":
            return rest.rpartition(":")[0]
        if kind == "ipv6":
            return urllib.parse.unquote(rest).rpartition(":")[0].strip("[]")
        return ""

    @property
    def deadline_ns(self) -> int | None:
        """The `time.monotonic_ns` of the deadline, or None."""
        left = self._context.time_remaining()
        if left is None or not math.isfinite(left) or left > FOREVER_S:
            return None
        return time.monotonic_ns() + int(left * SECOND_NS)

    def is_active(self) -> bool:
        """Tell whether the call has neither ended nor been answered."""
        return bool(self._context.is_active())

    def add_callback(self, callback: Callable[[], object]) -> bool:
        """Have a function called when the call ends; False where it has ended."""
        return bool(self._context.add_callback(callback))

    def authorize(self) -> None:
        """See `InferCall.authorize`: the caller was checked before the message was received."""

    def read(self, find: Find) -> InferRequest:
        """See `InferCall.read`."""
        assert self._form is not None, "the method runs in the engine"
        self._request = self._form.read(self.message, self, find)
        return self._request

    def watch(self, handle: RequestHandle) -> None:
        """See `InferCall.watch`."""
        if not self.add_callback(handle.cancel):
            handle.cancel()

    def send(self, response: InferResponse) -> None:
        """See `InferCall.send`: grpcio sends what its handler returns."""
        assert self._form is not None and self._request is not None, "the request was read"
        if response.headers:
            self._context.set_trailing_metadata(tuple(trailing(response.headers)))
        written = self._form.render(response, self._request, self)
        self.answer = written if isinstance(written, bytes) else b"".join(written)

    def refuse(self, error: Exception) -> None:
        """See `InferCall.refuse`: grpcio's handler raises it."""
        self.answer = error


class GrpcioServer:
    """A gRPC server over an engine.

    Args:
        parts: The parts that the front ends share.
        others: See `Services`.
    """

    def __init__(self, parts: ServerParts, others: OtherMethods | None = None) -> None:
        self._engine = parts.engine
        self._settings = parts.settings
        self._services = Services(parts, others)
        self._server: Any = None
        self._stopped: threading.Event | None = None

    def start(
        self,
        address: str,
        *,
        shared: bool = False,
        credentials: "grpc.ServerCredentials | None" = None,
    ) -> int:
        """Listen and serve.

        Args:
            address: "host:port" or "unix:path"; port 0 lets the system choose.
            shared: Whether other workers listen on the same port.
            credentials: The credentials of TLS; None without TLS.

        Returns:
            The port; 1 for a unix socket.

        Raises:
            RuntimeError: The address is taken or does not exist.
        """
        import grpc

        infer = self._services.pool("infer", max(INFER_THREADS, 2 * self._settings.threads))
        self._server = grpc.server(
            infer,
            options=channel_options(self._settings, shared=shared),
            maximum_concurrent_rpcs=bounds.MAX_CALLS,
        )
        for service in self._services.services():
            handlers = {
                path.rpartition("/")[2]: self._handler(path, method)
                for path, method in self._services.methods.items()
                if path.startswith(f"/{service}/")
            }
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, handlers),)
            )
        if credentials is None:
            port = int(self._server.add_insecure_port(address))
        else:
            port = int(self._server.add_secure_port(address, credentials))
        self._server.start()
        return port

    @property
    def last_connected(self) -> float:
        """When a client was last connected: now, because grpcio does not tell."""
        return time.monotonic()

    def begin_stop(self, grace: float, *, replaced: bool = False) -> None:
        """Stop accepting calls; those accepted have `grace` seconds to finish.

        grpcio cancels calls that a client sends before it learns of the stop.

        Args:
            grace: Seconds after which calls that are left are cancelled.
            replaced: Whether another worker listens on the port.
        """
        if self._server is None or self._stopped is not None:
            return
        self._services.begin_stop()
        self._stopped = self._server.stop(grace)

    def stop(self, grace: float) -> None:
        """Stop, and return when no call is left; further calls do nothing."""
        self.begin_stop(grace)
        if self._stopped is not None:
            self._stopped.wait()
        self._services.stop()

    def _handler(self, path: str, method: Method) -> Any:
        """Return grpcio's handler of a method.

        Each is registered with a stream of requests, because grpcio receives a message of a stream only
        when it is asked for, and so after the credentials were checked.
        """
        import grpc

        if method.stream is not None:
            return grpc.stream_stream_rpc_method_handler(
                _in_pool(functools.partial(self._stream, path, method), method.pool)
            )
        behavior = functools.partial(self._unary, path, method)
        return grpc.stream_unary_rpc_method_handler(_in_pool(behavior, method.pool))

    def _unary(  # noqa: RET503 - abort raises
        self, path: str, method: Method, messages: Iterator[bytes], context: Any
    ) -> bytes:
        call = GrpcioCall(path, method, context)
        try:
            self._services.check(method, call)
            for received in messages:
                message, reservation = admitted(received, method.limits, self._services.budget)
                with reservation:
                    made = self._answer(method, message, call)
                self._write_call(call, "OK", len(made))
                return made
            raise InvalidRequest("the call requires exactly one request message")
        except Exception as error:  # noqa: BLE001 - the boundary to grpcio, which hides them
            self._give_up_if_over(call, error)
            failure = report_grpc(error, call)
            self._write_call(call, failure.grpc_code, 0)
        _abort(context, call, failure)

    def _answer(self, method: Method, message: Message, call: GrpcioCall) -> bytes:
        if method.answer is not None:
            return method.answer(message, call)
        call.message = message
        run_infer(call, self._engine, waits=True)
        if isinstance(call.answer, Exception):
            raise call.answer
        return call.answer

    def _stream(
        self, path: str, method: Method, messages: Iterator[bytes], context: Any
    ) -> Iterator[bytes]:
        call = GrpcioCall(path, method, context)
        sent = 0
        try:
            self._services.check(method, call)
            assert method.stream is not None, "only streams run as such"
            with Permitted(method, call):
                for made in method.stream(functools.partial(self._source, method, messages), call):
                    sent += len(made)
                    yield made
            self._write_call(call, "OK" if call.is_active() else "CANCELLED", sent)
            return
        except GeneratorExit:
            self._write_call(call, "CANCELLED", sent)
            raise
        except Exception as error:  # noqa: BLE001 - the boundary to grpcio, which hides them
            self._give_up_if_over(call, error)
            failure = report_grpc(error, call)
            self._write_call(call, failure.grpc_code, sent)
        _abort(context, call, failure)

    def _give_up_if_over(self, call: GrpcioCall, error: Exception) -> None:
        """Raise grpcio's own word that the call is over once more."""
        import grpc

        if isinstance(error, grpc.RpcError):
            self._write_call(call, "CANCELLED", 0)
            raise error

    def _write_call(self, call: GrpcioCall, status: str, sent: int) -> None:
        """Write a call into the access log, if it is on."""
        if self._settings.access_log:
            took = (time.monotonic_ns() - call.began_ns) / SECOND_NS
            names = ("authorization", "forwarded", "x-forwarded-for")
            lines = (
                f"{key}: {value}\r\n" for key, value in call.metadata().items() if key in names
            )
            caller = "".join(lines).encode("latin-1", "replace")
            shown = (call.peer_address(), call.request_id, call.model, call.version, caller)
            write_calls([(call.path, took, status, sent, *shown)], self._services.proxies)

    def _source(
        self,
        method: Method,
        messages: Iterator[bytes],
        idle: Callable[[], bool],
        fail: Callable[[KsrvError], None],
    ) -> Iterator[Incoming]:
        """Yield the messages of a stream until it ends."""
        import grpc

        @contextmanager
        def opened(message: bytes) -> Iterator[bytes]:
            written, reservation = admitted(message, method.limits, self._services.budget)
            with reservation:
                yield written

        try:
            for message in messages:
                yield functools.partial(opened, message)
        except grpc.RpcError:
            return  # the client cancelled the call, or its connection is gone


def _abort(context: Any, call: GrpcioCall, error: KsrvError) -> NoReturn:
    """End a call with an error; raises grpcio's exception for that."""
    import grpc

    context.set_trailing_metadata((*(error_metadata(error) or ()), (ID_KEY, call.request_id)))
    context.abort(getattr(grpc.StatusCode, error.grpc_code), error.message)
    raise AssertionError("abort returned")


def _in_pool(behavior: Callable[[Any, Any], Any], pool: Any) -> Any:
    """Return a behavior that grpcio runs in `pool` rather than in the server's pool."""

    def call(requests: Any, context: Any) -> Any:
        return behavior(requests, context)

    call.experimental_thread_pool = pool  # type: ignore[attr-defined]
    return call
