"""The gRPC front end on grpcio, for machines without libnghttp2. It has the same services as the native server.

Each call occupies a thread until it is answered (`GrpcioServer._serve`), and grpcio holds incomplete messages in memory
that ksrv does not count. `grpc` is imported when the server starts, after gunicorn has forked, because grpcio does not
support a fork after its first use.
"""

import functools
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from ksrv._native.server.exchange import choose_request_id
from ksrv.engine.available_memory import bytes_in_flight
from ksrv.errors import InvalidRequest
from ksrv.protocol.grpc import MAX_MESSAGE
from ksrv.request import InferRequest, RequestHandle
from ksrv.server.call import Find, StoredCall, run_infer
from ksrv.server.grpc import limits as bounds
from ksrv.server.grpc.calls import Incoming, Message, error_metadata, report_grpc, trailing
from ksrv.server.grpc.messages import admitted
from ksrv.server.grpc.services import Method, OtherMethods, Services, permitted
from ksrv.server.http.access_log import write_calls
from ksrv.server.settings import ServerSettings
from ksrv.server.shared.parts import ServerParts

if TYPE_CHECKING:
    import grpc

CALL_THREADS = 256
"""The threads for calls, or more if the setting `threads` is large. Each running call occupies a thread."""

NO_AGE_MS = (1 << 31) - 1
"""The value with which grpcio does not limit the age of connections."""

ID_KEY, TRACE_KEY = "x-request-id", "traceparent"
FOREVER_S = 1e9
"""A deadline that is further away counts as no deadline, because grpcio reports "no deadline" as a distant deadline."""


def channel_options(settings: ServerSettings) -> dict[str, int]:
    """Return grpcio's options."""
    limits, age = settings.limits, settings.max_connection_age
    options = {
        # A message that the budget could never admit is refused before it is received.
        "grpc.max_receive_message_length": min(limits.body, MAX_MESSAGE, bytes_in_flight(limits)),
        "grpc.max_send_message_length": min(limits.body, MAX_MESSAGE),
        # Off, because grpcio would inflate without a bound, and before the caller is checked. See `messages.py`.
        "grpc.per_message_decompression": 0,
        "grpc.max_concurrent_streams": bounds.CONCURRENT_STREAMS,
        "grpc.max_metadata_size": limits.head,
        "grpc.absolute_max_metadata_size": limits.head,
        "grpc.max_allowed_incoming_connections": bounds.most_connections(settings.max_connections),
        "grpc.server_handshake_timeout_ms": max(1, int(settings.head_timeout * 1000)),
        "grpc.max_connection_idle_ms": int(bounds.IDLE_CONNECTION_SECONDS * 1000),
        # grpcio adds a random part to the age, so that clients do not reconnect at the same time.
        "grpc.max_connection_age_ms": min(max(1, int(age * 1000)), NO_AGE_MS) if age else NO_AGE_MS,
        "grpc.so_reuseport": 1,  # all workers listen on the port, which the master has bound
        # Clients may ping every 10 s, also without a call. The other keepalive options have grpcio's defaults, as
        # Triton's server has.
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.min_ping_interval_without_data_ms": 10_000,
    }
    if not settings.decompress_requests:
        # grpcio then refuses compressed messages, and names the encodings that it accepts.
        options["grpc.compression_enabled_algorithms_bitset"] = 1
    return options


class GrpcioCall(StoredCall):
    """A call of grpcio, with the methods of the native server's `Call`; also an `InferCall`, for calls of the engine.

    Args:
        path: The method's path.
        method: The method.
        context: grpcio's `ServicerContext`.

    Attributes:
        path: The method's path.
        message: The received message; empty before.
        request_id: The call's id, which is sent to the client.
        blocks, may_run: See `InferCall`. The call's thread waits in `_serve`, and may run the request itself.
        sampled: Always False. Only a fast path chooses requests for recording; otherwise the recording chooses.
    """

    blocks = may_run = True
    sampled = False

    def __init__(self, path: str, method: Method, context: "grpc.ServicerContext") -> None:
        super().__init__()
        self.path = path
        self._form = method.infer
        self._request: InferRequest | None = None
        self.message: Message = b""
        self._context: Any = context
        self._entries = [(entry.key, entry.value) for entry in context.invocation_metadata()]
        self.request_id = choose_request_id(self._joined(ID_KEY), self._joined(TRACE_KEY))
        self.model, self.version = "", ""
        self.began_s = time.monotonic()
        context.send_initial_metadata(((ID_KEY, self.request_id),))

    def _joined(self, name: str) -> str:
        return ",".join(str(value) for key, value in self._entries if key == name)

    def metadata(self) -> dict[str, str]:
        """Return the text metadata, names in lower case; binary entries are left out."""
        found = {key: value for key, value in self._entries if isinstance(value, str)}
        return found | {ID_KEY: self.request_id}

    @property
    def authorization(self) -> str | None:
        """The `authorization` entry of the metadata, or None."""
        return self.metadata().get("authorization")

    @property
    def host(self) -> str:
        """The call's `:authority`, or its `host`; "" without either. grpcio has no public name for it."""
        return str(self._context._rpc_event.call_details.host.decode("latin-1"))

    @property
    def repeats_authorization(self) -> bool:
        """Whether the metadata has several `authorization` entries."""
        return [key for key, _ in self._entries].count("authorization") > 1

    def note_model(self, model: str, version: str) -> None:
        """Name the model in the access log."""
        self.model, self.version = model, version

    def client_user(self) -> None:
        """Return None, because grpcio does not report the user at the other end of a unix socket."""

    def peer_address(self) -> str:
        """Return the caller's IP address, or "" for a unix socket."""
        kind, _, rest = urllib.parse.unquote(str(self._context.peer())).partition(":")
        return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else ""

    @property
    def deadline_ns(self) -> int | None:
        """The `time.monotonic_ns` of the deadline, or None."""
        left = self._context.time_remaining()
        if left is None or left > FOREVER_S:
            return None
        return time.monotonic_ns() + int(left * 1e9)

    def is_active(self) -> bool:
        """Return whether the call has neither ended nor been answered."""
        return bool(self._context.is_active())

    def add_callback(self, callback: Callable[[], object]) -> bool:
        """Have a function called when the call ends. Return False if it has ended already."""
        return bool(self._context.add_callback(callback))

    def read(self, find: Find) -> InferRequest:
        """See `InferCall.read`."""
        assert self._form is not None, "the method runs in the engine"
        self._request = self._form.read(self.message, cast(Any, self), find)
        return self._request

    def watch(self, handle: RequestHandle) -> None:
        """See `InferCall.watch`."""
        if not self.add_callback(handle.cancel):
            handle.cancel()

    def rendered(self) -> bytes:
        """Return the message of the response; grpcio sends what its handler returns.

        Raises:
            KsrvError: The call failed.
        """
        response = self.response()
        assert self._form is not None and self._request is not None, "the request was read"
        if response.headers:
            self._context.set_trailing_metadata(tuple(trailing(response.headers)))
        written = self._form.render(response, self._request, cast(Any, self))
        return written if isinstance(written, bytes) else b"".join(written)


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

    def start(self, address: str, *, credentials: "grpc.ServerCredentials | None" = None) -> int:
        """Listen and serve.

        Args:
            address: "host:port" or "unix:path"; port 0 lets the system choose.
            credentials: The credentials of TLS; None without TLS.

        Returns:
            The port; 1 for a unix socket.

        Raises:
            RuntimeError: The address is taken or does not exist.
        """
        import grpc

        self._server = grpc.server(
            self._services.pool("call", max(CALL_THREADS, 2 * self._settings.threads)),
            (self,),
            options=list(channel_options(self._settings).items()),
            maximum_concurrent_rpcs=bounds.MAX_CALLS,
        )
        if credentials is None:
            port = int(self._server.add_insecure_port(address))
        else:
            port = int(self._server.add_secure_port(address, credentials))
        self._server.start()
        return port

    def service(self, details: Any) -> Any:
        """Return grpcio's handler of a call: see `grpc.GenericRpcHandler`.

        Unary calls are registered as streams, too, because grpcio receives a message of a stream only when the handler
        asks for it: after the caller was checked.
        """
        import grpc

        method = self._services.methods.get(details.method)
        if method is None:
            return None
        return grpc.stream_stream_rpc_method_handler(
            functools.partial(self._serve, details.method, method)
        )

    @property
    def last_connected(self) -> float:
        """When a client was last connected: always now, because grpcio does not report connections."""
        return time.monotonic()

    def begin_stop(self, grace: float, *, replaced: bool = False) -> None:
        """Stop accepting calls; accepted calls have `grace` seconds to finish.

        grpcio cancels calls that a client sends before it learns of the stop.

        Args:
            grace: Seconds after which the remaining calls are cancelled.
            replaced: Whether another worker listens on the port; makes no difference here.
        """
        if self._server is None or self._stopped is not None:
            return
        self._services.begin_stop()
        self._stopped = self._server.stop(grace)

    def stop(self, grace: float) -> None:
        """Stop, and return when no call is left. Calling it again does nothing."""
        self.begin_stop(grace)
        if self._stopped is not None:
            self._stopped.wait()
        self._services.stop()

    def _serve(
        self, path: str, method: Method, messages: Iterator[bytes], context: Any
    ) -> Iterator[bytes]:
        """Serve a call on a thread of grpcio's pool: check the caller, then yield the answers or end with an error."""
        import grpc

        call = GrpcioCall(path, method, context)
        sent, status = 0, "CANCELLED"
        try:
            self._services.check(method, call)
            for made in self._answers(method, messages, call):
                sent += len(made)
                yield made
            status = "OK" if call.is_active() else status
        except grpc.RpcError:  # the call has ended already
            raise
        except Exception as error:  # noqa: BLE001 - grpcio would answer UNKNOWN without details
            failure = report_grpc(error, cast(Any, call))
            status = failure.grpc_code
            context.set_trailing_metadata((*error_metadata(failure), (ID_KEY, call.request_id)))
            context.abort(getattr(grpc.StatusCode, status), failure.message)  # raises
        finally:
            self._write_call(call, status, sent)

    def _answers(
        self, method: Method, messages: Iterator[bytes], call: GrpcioCall
    ) -> Iterator[bytes]:
        """Yield the answers of a call: one for a unary call, any number for a stream."""
        if method.stream is not None:
            with permitted(method, call):
                # grpcio has no limit for idle streams and late messages, so `Source` gets no functions for them.
                yield from method.stream(lambda *_: self._source(method, messages), call)
            return
        for received in messages:
            with admitted(received, method.limits, self._services.budget) as call.message:
                if method.answer is not None:
                    yield method.answer(call.message, call)
                    return
                run_infer(call, self._engine, waits=True)
                yield call.rendered()
            return
        raise InvalidRequest("the call requires exactly one request message")

    def _source(self, method: Method, messages: Iterator[bytes]) -> Iterator[Incoming]:
        """Yield the messages of a stream until it ends."""
        import grpc

        try:
            for message in messages:
                yield functools.partial(admitted, message, method.limits, self._services.budget)
        except grpc.RpcError:
            return  # the client cancelled the call, or its connection is gone

    def _write_call(self, call: GrpcioCall, status: str, sent: int) -> None:
        """Write a call into the access log, if it is on."""
        if not self._settings.access_log:
            return
        took = time.monotonic() - call.began_s
        names = ("authorization", "forwarded", "x-forwarded-for")
        lines = (f"{key}: {value}\r\n" for key, value in call.metadata().items() if key in names)
        caller = "".join(lines).encode("latin-1", "replace")
        shown = (call.peer_address(), call.request_id, call.model, call.version, caller)
        write_calls([(call.path, took, status, sent, *shown)], self._services.proxies)
