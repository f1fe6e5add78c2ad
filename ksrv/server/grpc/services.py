"""The methods of all services, for every library that carries them: who may call, which pool runs them, what they return.

A call is a `ksrv._native.grpc.grpc_call.Call`, or something with the same methods.
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
from ksrv.server.grpc.idle_threads import IdleThreads
from ksrv.server.grpc.infer import InferCalls, InferForm
from ksrv.server.grpc.servicer import Servicer
from ksrv.server.http.callers import TrustedProxies
from ksrv.server.shared.parts import ServerParts

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

Call = Any


@dataclass(frozen=True)
class Method:
    """One method of a service.

    Attributes:
        check: Who may call; asked before a message is read.
        limits: Bounds on its messages.
        answer: Makes the answer of a unary call's message; None for calls of the engine and for streams.
        infer: Reads and writes the messages of a unary call that runs in the engine.
        stream: Makes the answers of a stream's messages; None for unary calls.
        permits: Says among which permits a stream takes one.
        pool: The pool that runs it.
        small: Whether its messages are always small.
        one_message: Whether a stream of answers takes exactly one message.
        control: Whether it changes the server; each caller is checked then, whoever else may call without a token.
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
        """Whether everybody may call."""
        return self.check is open_to_all


class Services:
    """The services of one server over an engine.

    Args:
        parts: The parts that the front ends share.
        others: Returns the methods of other servers' services, which are served too.

    Attributes:
        parts: As given.
        methods: Every method by its path.
        calls: Reads the requests of ModelInfer and writes their answers.
        access: The checks of callers.
        budget: The bytes that requests may hold together.
        proxies: The proxies whose word on their callers the logs take.
        settings: The server's settings.
        small: The limits of small messages.
        call_pool: Runs calls that may take long.
        on_stop: Called when the server begins to stop: each ends the streams of a dialect.
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
        # A few threads more than permits, so that a stream too many is refused and does not wait.
        self._stream_pool = self.pool("stream", bounds.MAX_STREAMS + bounds.SPARE_THREADS)
        self.methods: dict[str, Method] = {
            MODEL_INFER: Method(self._token, settings.limits, infer=self.calls),
            **self._state_methods(),
            **self._health_methods(),
            **self._reflection_methods(),
            **(others(self, engine) if others else {}),
        }

    def check(self, method: Method, call: Call) -> None:
        """Let a caller of a method pass, or raise."""
        self.access.check_host(call.host, peer=call.peer_address())
        method.check(call)

    def begin_stop(self) -> None:
        """End streams once they have answered what they accepted, and tell watchers of health."""
        self._closing.set()
        for close in self.on_stop:
            close()

    def stop(self) -> None:
        """Let the threads go that have nothing left to do."""
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
        """Return unary methods by their paths.

        Args:
            service: The full name of their service.
            behaviors: The functions that answer them, by their names.
            pool: The pool that runs them.
            check: Who may call; callers with the token if left out.
            small: Whether the messages are always small; they are accepted even if the memory budget is full.
            control: Whether they change the server, or reach into this machine's memory: they need control rights, and
                are written to the audit log.
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
        """Return the methods that tell the state of the server and its models."""
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
        # `health.check` knows the service, and checks the caller by that.
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
            one_message: Whether it takes exactly one message.
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


@contextmanager
def permitted(method: Method, call: Call) -> Iterator[None]:
    """Hold a permit for a stream.

    Raises:
        Overloaded: All permits are taken.
    """
    assert method.permits is not None, "streams have permits"
    among = method.permits(call)
    if not among.acquire(blocking=False):
        raise Overloaded("too many streams are open; close one, or try again later", "streams")
    try:
        yield
    finally:
        among.release()
