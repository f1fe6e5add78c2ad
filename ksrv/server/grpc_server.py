"""The gRPC front end: one grpcio server in a worker, its services, thread pools and channel options.

grpcio's sync server was chosen over its aio server by measurement: with the same handler behind the
same hand-off, aio took 1.1 to 1.5 times the CPU of sync for a small request (W1), and for 602 KB (W2)
the two were equal within the noise. Taking ModelInfer from the completion queue itself
(`grpc_direct`) took 0.44 to 0.75 times of sync's for W1 and 0.8 to 1.1 times for W2, where copying
rules (`benchmarks/grpc_servers.py`, two busy cores). Deferring an answer in the public way costs 1.1
times sync's CPU for W1, so it is for the many only (`grpc_infer`).
`grpc` is imported when the server starts, which is after gunicorn has forked, and never before.
"""

import functools
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ksrv._native.response import MAX_MESSAGE
from ksrv.protocol.messages import (
    HEALTH,
    INFERENCE,
    REFLECTION,
    REFLECTION_ALPHA,
    methods,
)
from ksrv.protocol.shared_memory import Regions
from ksrv.server.access import Access
from ksrv.server.extensions import extensions_of
from ksrv.server.grpc_calls import (
    Context,
    Gate,
    guarded,
    needs_control,
    needs_token,
    open_to_all,
    streaming,
)
from ksrv.server.grpc_direct import DirectCalls
from ksrv.server.grpc_health import Health
from ksrv.server.grpc_infer import InferCalls, Places, Send
from ksrv.server.grpc_port import listeners, stop_listening
from ksrv.server.grpc_reflection import reflection
from ksrv.server.grpc_servicer import CONTROL, OPEN, Servicer
from ksrv.server.grpc_stream import StreamCalls
from ksrv.server.settings import ServerSettings
from ksrv.server.shared_memory import GuardedRegions, SharedMemory, shared_memory_of

if TYPE_CHECKING:
    import grpc

    from ksrv.engine.engine import Engine

MAX_STREAMS = 64
"""Open streams of all kinds together; each holds a thread, an inference stream two."""

MAX_CALLS = 2048
"""Calls that grpcio holds at a time, their messages included; the engine's queue is far shorter."""

SPARE_THREADS = 4
HEALTH_THREADS = 2
CALL_THREADS = 4
CONTROL_THREADS = 2

HOLD_SECONDS = 0.05
"""How long answers are held before and after clients are told that the server stops; long enough for
them to wait for these answers, and then to have read that."""

END_SECONDS = 1.0
"""How long the threads of calls that have ended may take to go."""


def channel_options(body: int, head: int, *, shared: bool) -> list[tuple[str, int]]:
    """Return grpcio's options.

    Args:
        body: The most bytes of a message, in both directions.
        head: The most bytes of a call's metadata.
        shared: Whether several workers share the port on purpose.
    """
    message = min(body, MAX_MESSAGE)
    return [
        ("grpc.max_receive_message_length", message),
        ("grpc.max_send_message_length", message),
        ("grpc.max_concurrent_streams", 128),
        ("grpc.max_metadata_size", head),
        ("grpc.absolute_max_metadata_size", head),
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


class GrpcServer:
    """A gRPC server over an engine.

    Args:
        engine: Where requests run and what is described.
        settings: Limits, threads and credentials.
        access: Who may call; made from the settings if left out.
        shared_memory: The clients' regions to share with another front end.
    """

    def __init__(
        self,
        engine: "Engine",
        settings: ServerSettings,
        *,
        access: Gate | None = None,
        shared_memory: SharedMemory | None = None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._gate = access if access is not None else Access(settings)
        self._shared_memory = shared_memory or shared_memory_of(settings)
        self._closing = threading.Event()
        self._places = threading.BoundedSemaphore(MAX_STREAMS)
        self._pools: list[ThreadPoolExecutor] = []
        self._streams: StreamCalls | None = None
        self._direct: DirectCalls | None = None
        self._server: Any = None
        self._listening: Collection[int] = ()
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
            credentials: What TLS is served with; None for none.

        Returns:
            The port; 1 for a unix socket.

        Raises:
            RuntimeError: The address is taken or does not exist.
        """
        import grpc

        limits = self._settings.limits
        self._server = grpc.server(
            self._pool("call", CALL_THREADS),
            options=channel_options(limits.body, limits.head, shared=shared),
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        # A few threads more than places, so that a stream too many is refused and does not wait.
        streams = self._pool("stream", MAX_STREAMS + SPARE_THREADS)
        self._server.add_generic_rpc_handlers(
            (
                self._inference(streams),
                self._health(streams),
                self._reflection(REFLECTION, streams),
                self._reflection(REFLECTION_ALPHA, streams),
            )
        )
        before = listeners()
        if credentials is None:
            port = int(self._server.add_insecure_port(address))
        else:
            port = int(self._server.add_secure_port(address, credentials))
        self._server.start()
        self._listening = listeners().keys() - before.keys()
        if self._direct is not None:
            self._direct.start()
        return port

    def begin_stop(self, grace: float, *, replaced: bool = False) -> None:
        """Stop accepting calls; those accepted have `grace` seconds to finish.

        Streams end once they have answered what they accepted, and watchers of health are told.
        What a client sends between the stop and its reading of that is cancelled by grpcio, so
        answers are held around that moment. A client with calls side by side may still lose some.

        Args:
            grace: Seconds after which calls that are left are cancelled.
            replaced: Whether another worker listens on the port, to which new connections go before
                this one stops. grpcio's core logs that its listener was closed.
        """
        if self._server is None or self._stopped is not None:
            return
        self._closing.set()
        if self._streams is not None:
            self._streams.close()
        if self._direct is None:
            self._stopped = self._server.stop(grace)
            return
        if replaced:
            stop_listening(self._listening)
        self._direct.hold()
        time.sleep(HOLD_SECONDS)
        self._direct.begin_stop()
        self._stopped = self._server.stop(grace)
        time.sleep(HOLD_SECONDS)
        self._direct.let_go()

    def stop(self, grace: float) -> None:
        """Stop, and return when no call is left; further calls do nothing."""
        self.begin_stop(grace)
        if self._stopped is not None:
            self._stopped.wait()
            if self._direct is not None:
                self._direct.wait(END_SECONDS)
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self._pools.clear()

    def _pool(self, name: str, threads: int) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(threads, thread_name_prefix=f"ksrv-grpc-{name}")
        self._pools.append(pool)
        return pool

    def _regions_of(self, context: Context) -> Regions | None:
        if self._shared_memory is None:
            return None
        check = functools.partial(needs_control(self._gate), context)
        return GuardedRegions(self._shared_memory, check)

    def _inference(self, streams: ThreadPoolExecutor) -> Any:
        import grpc

        gate = self._gate
        settings = self._settings
        infer_pool = self._pool("infer", 2 * settings.threads)
        ready_pool = self._pool("ready", HEALTH_THREADS)
        control_pool = self._pool("control", CONTROL_THREADS)
        calls = InferCalls(
            self._engine,
            settings.limits,
            needs_token(gate),
            hides_credentials=gate.needs_token,
            pool=infer_pool,
            regions_of=self._regions_of,
        )
        self._streams = StreamCalls(calls, self._pool("read", MAX_STREAMS))

        servicer = Servicer(
            self._engine, settings.limits, extensions_of(settings), self._shared_memory
        )
        handlers = {}
        for name, behavior in servicer.behaviors().items():
            check, pool = needs_token(gate), None
            if name in OPEN:
                check, pool = open_to_all, ready_pool
            elif name in CONTROL:
                check, pool = needs_control(gate), control_pool
            request, response = methods(INFERENCE)[name]
            handlers[name] = grpc.unary_unary_rpc_method_handler(
                _in_pool(guarded(behavior, check, request), pool),
                response_serializer=response.SerializeToString,
            )
        stream = streaming(
            self._streams.stream, open_to_all, self._places
        )  # each request is checked
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            _in_pool(stream, streams)
        )
        others = grpc.method_handlers_generic_handler(INFERENCE, handlers)
        # On the wire a unary answer is a stream of one message.
        deferred = grpc.unary_stream_rpc_method_handler(_deferred(calls, infer_pool))
        path = f"/{INFERENCE}/ModelInfer"
        self._direct = DirectCalls.on(
            self._server,
            path,
            calls,
            threads=settings.threads,
            most=MAX_CALLS,
            trims=not settings.keep_memory,
        )
        places = Places(settings.threads)

        class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
            """Chooses for each ModelInfer how its answer is waited for."""

            def service(self, handler_call_details: Any) -> Any:
                if handler_call_details.method != path:
                    return others.service(handler_call_details)
                place = places.take()
                if place is None:
                    return deferred
                waiting = functools.partial(calls.infer, place)
                waiting.experimental_thread_pool = infer_pool  # type: ignore[attr-defined]
                return grpc.unary_unary_rpc_method_handler(waiting)

        return Handler()

    def _health(self, streams: ThreadPoolExecutor) -> Any:
        import grpc

        health = Health(self._engine, self._closing)
        pool = self._pool("health", HEALTH_THREADS)
        handlers = {}
        for name, behavior in {"Check": health.check, "List": health.list}.items():
            request, response = methods(HEALTH)[name]
            handlers[name] = grpc.unary_unary_rpc_method_handler(
                _in_pool(guarded(behavior, open_to_all, request), pool),
                response_serializer=response.SerializeToString,
            )
        _, response = methods(HEALTH)["Watch"]
        handlers["Watch"] = grpc.unary_stream_rpc_method_handler(
            _in_pool(streaming(health.watch, open_to_all, self._places), streams),
            response_serializer=response.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(HEALTH, handlers)

    def _reflection(self, service: str, streams: ThreadPoolExecutor) -> Any:
        import grpc

        _, response = methods(service)["ServerReflectionInfo"]
        call = streaming(reflection(service), needs_token(self._gate), self._places)
        handler = grpc.stream_stream_rpc_method_handler(
            _in_pool(call, streams), response_serializer=response.SerializeToString
        )
        return grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": handler})


def _in_pool(behavior: Any, pool: ThreadPoolExecutor | None) -> Any:
    """Return a behavior that grpcio runs in `pool` rather than in the server's own."""

    def call(request: Any, context: Context) -> Any:
        return behavior(request, context)

    if pool is not None:
        call.experimental_thread_pool = pool  # type: ignore[attr-defined]
    return call


def _deferred(calls: InferCalls, pool: ThreadPoolExecutor) -> Any:
    """Return the ModelInfer whose thread does not wait for the answer."""

    def call(message: bytes, context: Context, send_response_callback: Send) -> None:
        calls.infer_later(message, context, send_response_callback)

    call.experimental_non_blocking = True  # type: ignore[attr-defined]
    call.experimental_thread_pool = pool  # type: ignore[attr-defined]
    return call
