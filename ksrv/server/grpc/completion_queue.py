"""Unary calls taken straight from grpcio's completion queue, without its Python server in between.

grpcio's own sync server changes threads four times for a small call and wakes up some twenty times,
which costs more than everything that ksrv does. It also keeps a thread for each message that it
waits for, and asks for messages before the caller is authorized. So the unary calls are registered
methods with a queue of their own: the credentials are checked first, then the message is asked for,
and no thread waits for it (`unfinished_calls`).

One thread at a time, the leader, waits on that queue. It reads, runs and answers calls of ModelInfer
itself: a request that finds a free instance slot never leaves this thread. Any other request is
deferred, and other threads write the answers once the engine has them. The leader hands its role over
before it runs a request that may take long, and is replaced when it does not come back. More threads
on one queue would cost each call another wake-up. The other unary methods run on a pool once their
message has arrived. Streams stay with grpcio's server.

The layer of grpcio that is used here carries grpcio's own server, but it is not public.
`DirectCalls.on` therefore checks for every name first; if a name is missing, all methods are
registered the public way (`fallback`).
"""

import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.errors import InvalidRequest, KsrvError, Overloaded
from ksrv.limits import Limits
from ksrv.server.grpc.calls import Check, Context, failure_of, set_status
from ksrv.server.grpc.infer import InferCalls
from ksrv.server.grpc.messages import as_written, encoding_of
from ksrv.server.grpc.unfinished_calls import SMALL, UnfinishedCall, UnfinishedCalls
from ksrv.server.http.byte_budget import Reservation

if TYPE_CHECKING:
    from ksrv.engine.request_handle import RequestHandle
    from ksrv.request import InferRequest

log = logging.getLogger(__name__)

LONG_NS = 1_000_000
MOST_NS = 4_000_000
"""While the requests that the leader runs itself take `LONG_NS` on average, it hands its role over first.
A longer request counts as `MOST_NS`: a single request that was held up says little."""

STUCK_NS = 20_000_000
"""A leader that has run one request for so long is replaced."""

WATCH_SECONDS = 0.02

REQUESTED = 8
"""Calls of ModelInfer that grpcio may hand over before it is asked for the next."""

REQUESTED_OTHERS = 2
"""As many of any other method."""

ANSWERERS = 2
"""Threads that write deferred answers."""

LARGE = 1 << 20
"""Bytes of a message that may take long to read and answer."""

TRIM_FROM = 16 << 20
"""Bytes of a message from which the memory that receiving it took is given back at once: grpcio
joins a message from pieces of it, and with the pieces it has the message three times."""

_NAMES = (
    "CompletionQueue",
    "CompletionType",
    "ReceiveMessageOperation",
    "ReceiveCloseOnServerOperation",
    "SendInitialMetadataOperation",
    "SendMessageOperation",
    "SendStatusFromServerOperation",
)
_SERVER_NAMES = ("register_completion_queue", "register_method", "request_registered_call")
_NO_FLAGS = 0


@dataclass(frozen=True)
class Unary:
    """A method with one request message and one answer.

    Attributes:
        check: Who may call; asked before the message is.
        limits: Bounds on the message.
        answer: Makes the answer of the message; None for ModelInfer.
        pool: Where it runs.
        small: Whether the message can only be a small one.
    """

    check: Check
    limits: Limits
    answer: Callable[[bytes, Context], bytes] | None = None
    pool: ThreadPoolExecutor | None = None
    small: bool = False


class Call(UnfinishedCall):
    """One call, with the methods of a `grpc.ServicerContext` that are needed, and its answer.

    Args:
        event: grpcio's event of its arrival.
        core: grpcio's operations.
        method: The method that was called.
    """

    __slots__ = (
        "_call",
        "_code",
        "_core",
        "_deadline",
        "_details",
        "_metadata",
        "_trailing",
        "ended_here",
        "handle",
        "message",
        "method",
        "owner",
        "request",
        "reservation",
        "sent",
        "watched",
    )  # fmt: skip

    def __init__(self, event: Any, core: Any, method: Unary) -> None:
        super().__init__(small=method.small)
        self.method = method
        self.reservation: Reservation | None = None
        self._call = event.call
        self._core = core
        self._deadline: float = event.call_details.deadline
        self._metadata = event.invocation_metadata
        self._code = 0
        self._details = b""
        self._trailing: tuple[tuple[str, str], ...] | None = None
        self.message: bytes | None = None
        self.request: InferRequest | None = None
        self.handle: RequestHandle | None = None
        self.owner = 0  # the thread that submits the request, while it does
        self.ended_here = False  # and whether the request ended meanwhile, on that thread
        self.watched = self.sent = False

    def invocation_metadata(self) -> Any:
        """See `grpc.ServicerContext`."""
        return self._metadata

    def time_remaining(self) -> float:
        """See `grpc.ServicerContext`."""
        return max(self._deadline - time.time(), 0.0)

    def peer(self) -> str:
        """See `grpc.ServicerContext`."""
        return str(self._call.peer().decode("utf-8", "replace"))

    def set_code(self, code: Any) -> None:
        """See `grpc.ServicerContext`."""
        self._code = code.value[0]

    def set_details(self, details: str) -> None:
        """See `grpc.ServicerContext`."""
        self._details = details.encode("utf-8", "replace")

    def set_trailing_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        """See `grpc.ServicerContext`."""
        self._trailing = metadata

    def take_message(self) -> bytes:
        """Return the received message, which this call then holds no more."""
        message, self.message = self.message, None
        assert message is not None, "a call's message is taken once"
        return message

    def free(self) -> None:
        """Give the bytes of the message back; further calls do nothing."""
        reservation, self.reservation = self.reservation, None
        if reservation is not None:
            reservation.close()

    def receive(self, tag: Any) -> None:
        """Have `tag` called with the event that brings the message."""
        self._call.start_server_batch((self._core.ReceiveMessageOperation(_NO_FLAGS),), tag)

    def watch(self, tag: Any) -> None:
        """Have `tag` called when the call ends: answered, cancelled, or past its deadline."""
        self._call.start_server_batch((self._core.ReceiveCloseOnServerOperation(_NO_FLAGS),), tag)

    def send(self, message: bytes | None, tag: Any) -> None:
        """Send the answer, or without one the status that was set; `tag` is called afterwards."""
        core = self._core
        status = core.SendStatusFromServerOperation(
            self._trailing, self._code, self._details, _NO_FLAGS
        )
        operations = [core.SendInitialMetadataOperation(None, _NO_FLAGS), status]
        if message is not None:
            operations.append(core.SendMessageOperation(message, _NO_FLAGS))
        if not self.watched:  # a call whose close was never asked for ends as if cancelled
            operations.append(core.ReceiveCloseOnServerOperation(_NO_FLAGS))
        self._call.start_server_batch(operations, tag)


class _Term:
    """One thread's time as leader.

    Attributes:
        away_since: When it began to run a request on the spot, or 0.
        over: Whether another thread leads.
    """

    __slots__ = ("away_since", "over")

    def __init__(self) -> None:
        self.away_since = 0
        self.over = False


class DirectCalls:
    """The unary calls of one server.

    Args:
        core: grpcio's operations.
        server: grpcio's core server.
        methods: The methods by their paths.
        calls: Reads and answers requests of ModelInfer.
        unfinished: The calls whose message has not arrived.
        budget: The bytes that requests may hold together.
        threads: Requests that run on the spot at a time; at least one.
        most: Calls whose message is there that are held at a time; further ones are refused.
        trims: Whether memory that receiving took is given back at once.
    """

    def __init__(
        self,
        core: Any,
        server: Any,
        methods: Mapping[str, Unary],
        calls: InferCalls,
        unfinished: UnfinishedCalls,
        budget: MemoryBudget,
        *,
        threads: int,
        most: int,
        trims: bool = True,
    ) -> None:
        self._core = core
        self._server = server
        self._methods = methods
        self._calls = calls
        self._unfinished = unfinished
        self._budget = budget
        self._most = most
        self._queue = core.CompletionQueue()
        self._lock = threading.Lock()
        self._due = 0  # calls that are asked for or open
        self._asked = 0  # of these, calls that are asked for
        self._watching = 0  # calls whose end is watched
        self._closing = False
        self._held: list[tuple[Call, bytes | None]] | None = None
        self._ended = threading.Event()
        self._trim_from = TRIM_FROM if trims else sys.maxsize
        self._threads = threads + 1
        self._places: SimpleQueue[None] = SimpleQueue()
        for _ in range(threads):  # one thread is always free to lead
            self._places.put(None)
        self._lead: SimpleQueue[None] = SimpleQueue()
        self._lead.put(None)
        self._term = _Term()
        self._pace_ns = 0  # of the last requests that were run on the spot
        self._answers: SimpleQueue[Call | None] = SimpleQueue()
        server.register_completion_queue(self._queue)
        for path in methods:
            server.register_method(path)

    @classmethod
    def on(
        cls,
        server: Any,
        methods: Mapping[str, Unary],
        calls: InferCalls,
        unfinished: UnfinishedCalls,
        budget: MemoryBudget,
        *,
        threads: int,
        most: int,
        trims: bool = True,
    ) -> "DirectCalls | None":
        """Take over methods of a server that has not started.

        Args:
            server: A `grpc.Server`.
            methods: The methods by their paths.
            calls: Reads and answers requests of ModelInfer.
            unfinished: The calls whose message has not arrived.
            budget: The bytes that requests may hold together.
            threads: Requests that run on the spot at a time.
            most: Calls whose message is there that are held at a time.
            trims: Whether memory that receiving took is given back at once.

        Returns:
            The calls; None where this release of grpcio lacks what they are written on.
        """
        inner = getattr(server, "_cy_server", None)
        missing = [name for name in _SERVER_NAMES if not hasattr(inner, name)]
        try:
            from grpc._cython import cygrpc as core
        except ImportError:
            missing.append("grpc._cython.cygrpc")
        else:
            missing += [name for name in _NAMES if not hasattr(core, name)]
        if missing:
            log.warning("grpcio lacks %s: ModelInfer takes the slower way", ", ".join(missing))
            return None
        return cls(
            core, inner, methods, calls, unfinished, budget, threads=threads, most=most, trims=trims
        )

    def start(self) -> None:
        """Take calls from now on; the server has started."""
        with self._lock:
            for path, method in self._methods.items():
                for _ in range(REQUESTED if method.answer is None else REQUESTED_OTHERS):
                    self._ask(path)
        for index in range(self._threads):
            self._run(self._poll, f"ksrv-grpc-poll-{index}")
        for index in range(ANSWERERS):
            self._run(self._write_answers, f"ksrv-grpc-answer-{index}")
        self._run(self._replace_stuck, "ksrv-grpc-watch")

    def hold(self) -> None:
        """Keep all answers back from now on, so that clients that wait for one send nothing new.

        A server that stops tells its clients so, and what they send until they have read that is
        lost. Most clients send their next request when they have the answer to their last.
        """
        with self._lock:
            self._held = []

    def begin_stop(self) -> None:
        """Ask for no more calls; to be called right before the server is stopped."""
        with self._lock:
            self._closing = True

    def send_held(self) -> None:
        """Send the answers that were held."""
        with self._lock:
            held, self._held = self._held, None
        for call, message in held or ():
            call.send(message, self._less)

    def wait(self, timeout: float) -> bool:
        """Wait until all calls have ended and the threads may go.

        Args:
            timeout: Seconds to wait at most; a handler may hang.
        """
        return self._ended.wait(timeout)

    @staticmethod
    def _run(target: Callable[[], None], name: str) -> None:
        threading.Thread(target=target, name=name, daemon=True).start()

    # ---- leading ----------------------------------------------------------------------------

    def _poll(self) -> None:
        while True:
            self._lead.get()
            term = self._term = _Term()
            if not self._lead_on(term):
                self._lead.put(None)  # the queue is shut down; every thread is to see that
                return

    def _lead_on(self, term: "_Term") -> bool:
        """Take events until another thread leads; False once the queue is shut down."""
        poll, finished = self._queue.poll, self._core.CompletionType.operation_complete
        over = self._core.CompletionType.queue_shutdown
        while not term.over:
            event = poll()
            if event.completion_type != finished:
                if event.completion_type == over:
                    return False
                continue
            try:
                call = event.tag(event)
                event = None  # it holds its call and the message
                if call is not None:
                    self._infer(call, term)
            except BaseException:  # without this thread no further call would be taken
                log.exception("a gRPC call failed")
            event = call = None
        return True

    def _hand_over(self, term: "_Term") -> None:
        with self._lock:
            if term.over:
                return
            term.over = True
        self._lead.put(None)

    def _replace_stuck(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            term = self._term
            away_since = term.away_since
            if away_since and time.monotonic_ns() - away_since > STUCK_NS:
                self._hand_over(term)

    # ---- events -----------------------------------------------------------------------------

    def _ask(self, path: str) -> None:
        """Ask grpcio for the next call of a method; under the lock."""
        if not self._closing:
            arrived = functools.partial(self._arrived, path)
            self._server.request_registered_call(self._queue, self._queue, path, arrived)
            self._due += 1
            self._asked += 1

    def _less(self, _event: Any = None) -> None:
        with self._lock:
            self._due -= 1
            closing = self._closing
        if closing:
            self._end()

    def _end(self) -> None:
        """Let the threads go once nothing can come any more."""
        with self._lock:
            if self._due or self._watching or self._ended.is_set():
                return
            self._ended.set()
        # Only now: a batch on a queue that is shut down would end the process.
        self._queue.shutdown()
        for _ in range(ANSWERERS):
            self._answers.put(None)

    def _arrived(self, path: str, event: Any) -> None:
        with self._lock:
            self._asked -= 1
            if event.success:
                self._ask(path)
        if not event.success:  # the server stops
            self._less()
            return
        call = Call(event, self._core, self._methods[path])
        try:
            call.method.check(call)
        except Exception as error:  # noqa: BLE001 - the client is told
            self._refuse(call, failure_of(error))
            return
        self._unfinished.begin(call, self._refuse)
        call.receive(functools.partial(self._received, call))

    def _received(self, call: Call, event: Any) -> Call | None:
        message = event.batch_operations[0].message()
        if not self._unfinished.end(call, len(message or b"")):
            return None  # it was given up
        if message is None:  # it was cancelled, or ended without a request
            self._refuse(call, InvalidRequest("the call requires exactly one request message"))
            return None
        if self._due - self._asked - len(self._unfinished) > self._most and not call.small:
            self._refuse(
                call, Overloaded("as many calls are open as this server holds at a time", "calls")
            )
            return None
        call.reservation = Reservation(self._budget)
        if len(message) > SMALL:
            try:
                call.reservation.grow(len(message))
            except KsrvError as error:
                self._refuse(call, error)
                return None
        call.message = message
        if call.method.answer is None:
            return call
        assert call.method.pool is not None, "a method with an answer has a pool"
        call.method.pool.submit(self._answer_other, call)
        return None

    def _closed(self, call: Call, _event: Any) -> None:
        handle = call.handle
        if handle is not None and not handle.done():
            handle.cancel()
        with self._lock:
            self._watching -= 1
            closing = self._closing
        if closing:
            self._end()

    def _answer_other(self, call: Call) -> None:
        answer = call.method.answer
        assert answer is not None, "only methods with an answer go to a pool"
        try:
            made = answer(self._message(call), call)
        except Exception as error:  # noqa: BLE001 - the client is told
            self._refuse(call, failure_of(error))
            return
        self._send(call, made)

    # ---- requests ---------------------------------------------------------------------------

    def _message(self, call: Call) -> bytes:
        """Return a call's message as the client wrote it."""
        assert call.reservation is not None, "a message that is there can be counted"
        return as_written(call.take_message(), call.method.limits, call.reservation)

    def _infer(self, call: Call, term: "_Term") -> None:
        """Read a request, and run it on the spot where the engine lets this thread."""
        assert call.message is not None, "only calls with a message are answered"
        size = len(call.message)
        try:
            self._places.get_nowait()
        except Empty:
            self._begin(call, allow_inline=False)
            return
        try:
            began = time.monotonic_ns()
            if self._pace_ns > LONG_NS or size >= LARGE or encoding_of(call.message):
                self._hand_over(term)
            else:
                term.away_since = began
            if size >= self._trim_from:
                buffer_pool.trim_malloc()
            self._begin(call, allow_inline=True)
            if size < LARGE:
                took = time.monotonic_ns() - began
                self._pace_ns += (min(took, MOST_NS) - self._pace_ns) // 16
        finally:
            term.away_since = 0
            self._places.put(None)

    def _begin(self, call: Call, *, allow_inline: bool) -> None:
        try:
            call.request = self._calls.read(self._message(call), call)
            call.free()  # from here on the engine's queue counts the request
            call.owner = threading.get_ident()
            ended = functools.partial(self._request_ended, call)
            call.handle = self._calls.submit(call.request, ended, allow_inline=allow_inline)
        except BaseException as error:  # noqa: BLE001 - the client is told
            self._refuse(call, failure_of(error))
            return
        call.owner = 0
        if call.ended_here:
            self._answer(call)
        else:
            self._watch(call)

    def _request_ended(self, call: Call, handle: "RequestHandle") -> None:
        """Have a request's answer written; called once, on whichever thread ended it."""
        if call.owner == threading.get_ident():
            call.ended_here = True
        else:
            call.handle = handle
            self._answers.put(call)

    def _watch(self, call: Call) -> None:
        """Give a deferred request up when its call ends before it is answered."""
        with self._lock:
            if not call.sent:
                call.watched = True
                self._watching += 1
                call.watch(functools.partial(self._closed, call))

    def _answer(self, call: Call) -> None:
        request, handle = call.request, call.handle
        assert request is not None, "an accepted call has its request"
        assert handle is not None, "an accepted call has its handle"
        # The answer is a copy of the tensors; the request's memory is free before it leaves.
        call.request = call.handle = None
        try:
            message = self._calls.finish(call, request, handle)
        except BaseException as error:  # noqa: BLE001 - the client is told
            self._refuse(call, failure_of(error))
            return
        del request, handle
        self._send(call, message)

    def _refuse(self, call: Call, error: KsrvError) -> None:
        call.request = call.handle = None
        set_status(call, error)
        self._send(call, None)

    def _send(self, call: Call, message: bytes | None) -> None:
        call.free()
        if call.ended_here and self._held is None:  # no other thread knows of this call
            call.send(message, self._less)
            return
        with self._lock:  # whether it is watched must not change meanwhile
            if call.sent:
                return
            call.sent = True
            if self._held is not None:
                self._held.append((call, message))
                return
        call.send(message, self._less)

    def _write_answers(self) -> None:
        while (call := self._answers.get()) is not None:
            try:
                self._answer(call)
            except BaseException:
                log.exception("a gRPC answer failed")
            del call
