"""The gRPC front end on libnghttp2: complete messages come from the native server, and answers go back.

ModelInfer is read and submitted on the I/O thread that entered Python, where the engine may run it; whoever
ends the request answers it. The other unary calls run on small pools, as do streams, which take their
messages one by one. No thread of Python ever waits for a unary call's client.
"""

import functools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ksrv._native.grpc.grpc_server import Call, library_version
from ksrv._native.grpc.grpc_server import GrpcServer as Core
from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv._native.protobuf.infer_response import MAX_MESSAGE
from ksrv._native.queue.request_handle import NativeHandle
from ksrv.engine.available_memory import bytes_in_flight
from ksrv.engine.request_handle import SplitRequest
from ksrv.errors import InvalidRequest, KsrvError, Overloaded, RequestTooSlow
from ksrv.limits import Limits
from ksrv.protocol import grpc as protocol
from ksrv.protocol.protobuf import HEALTH, INFERENCE, REFLECTION, REFLECTION_ALPHA, methods
from ksrv.protocol.shared_memory import SharedMemoryRegistry
from ksrv.request import InferRequest
from ksrv.server.addresses import parse_address
from ksrv.server.credentials import Access
from ksrv.server.grpc import limits as bounds
from ksrv.server.grpc.calls import (
    Check,
    answering,
    failure_of,
    needs_control,
    needs_token,
    open_to_all,
    parsed,
    refuse,
    trailing,
)
from ksrv.server.grpc.health import Health
from ksrv.server.grpc.infer import InferCalls
from ksrv.server.grpc.messages import inflated_message
from ksrv.server.grpc.port import listen
from ksrv.server.grpc.reflection import reflection
from ksrv.server.grpc.servicer import CONTROL, OPEN, Servicer
from ksrv.server.grpc.stream import StreamCalls
from ksrv.server.http.byte_budget import Reservation, process_budget
from ksrv.server.memory_regions import AuthorizedRegistry, SharedMemory, shared_memory_of
from ksrv.server.rest.extensions import extensions_of
from ksrv.server.settings import ServerSettings
from ksrv.server.workers.shared_statistics import ServerStatistics

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.engine.request_handle import RequestHandle

log = logging.getLogger(__name__)

Message = bytes | memoryview

CORE_THREADS = 6
"""I/O threads: one with the sockets, one in Python, and some that take the place of one that hangs there."""

POLL_SECONDS = 0.01
FAREWELL_SECONDS = 0.3
"""How long clients may take to read that the server stops, before connections without calls are closed."""


def available() -> str | None:
    """Return the release of libnghttp2 that this server would use, or None where there is none."""
    return library_version()


@dataclass(frozen=True)
class Method:
    """One method of a service.

    Attributes:
        check: Who may call; asked before the message is read.
        answer: Makes the answer of a unary call's message; None for ModelInfer and for streams.
        stream: Runs a stream of messages or answers to its end; None for unary calls.
        pool: Where it runs.
        limits: Bounds on its messages.
        small: Whether its messages can only be small ones.
    """

    check: Check
    limits: Limits
    answer: Callable[[Message, Any], bytes] | None = None
    stream: Callable[[Call], None] | None = None
    pool: ThreadPoolExecutor | None = None
    small: bool = False


class NativeGrpcServer:
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
        self._access = access if access is not None else Access(settings)
        self._shared_memory = shared_memory or shared_memory_of(settings)
        self._budget = budget or process_budget(settings.limits)
        self._small = msgspec.structs.replace(
            settings.limits, body=min(bounds.SMALL, settings.limits.body)
        )
        self._closing = threading.Event()
        self._permits = threading.BoundedSemaphore(bounds.MAX_STREAMS)
        self._watches = threading.BoundedSemaphore(bounds.MAX_WATCHES)
        self._open_watches = threading.BoundedSemaphore(bounds.MAX_OPEN_WATCHES)
        self._pools: list[ThreadPoolExecutor] = []
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self._core: Core | None = None
        self._end: float | None = None
        self._infer_pool = self._pool("infer", bounds.CALL_THREADS)
        self._calls = InferCalls(
            engine,
            settings.limits,
            hides_credentials=self._access.needs_token,
            pool=self._infer_pool,
            regions_of=self._regions_of,
        )
        self._streams = StreamCalls(self._calls, self._pool("read", bounds.MAX_STREAMS))
        self._methods = self._all_methods()

    # ---- life -------------------------------------------------------------------------------

    def start(
        self, address: str, *, shared: bool = False, listener: socket.socket | None = None
    ) -> int:
        """Listen and serve.

        Args:
            address: "host:port" or "unix:path"; port 0 lets the system choose.
            shared: Whether other workers listen on the same port.
            listener: A socket that listens already, which other workers share.

        Returns:
            The port; 1 for a unix socket.

        Raises:
            RuntimeError: The address is taken or does not exist.
        """
        found = parse_address(address, "grpc")
        assert found is not None, "a server is started where there is an address"
        if listener is None:
            try:
                listener = listen(found, self._settings.backlog, shared=shared)
            except OSError as error:
                raise RuntimeError(f"{address} cannot be listened on: {error}") from error
        listener.setblocking(False)
        self._listener = listener
        settings = self._settings
        limits = settings.limits
        core = self._core = Core(
            [
                (path, method.stream is not None, method.small, path == bounds.MODEL_INFER)
                for path, method in self._methods.items()
            ],
            self._ready,
            self._admit,
            self._budget,
            {
                "threads": CORE_THREADS,
                "connections": bounds.most_connections(settings.max_connections),
                "streams": bounds.CONCURRENT_STREAMS,
                "message": min(limits.body, MAX_MESSAGE, bytes_in_flight(limits)),
                "small_message": self._small.body,
                "head": limits.head,
                "calls": bounds.MAX_CALLS,
                "head_timeout": settings.head_timeout,
                "grace": settings.transfer_grace,
                "rate": settings.min_transfer_rate,
                "idle": bounds.IDLE_CONNECTION_SECONDS,
                "checks_callers": self._access.needs_token,
                "decompress": settings.decompress_requests,
            },
        )
        core.listen([listener.fileno()])
        for index in range(CORE_THREADS):
            thread = threading.Thread(
                target=core.run, args=(index,), name=f"ksrv-grpc-{index}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        core.accept(True)
        return 1 if found.path else int(listener.getsockname()[1])

    def begin_stop(self, grace: float, *, replaced: bool = False) -> None:
        """Stop accepting calls; those accepted have `grace` seconds to finish.

        Clients are told that no further calls are taken; calls that were on their way are answered
        still. Streams end once they have answered what they accepted, and watchers of health are told.

        Args:
            grace: Seconds after which calls that are left are cut off.
            replaced: Whether another worker accepts from the same listener.
        """
        if self._core is None or self._end is not None:
            return
        self._end = time.monotonic() + grace
        self._closing.set()
        self._streams.close()
        self._core.accept(False)
        assert self._listener is not None, "a server that was started listens"
        self._listener.close()
        self._core.drain()

    def stop(self, grace: float) -> None:
        """Stop, and return when no call is left; further calls do nothing."""
        self.begin_stop(grace)
        core, self._core = self._core, None
        if core is None or self._end is None:
            return
        while core.open_connections and time.monotonic() < self._end:
            time.sleep(POLL_SECONDS)
        core.close_all()
        core.stop()
        for thread in self._threads:
            thread.join(1.0)
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self._pools.clear()

    def counters(self) -> dict[str, int]:
        """Return what the native server has counted so far, by name."""
        return {} if self._core is None else self._core.counters()

    # ---- methods ----------------------------------------------------------------------------

    def _pool(self, name: str, threads: int) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(threads, thread_name_prefix=f"ksrv-grpc-{name}")
        self._pools.append(pool)
        return pool

    def _regions_of(self, call: Any) -> SharedMemoryRegistry | None:
        if self._shared_memory is None:
            return None
        check = functools.partial(needs_control(self._access), call)
        return AuthorizedRegistry(self._shared_memory, check)

    def _all_methods(self) -> dict[str, Method]:
        """Return every method by its path."""
        calls = self._pool("call", bounds.CALL_THREADS)
        ready = self._pool("ready", bounds.HEALTH_THREADS)
        health_pool = self._pool("health", bounds.HEALTH_THREADS)
        control = self._pool("control", bounds.CONTROL_THREADS)
        streams = self._pool("stream", bounds.MAX_STREAMS + bounds.SPARE_THREADS)
        watches = self._pool(
            "watch", bounds.MAX_WATCHES + bounds.MAX_OPEN_WATCHES + bounds.SPARE_THREADS
        )
        limits, token = self._settings.limits, needs_token(self._access)
        servicer = Servicer(
            self._engine,
            self._statistics,
            limits,
            extensions_of(self._settings),
            self._shared_memory,
        )
        health = Health(self._engine, self._closing, token)
        found = {bounds.MODEL_INFER: Method(token, limits)}
        for name, behavior in servicer.behaviors().items():
            answer = answering(behavior, *methods(INFERENCE)[name])
            method = Method(token, limits, answer, pool=calls)
            if name in OPEN:
                method = Method(open_to_all, self._small, answer, pool=ready, small=True)
            elif name in CONTROL:
                method = Method(needs_control(self._access), limits, answer, pool=control)
            found[f"/{INFERENCE}/{name}"] = method
        for name, checked, behavior in (
            ("Check", open_to_all, health.check),
            ("List", token, health.list),
        ):
            answer = answering(behavior, *methods(HEALTH)[name])
            found[f"/{HEALTH}/{name}"] = Method(
                checked, self._small, answer, pool=health_pool, small=True
            )
        found[f"/{INFERENCE}/ModelStreamInfer"] = Method(
            token, limits, stream=self._infer_stream, pool=streams
        )
        found[f"/{HEALTH}/Watch"] = Method(
            open_to_all,
            self._small,
            stream=functools.partial(self._watch, health),
            pool=watches,
            small=True,
        )
        for service in (REFLECTION, REFLECTION_ALPHA):
            found[f"/{service}/ServerReflectionInfo"] = Method(
                token,
                self._small,
                stream=functools.partial(self._reflect, service),
                pool=streams,
                small=True,
            )
        return found

    # ---- unary calls ------------------------------------------------------------------------

    def _ready(self, call: Call) -> None:
        """Take a call whose message is there, or a stream that begins, on the thread that serves."""
        method = self._methods[call.path]
        try:
            method.check(call)
            if method.stream is not None:
                assert method.pool is not None, "streams have a pool"
                method.pool.submit(self._run_stream, method.stream, call)
                return
            message, compressed = call.message()
            if method.answer is not None:
                assert method.pool is not None, "a method with an answer has a pool"
                method.pool.submit(self._answer, method, call, message, compressed)
            elif compressed:
                self._infer_pool.submit(self._infer_compressed, method, call, message)
            else:
                self._infer(call, message)
        except Exception as error:  # noqa: BLE001 - the client is told
            refuse(call, failure_of(error))

    def _admit(self, call: Call) -> None:
        """Look at the caller of a large message before it comes."""
        try:
            self._methods[call.path].check(call)
        except Exception as error:  # noqa: BLE001 - the client is told
            refuse(call, failure_of(error))
        else:
            call.admit()

    def _answer(self, method: Method, call: Call, message: Message, compressed: bool) -> None:
        assert method.answer is not None, "only methods with an answer go to a pool"
        try:
            with self._as_written(call, message, method.limits, compressed) as written:
                made = method.answer(written, call)
            self._send(call, made)
        except Exception as error:  # noqa: BLE001 - the client is told
            refuse(call, failure_of(error))

    def _infer_compressed(self, method: Method, call: Call, message: Message) -> None:
        try:
            with self._as_written(call, message, method.limits, True) as written:
                request = self._calls.read(written, call)
            self._submit(call, request)
        except Exception as error:  # noqa: BLE001 - the client is told
            refuse(call, failure_of(error))

    def _infer(self, call: Call, message: Message) -> None:
        request = self._calls.read(message, call)
        call.give_back_bytes()  # from here on the engine's queue counts the request
        self._submit(call, request, allow_inline=True)

    def _submit(self, call: Call, request: InferRequest, *, allow_inline: bool = False) -> None:
        done = functools.partial(self._done, call, request)
        handle = self._calls.submit(request, done, allow_inline=allow_inline)
        watched = handle.parts[-1] if isinstance(handle, SplitRequest) else handle
        if watched.done():
            return
        if isinstance(watched, NativeHandle):
            call.watch(watched)
        elif not call.add_callback(handle.cancel):
            handle.cancel()

    def _done(self, call: Call, request: InferRequest, handle: "RequestHandle") -> None:
        """Answer a request that the engine has ended, on the thread that ended it."""
        try:
            response = handle.wait()
            metadata = trailing(response.headers) if response.headers else None
            message = protocol.render_infer(response, request, regions=self._regions_of(call))
            self._send(call, message, metadata)
        except Exception as error:  # noqa: BLE001 - the client is told
            refuse(call, failure_of(error))

    def _send(
        self, call: Call, message: bytes, metadata: list[tuple[str, str]] | None = None
    ) -> None:
        if not call.answer(message, metadata):
            raise no_room_for_answer(len(message))

    def _as_written(
        self, call: Call, message: Message, limits: Limits, compressed: bool
    ) -> "MessageBytes":
        return MessageBytes(call, message, limits, self._budget, compressed=compressed)

    # ---- streams ----------------------------------------------------------------------------

    def _run_stream(self, stream: Callable[[Call], None], call: Call) -> None:
        try:
            stream(call)
            call.finish()
        except Exception as error:  # noqa: BLE001 - the client is told
            refuse(call, failure_of(error))

    def _write(self, call: Call, message: bytes) -> bool:
        """Send one message of a stream; False once the call has ended."""
        sent = call.write(message)
        if sent is None:
            raise no_room_for_answer(len(message))
        return sent

    def _infer_stream(self, call: Call) -> None:
        with permit(self._permits):
            source = functools.partial(StreamMessages, call, self._settings, self._budget)
            for answer in self._streams.stream(source, call):
                if not self._write(call, answer):
                    return

    def _watch(self, health: Health, call: Call) -> None:
        permits = self._watches
        try:
            needs_token(self._access)(call)
        except KsrvError:
            permits = self._open_watches
        kind, _ = methods(HEALTH)["Watch"]
        with permit(permits):
            for incoming in StreamMessages(
                call, self._settings, self._budget, limits=self._small, begin=True
            ):
                with incoming() as message:
                    request = parsed(kind, message)
                for answer in health.watch(request, call):
                    if not self._write(call, answer.SerializeToString()):
                        return
                return
        if call.is_active():
            raise InvalidRequest("the call requires exactly one request message")

    def _reflect(self, service: str, call: Call) -> None:
        def questions() -> Iterator[bytes]:
            for incoming in StreamMessages(call, self._settings, self._budget, limits=self._small):
                with incoming() as message:
                    yield bytes(message)

        with permit(self._permits):
            for answer in reflection(service)(questions(), call):
                if not self._write(call, answer.SerializeToString()):
                    return


class permit:  # noqa: N801 - used as a function
    """Hold one of a number of places for streams.

    Args:
        among: The places.

    Raises:
        Overloaded: All are taken.
    """

    def __init__(self, among: threading.Semaphore) -> None:
        self._among = among

    def __enter__(self) -> None:
        if not self._among.acquire(blocking=False):
            raise Overloaded("as many streams are open as this server serves at a time", "streams")

    def __exit__(self, *_: object) -> None:
        self._among.release()


class MessageBytes:
    """A received message as its client wrote it, and the bytes that it holds until it was read.

    Args:
        call: Its call, which has counted the bytes as they came.
        message: The message as it came.
        limits: Bounds on what it inflates to.
        budget: Counts what it inflates to.
        compressed: Whether it is compressed.
    """

    def __init__(
        self,
        call: Call,
        message: Message,
        limits: Limits,
        budget: MemoryBudget,
        *,
        compressed: bool,
    ) -> None:
        self._call = call
        self._message = message
        self._limits = limits
        self._reservation = Reservation(budget)
        self._compressed = compressed

    def __enter__(self) -> Message:
        if not self._compressed:
            return self._message
        encoding = self._call.encoding
        assert encoding is not None, "the native server lets no other encoding through"
        try:
            return inflated_message(self._message, encoding, self._limits, self._reservation)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._reservation.close()
        self._call.give_back_bytes()


def _raise(error: KsrvError) -> None:
    raise error


class StreamMessages(Iterator[Callable[[], MessageBytes]]):
    """The messages of a stream, waited for one by one.

    Args:
        call: The call.
        settings: How long a message may take to begin.
        budget: Counts what messages inflate to.
        idle: Whether the call waits for its message only, and for no answer of the engine.
        fail: Told why no message came in time.
        limits: Bounds on a message; those of the settings if left out.
        begin: Whether the message must begin as soon as that of a unary call.
    """

    def __init__(
        self,
        call: Call,
        settings: ServerSettings,
        budget: MemoryBudget,
        idle: Callable[[], bool] = lambda: True,
        fail: Callable[[KsrvError], None] = _raise,
        *,
        limits: Limits | None = None,
        begin: bool = False,
    ) -> None:
        self._call = call
        self._fail = fail
        self._limits = limits or settings.limits
        self._budget = budget
        self._idle = idle
        self._rate = settings.min_transfer_rate
        self._timeout = settings.head_timeout if begin else bounds.STREAM_TIMEOUT_SECONDS

    def __next__(self) -> Callable[[], MessageBytes]:
        """Return the next message, to be opened.

        Raises:
            StopIteration: The client sends no more, or the call has ended.
            RequestTooSlow: None came in time, and nobody else is told.
        """
        while (found := self._call.next_message(self._timeout)) is False:
            if self._idle():
                self._fail(
                    RequestTooSlow(
                        f"no whole request message arrived within {self._timeout:.3g} s; it must begin "
                        f"in time and make {self._rate} bytes a second, which setting "
                        "'min_transfer_rate' asks for"
                    )
                )
                raise StopIteration
        if found is None or found is True:
            raise StopIteration
        message, compressed = found
        return functools.partial(
            MessageBytes, self._call, message, self._limits, self._budget, compressed=compressed
        )


def no_room_for_answer(nbytes: int) -> Overloaded:
    """Return the refusal of an answer that the memory budget has no room for."""
    return Overloaded(
        f"the answer holds {nbytes} bytes, and requests and answers in flight have reached the "
        "limit 'in_flight'",
        "bytes_in_flight",
    )
