"""The gRPC front end: one grpcio server in a worker, its services, thread pools and channel options.

grpcio's sync server was chosen over its aio server by measurement: with the same handler behind the
same hand-off, aio took 1.1 to 1.5 times the CPU of sync for a small request (W1), and for 602 KB (W2)
the two were equal within the noise. Taking unary calls from the completion queue itself
(`completion_queue`) took 0.44 to 0.75 times of sync's for W1 and 0.8 to 1.1 times for W2, where copying
rules (`benchmarks/load/grpc_servers.py`, two busy cores). Deferring an answer in the public way costs 1.1
times sync's CPU for W1, so it is for the many only (`grpc_infer`).
`grpc` is imported when the server starts, which is after gunicorn has forked, and never before.
"""

import functools
import resource
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv._native.protobuf.infer_response import MAX_MESSAGE
from ksrv.engine.available_memory import bytes_in_flight
from ksrv.errors import KsrvError
from ksrv.observe.traffic import count_refusal
from ksrv.protocol.protobuf import (
    HEALTH,
    INFERENCE,
    REFLECTION,
    REFLECTION_ALPHA,
    methods,
)
from ksrv.protocol.shared_memory import SharedMemoryRegistry
from ksrv.server.credentials import Access
from ksrv.server.grpc.calls import (
    Check,
    Context,
    answering,
    needs_control,
    needs_token,
    open_to_all,
    parsed,
    streaming,
)
from ksrv.server.grpc.completion_queue import DirectCalls, Unary
from ksrv.server.grpc.fallback import fallback
from ksrv.server.grpc.health import Health
from ksrv.server.grpc.infer import InferCalls
from ksrv.server.grpc.messages import Messages, admitted
from ksrv.server.grpc.port import listeners, stop_listening
from ksrv.server.grpc.reflection import reflection
from ksrv.server.grpc.servicer import CONTROL, OPEN, Servicer
from ksrv.server.grpc.stream import Incoming, StreamCalls
from ksrv.server.grpc.unfinished_calls import SMALL, UnfinishedCall, UnfinishedCalls
from ksrv.server.http.byte_budget import process_budget
from ksrv.server.memory_regions import AuthorizedRegistry, SharedMemory, shared_memory_of
from ksrv.server.rest.extensions import extensions_of
from ksrv.server.settings import ServerSettings
from ksrv.server.workers.shared_statistics import ServerStatistics

if TYPE_CHECKING:
    import grpc

    from ksrv.engine.engine import Engine

MAX_STREAMS = 64
"""Open streams of inference and reflection together; each holds a thread, an inference stream two."""

MAX_WATCHES = 64
"""Open watches of health of callers who may make ordinary calls; each holds a thread."""

MAX_OPEN_WATCHES = 32
"""As many of callers who may not; a client that looks after its server's health shows no token."""

MAX_CALLS = 2048
"""Calls whose message is there that are held at a time, and as many whose message is not there. The
engine's queue is far shorter."""

IDLE_CONNECTION_MS = 300_000
"""A connection without a call is closed after so long; clients open a new one for their next call."""

STREAM_TIMEOUT_SECONDS = 600.0
"""A stream on which nothing is asked and nothing is under way is ended after so long."""

DESCRIPTOR_SHARE = 4
"""One descriptor in so many may be a gRPC connection's, so that the others keep theirs."""

SPARE_THREADS = 4
HEALTH_THREADS = 2
CALL_THREADS = 4
CONTROL_THREADS = 2

HOLD_SECONDS = 0.05
"""How long answers are held before and after clients are told that the server stops; long enough for
them to wait for these answers, and then to have read that."""

END_SECONDS = 1.0
"""How long the threads of calls that have ended may take to go."""


def channel_options(settings: ServerSettings, *, shared: bool) -> list[tuple[str, int]]:
    """Return grpcio's options.

    Args:
        settings: The server's settings.
        shared: Whether several workers share the port on purpose.
    """
    limits = settings.limits
    # What the budget could never admit is refused before it is received.
    message = min(limits.body, MAX_MESSAGE, bytes_in_flight(limits))
    options = [
        ("grpc.max_receive_message_length", message),
        ("grpc.max_send_message_length", min(limits.body, MAX_MESSAGE)),
        # grpcio would inflate without a bound, and before the caller's credentials are checked.
        ("grpc.per_message_decompression", 0),
        ("grpc.max_concurrent_streams", 128),
        ("grpc.max_metadata_size", limits.head),
        ("grpc.absolute_max_metadata_size", limits.head),
        ("grpc.max_allowed_incoming_connections", most_connections(settings.max_connections)),
        ("grpc.server_handshake_timeout_ms", max(1, int(settings.head_timeout * 1000))),
        ("grpc.max_connection_idle_ms", IDLE_CONNECTION_MS),
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


def most_connections(wanted: int) -> int:
    """Return how many connections a server may hold open without starving its process of files.

    Args:
        wanted: The setting.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, files // DESCRIPTOR_SHARE))


class GrpcServer:
    """A gRPC server over an engine.

    Args:
        engine: Where requests run.
        settings: Limits, threads and credentials.
        access: Who may call; made from the settings if left out.
        shared_memory: The clients' regions to share with another front end.
        budget: The bytes that requests may hold together, to share with another front end.
        statistics: The statistics of all workers; those of the engine if left out.
    """

    def __init__(
        self,
        engine: "Engine",
        settings: ServerSettings,
        *,
        access: Access | None = None,
        shared_memory: SharedMemory | None = None,
        budget: MemoryBudget | None = None,
        statistics: ServerStatistics | None = None,
    ) -> None:
        self._engine = engine
        self._statistics = statistics or ServerStatistics(engine)
        self._settings = settings
        self._authorizer = access if access is not None else Access(settings)
        self._shared_memory = shared_memory or shared_memory_of(settings)
        self._budget = budget or process_budget(settings.limits)
        self._small = msgspec.structs.replace(
            settings.limits, body=min(SMALL, settings.limits.body)
        )
        self._unfinished = UnfinishedCalls(
            self._budget,
            head=settings.head_timeout,
            rate=settings.min_transfer_rate,
            most=MAX_CALLS,
        )
        self._closing = threading.Event()
        self._permits = threading.BoundedSemaphore(MAX_STREAMS)
        self._watches = threading.BoundedSemaphore(MAX_WATCHES)
        self._open_watches = threading.BoundedSemaphore(MAX_OPEN_WATCHES)
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
            credentials: The credentials of TLS; None without TLS.

        Returns:
            The port; 1 for a unix socket.

        Raises:
            RuntimeError: The address is taken or does not exist.
        """
        import grpc

        calls = self._pool("call", CALL_THREADS)
        self._server = grpc.server(
            calls,
            options=channel_options(self._settings, shared=shared),
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        # A few threads more than places, so that a stream too many is refused and does not wait.
        streams = self._pool("stream", MAX_STREAMS + SPARE_THREADS)
        health = Health(self._engine, self._closing, needs_token(self._authorizer))
        unary = self._state_calls(calls) | self._health_calls(health)
        handlers = [
            self._inference(unary, streams),
            self._watch(health),
            self._reflection(REFLECTION, streams),
            self._reflection(REFLECTION_ALPHA, streams),
        ]
        self._server.add_generic_rpc_handlers(handlers)
        before = listeners()
        if credentials is None:
            port = int(self._server.add_insecure_port(address))
        else:
            port = int(self._server.add_secure_port(address, credentials))
        self._server.start()
        self._listening = listeners().keys() - before.keys()
        self._unfinished.start(port)
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
        self._direct.send_held()

    def stop(self, grace: float) -> None:
        """Stop, and return when no call is left; further calls do nothing."""
        self.begin_stop(grace)
        if self._stopped is not None:
            self._stopped.wait()
            if self._direct is not None:
                self._direct.wait(END_SECONDS)
        self._unfinished.stop()
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self._pools.clear()

    def _pool(self, name: str, threads: int) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(threads, thread_name_prefix=f"ksrv-grpc-{name}")
        self._pools.append(pool)
        return pool

    def _regions_of(self, context: Context) -> SharedMemoryRegistry | None:
        if self._shared_memory is None:
            return None
        check = functools.partial(needs_control(self._authorizer), context)
        return AuthorizedRegistry(self._shared_memory, check)

    def _state_calls(self, calls: ThreadPoolExecutor) -> dict[str, Unary]:
        """Return the inference service's unary methods but ModelInfer, by their paths."""
        ready = self._pool("ready", HEALTH_THREADS)
        control = self._pool("control", CONTROL_THREADS)
        limits = self._settings.limits
        servicer = Servicer(
            self._engine,
            self._statistics,
            limits,
            extensions_of(self._settings),
            self._shared_memory,
        )
        found = {}
        for name, behavior in servicer.behaviors().items():
            answer = answering(behavior, *methods(INFERENCE)[name])
            method = Unary(needs_token(self._authorizer), limits, answer, calls)
            if name in OPEN:
                method = Unary(open_to_all, self._small, answer, ready, small=True)
            elif name in CONTROL:
                method = Unary(needs_control(self._authorizer), limits, answer, control)
            found[f"/{INFERENCE}/{name}"] = method
        return found

    def _health_calls(self, health: Health) -> dict[str, Unary]:
        """Return the health service's unary methods by their paths."""
        pool = self._pool("health", HEALTH_THREADS)
        checks: dict[str, tuple[Any, Check]] = {
            "Check": (health.check, open_to_all),  # which knows the service, and checks by that
            "List": (health.list, needs_token(self._authorizer)),
        }
        return {
            f"/{HEALTH}/{name}": Unary(
                check, self._small, answering(behavior, *methods(HEALTH)[name]), pool, small=True
            )
            for name, (behavior, check) in checks.items()
        }

    def _inference(self, unary: dict[str, Unary], streams: ThreadPoolExecutor) -> Any:
        import grpc

        authorizer = self._authorizer
        settings = self._settings
        infer_pool = self._pool("infer", 2 * settings.threads)
        calls = InferCalls(
            self._engine,
            settings.limits,
            hides_credentials=authorizer.needs_token,
            pool=infer_pool,
            regions_of=self._regions_of,
        )
        self._streams = infer_streams = StreamCalls(calls, self._pool("read", MAX_STREAMS))

        def stream_infer(messages: Iterator[bytes], context: Context) -> Iterator[bytes]:
            source = functools.partial(self._messages, messages, context)
            return infer_streams.stream(source, context)

        unary[f"/{INFERENCE}/ModelInfer"] = Unary(needs_token(authorizer), settings.limits)
        self._direct = DirectCalls.on(
            self._server,
            unary,
            calls,
            self._unfinished,
            self._budget,
            threads=settings.threads,
            most=MAX_CALLS,
            trims=not settings.retain_freed_memory,
        )
        if self._direct is None:
            others = fallback(
                unary,
                calls,
                self._unfinished,
                self._budget,
                threads=settings.threads,
                pool=infer_pool,
            )
            self._server.add_generic_rpc_handlers((others,))
        stream = streaming(stream_infer, needs_token(authorizer), lambda _: self._permits)
        handler = grpc.stream_stream_rpc_method_handler(_in_pool(stream, streams))
        return grpc.method_handlers_generic_handler(INFERENCE, {"ModelStreamInfer": handler})

    def _messages(
        self,
        messages: Iterator[bytes],
        context: Context,
        idle: Callable[[], bool],
        fail: Callable[[KsrvError], None],
    ) -> Iterator[Incoming]:
        """Yield the messages of an inference stream until it ends."""
        import grpc

        def give_up(wait: UnfinishedCall, error: KsrvError) -> None:
            if idle():
                fail(error)
            else:  # what came of the message is held until the call ends
                count_refusal("grpc", error.reason)
                context.cancel()

        @contextmanager
        def opened(message: bytes) -> Iterator[bytes]:
            written, reservation = admitted(message, self._settings.limits, self._budget)
            with reservation:
                yield written

        received = Messages(
            messages,
            context,
            self._unfinished,
            begin_timeout=STREAM_TIMEOUT_SECONDS,
            give_up=give_up,
            idle=idle,
        )
        try:
            for message in received:
                yield functools.partial(opened, message)
        except grpc.RpcError:
            return  # the client cancelled the call, or its connection is gone

    def _watch(self, health: Health) -> Any:
        import grpc

        kind, response = methods(HEALTH)["Watch"]
        check = needs_token(self._authorizer)

        def permits(context: Context) -> threading.Semaphore:
            try:
                check(context)
            except KsrvError:
                return self._open_watches
            return self._watches

        def watch(requests: Iterator[bytes], context: Context) -> Iterator[Any]:
            received = Messages(requests, context, self._unfinished, small=True).only()
            message, reservation = admitted(received, self._small, self._budget)
            reservation.close()  # it is small, and the watch may last
            yield from health.watch(parsed(kind, message), context)

        pool = self._pool("watch", MAX_WATCHES + MAX_OPEN_WATCHES + SPARE_THREADS)
        # Registered as a stream of requests: only of those a message is received on request.
        handler = grpc.stream_stream_rpc_method_handler(
            _in_pool(streaming(watch, open_to_all, permits), pool),
            response_serializer=response.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(HEALTH, {"Watch": handler})

    def _reflection(self, service: str, streams: ThreadPoolExecutor) -> Any:
        import grpc

        _, response = methods(service)["ServerReflectionInfo"]
        reflect = reflection(service)

        def call(requests: Iterator[bytes], context: Context) -> Iterator[Any]:
            def questions() -> Iterator[bytes]:
                begin_timeout = STREAM_TIMEOUT_SECONDS
                for received in Messages(
                    requests, context, self._unfinished, begin_timeout=begin_timeout
                ):
                    message, reservation = admitted(received, self._small, self._budget)
                    with reservation:
                        yield message

            return reflect(questions(), context)

        checked = streaming(call, needs_token(self._authorizer), lambda _: self._permits)
        handler = grpc.stream_stream_rpc_method_handler(
            _in_pool(checked, streams), response_serializer=response.SerializeToString
        )
        return grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": handler})


def _in_pool(behavior: Callable[[Any, Context], Any], pool: ThreadPoolExecutor) -> Any:
    """Return a behavior that grpcio runs in `pool` rather than in the server's own."""

    def call(requests: Any, context: Context) -> Any:
        return behavior(requests, context)

    call.experimental_thread_pool = pool  # type: ignore[attr-defined]
    return call
