"""The table of all gRPC methods, for the native server and grpcio: the check of callers, the pool, and the function.

A server looks up the `Method` of a call by its path in `Services.methods`. A method is one of three kinds: a unary call
that a function answers (`answer`), a unary call that runs in the engine (`infer`), or a stream (`stream`). A call is a
`ksrv._native.grpc.grpc_call.Call`, or a `GrpcioCall`, which has the same methods.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ksrv._native.grpc.grpc_server import MODEL_INFER
from ksrv.errors import KsrvError, Overloaded
from ksrv.limits import Limits
from ksrv.protocol.protobuf import (
    HEALTH,
    INFERENCE,
    REFLECTION,
    REFLECTION_ALPHA,
    check_backend,
    methods,
)
from ksrv.server.grpc import limits as bounds
from ksrv.server.grpc import reflection
from ksrv.server.grpc.audited_calls import audited
from ksrv.server.grpc.calls import (
    Behavior,
    Check,
    Message,
    Source,
    answering,
    needs_control,
    needs_token,
    only_request,
    open_to_all,
    requests,
)
from ksrv.server.grpc.health import Health
from ksrv.server.grpc.infer import InferCalls, InferForm
from ksrv.server.grpc.servicer import Servicer
from ksrv.server.http.callers import TrustedProxies
from ksrv.server.shared.idle_threads import IdleThreads
from ksrv.server.shared.parts import ServerParts

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

Call = Any


@dataclass(frozen=True)
class Method:
    """One method of a service.

    Attributes:
        check: Raises if the caller may not call. Called before the message is read.
        limits: Bounds on the messages.
        answer: Returns the answer for the message of a unary call; None for the other kinds.
        infer: Reads and writes the messages of a unary call that runs in the engine; None for the other kinds.
        stream: Yields the answers for the messages of a stream; None for the other kinds.
        permits: Returns the semaphore whose permit a stream needs.
        pool: The pool whose threads run the method; None for calls that run in the engine.
        small: Whether the messages are always small.
        one_message: Whether a stream of answers takes exactly one message.
        control: Whether the method changes the server. Then the native server checks each caller, even if ordinary
            calls need no token.
    """

    check: Check
    limits: Limits
    answer: Callable[[Message, Call], bytes] | None = None
    infer: InferForm | None = None
    stream: Callable[[Source, Call], Iterator[bytes]] | None = None
    permits: Callable[[Call], threading.Semaphore] | None = None
    pool: IdleThreads | None = None
    small: bool = False
    one_message: bool = False
    control: bool = False

    @property
    def is_open(self) -> bool:
        """Whether any caller may call, without credentials."""
        return self.check is open_to_all


class Services:
    """The services of one server over an engine.

    Args:
        parts: The parts that the front ends share.
        others: Returns the methods of the dialects' services; None without dialects.

    Attributes:
        parts: As given.
        methods: Every method by its path.
        calls: Reads the requests of ModelInfer and writes their answers.
        access: The checks of callers.
        budget: The memory budget.
        proxies: The proxies whose headers about their callers are believed in logs.
        settings: The server's settings.
        small: The limits for methods whose messages are small.
        call_pool: Runs calls that may take long.
        on_stop: Functions that end the streams of dialects, called when the server begins to stop.
    """

    def __init__(self, parts: ServerParts, others: "OtherMethods | None" = None) -> None:
        check_backend()
        self.parts = parts
        engine, settings = parts.engine, parts.settings
        self.settings, self.access, self.budget = settings, parts.access, parts.budget
        self.proxies = TrustedProxies.of(settings)
        self.small = msgspec.structs.replace(
            settings.limits, body=min(bounds.SMALL, settings.limits.body)
        )
        self._token = needs_token(self.access)
        self._closing = threading.Event()
        self._permits = threading.BoundedSemaphore(bounds.MAX_STREAMS)
        self._watches = threading.BoundedSemaphore(bounds.MAX_WATCHES)
        self._open_watches = threading.BoundedSemaphore(bounds.MAX_OPEN_WATCHES)
        self._pools: list[IdleThreads] = []
        self.on_stop: list[Callable[[], None]] = []
        self.calls = InferCalls(parts)
        self.call_pool = self.pool("call", bounds.CALL_THREADS)
        # More threads than permits, so that a stream without a permit is refused at once instead of waiting.
        self._stream_pool = self.pool("stream", bounds.MAX_STREAMS + bounds.SPARE_THREADS)
        self.methods: dict[str, Method] = {
            MODEL_INFER: Method(self._token, settings.limits, infer=self.calls),
            **self._state_methods(),
            **self._health_methods(),
            **self._reflection_methods(),
            **(others(self, engine) if others else {}),
        }

    def check(self, method: Method, call: Call) -> None:
        """Raise if the caller may not call a method."""
        self.access.check_host(call.host, peer=call.peer_address())
        method.check(call)

    def begin_stop(self) -> None:
        """End streams after the answers to their accepted messages, and notify health watchers."""
        self._closing.set()
        for close in self.on_stop:
            close()

    def stop(self) -> None:
        """End the threads of the pools. Call it when no call is left."""
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self._pools.clear()

    def pool(self, name: str, threads: int) -> IdleThreads:
        """Return a new pool that ends with the services.

        Args:
            name: The prefix of its threads' names.
        """
        made = IdleThreads(threads, f"ksrv-grpc-{name}")
        self._pools.append(made)
        return made

    def unary(
        self,
        service: str,
        behaviors: Mapping[str, Behavior],
        pool: IdleThreads,
        *,
        check: Check | None = None,
        small: bool = False,
        control: bool = False,
    ) -> dict[str, Method]:
        """Return unary methods by path.

        Args:
            service: The full name of their service.
            behaviors: The functions that answer them, by name.
            pool: The pool that runs them.
            check: The check of callers; by default callers need the token.
            small: Whether the messages are always small. They are accepted even if the memory budget is full.
            control: Whether the methods change the server or use this machine's memory. They need control rights, and
                are recorded in the audit log.
        """
        limits = self.small if small else self.settings.limits
        found = {}
        for name, behavior in behaviors.items():
            allowed = check or self._token
            if control:
                behavior = audited(name, behavior, self.proxies, writes_success=True)
                check_control = needs_control(self.access)
                allowed = audited(name, check_control, self.proxies, writes_success=False)
            answer = answering(behavior, service, name)
            found[f"/{service}/{name}"] = Method(
                allowed, limits, answer, pool=pool, small=small, control=control
            )
        return found

    def _state_methods(self) -> dict[str, Method]:
        """Return the methods about the state and metadata of the server and its models."""
        calls = Servicer(self.parts)
        probes = {"ServerLive": calls.server_live, "ServerReady": calls.server_ready}
        reads = {"ModelReady": calls.model_ready, "ModelMetadata": calls.model_metadata}
        server = {"ServerMetadata": calls.server_metadata}
        ready = self.pool("ready", bounds.HEALTH_THREADS)
        return {
            **self.unary(INFERENCE, probes, ready, check=open_to_all, small=True),
            **self.unary(INFERENCE, reads, self.call_pool, small=True),
            **self.unary(INFERENCE, server, self.call_pool),
        }

    def _health_methods(self) -> dict[str, Method]:
        pool = self.pool("health", bounds.HEALTH_THREADS)
        watches = self.pool(
            "watch", bounds.MAX_WATCHES + bounds.MAX_OPEN_WATCHES + bounds.SPARE_THREADS
        )
        health = Health(self.parts.engine, self._closing, self._token)
        found = self.unary(HEALTH, {"List": health.list}, pool, small=True)
        # `health.check` checks the caller itself, because the check depends on the service in the message.
        checked = {"Check": health.check}
        found |= self.unary(HEALTH, checked, pool, check=open_to_all, small=True)
        found[f"/{HEALTH}/Watch"] = Method(
            open_to_all,
            self.small,
            stream=functools.partial(self._watch, health),
            permits=self._watch_permits,
            pool=watches,
            small=True,
            one_message=True,
        )
        return found

    def _reflection_methods(self) -> dict[str, Method]:
        return {
            f"/{service}/ServerReflectionInfo": self.stream(
                functools.partial(self._reflect, service), small=True
            )
            for service in (REFLECTION, REFLECTION_ALPHA)
        }

    def stream(
        self,
        answers: Callable[[Source, Call], Iterator[bytes]],
        *,
        small: bool = False,
        one_message: bool = False,
    ) -> Method:
        """Return a method that answers a stream of messages, for callers with the token.

        Args:
            answers: Makes the answers.
            small: As for `unary`.
            one_message: Whether the stream takes exactly one message.
        """
        return Method(
            self._token,
            self.small if small else self.settings.limits,
            stream=answers,
            permits=lambda call: self._permits,
            pool=self._stream_pool,
            small=small,
            one_message=one_message,
        )

    def services(self) -> list[str]:
        """Return the full names of the services."""
        return sorted({path.split("/")[1] for path in self.methods})

    def _reflect(self, service: str, source: Source, call: Call) -> Iterator[bytes]:
        kind, _ = methods(service)["ServerReflectionInfo"]
        for question in requests(kind, source):
            yield reflection.answer(question, self.services()).SerializeToString()

    def _watch_permits(self, call: Call) -> threading.Semaphore:
        """Return the permits for health watches of callers with, or without, credentials."""
        try:
            self._token(call)
        except KsrvError:
            return self._open_watches
        return self._watches

    def _watch(self, health: Health, source: Source, call: Call) -> Iterator[bytes]:
        kind, _ = methods(HEALTH)["Watch"]
        if (request := only_request(kind, source, call)) is not None:
            for answer in health.watch(request, call):
                yield answer.SerializeToString()


OtherMethods: TypeAlias = Callable[[Services, "Engine"], Mapping[str, Method]]
"""Returns the methods of the dialects' services by path."""


@contextmanager
def permitted(method: Method, call: Call) -> Iterator[None]:
    """Hold a permit for a stream in the context.

    Raises:
        Overloaded: All permits are taken.
    """
    assert method.permits is not None, "streams have permits"
    permits = method.permits(call)
    if not permits.acquire(blocking=False):
        raise Overloaded("too many streams are open; close one, or try again later", "streams")
    try:
        yield
    finally:
        permits.release()
