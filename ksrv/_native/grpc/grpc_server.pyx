# Needs the GIL: Python objects pass from one thread to another.
"""The gRPC server on libnghttp2, for Python: calls that are ready, and their answers.

`GrpcServer` sets up the native server. When calls need Python, an I/O thread that holds the GIL
runs `_serve`. It pushes calls of the fast path, whose tensors were read without Python, into the
queue of their model, and gives every other call to the server's handler.
"""

import logging
import time

from cpython.ref cimport Py_DECREF, Py_INCREF
cimport cython
from libc.stdint cimport uint64_t
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector

from native.grpc.call cimport Call as CCall, Method, RUN_CHECK, RUN_ENDED, RUN_READY
from native.grpc.fast_call cimport MODEL_INFER as MODEL_INFER_MESSAGES, undo_fast_call
from native.grpc.payload cimport Payload
from native.grpc.server cimport CallRecord, Server as CServer, ServerConfig
from native.http2.library cimport Library, library
from native.queue.request cimport Request as CRequest
from native.queue.request_queue cimport PUSH_INLINE, PUSH_OK, Push, retain
from native.reactor.connection_limits cimport ConnectionLimits as CConnectionLimits
from native.server.fast_path cimport FastRequest, fail_fast_request
from native.server.route_table cimport ModelRoute, RouteTable

from ksrv._native.grpc.grpc_call cimport Call, MessageForm, call_of, form_of
from ksrv._native.memory.memory_budget cimport MemoryBudget
from ksrv._native.reactor.connection_limits cimport ConnectionLimits
from ksrv._native.reactor.counters cimport counted
from ksrv._native.reactor.event_loop cimport EventLoop
from ksrv._native.server.exchange cimport ksrv_ip_address
from ksrv._native.server.model_endpoint cimport (
    ModelEndpoint, TOGETHER, ksrv_push_fast, ksrv_request_of,
)
from ksrv._native.tls.tls_context cimport TlsContext

from ksrv._native.grpc.grpc_call import CODE_OF, CODES

if not cython.compiled:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ksrv.request import InferRequest

MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
MODEL_INFER_FORM: MessageForm = form_of(&MODEL_INFER_MESSAGES)

log: logging.Logger = logging.getLogger(__name__)


def library_version() -> str | None:
    """Return the version of libnghttp2 in use, or None if it is missing."""
    cdef const Library *found = library()
    return None if found == NULL else (<bytes>found.version_text).decode()


cdef void _serve_fast(GrpcServer self, CCall *first) noexcept:
    """Push a fast call, and the next calls to the same model, into the model's queue.

    If the push claims the slot of an idle instance, the calls are run on this thread. Calls that
    the queue refuses are left to Python, which has the error texts.
    """
    cdef CCall *calls[TOGETHER]
    cdef FastRequest *fast[TOGETHER]
    cdef Push results[TOGETHER]
    cdef uint64_t max_rows = first.fast.signature.max_rows
    # max_rows is 0 if the model does not batch.
    cdef size_t room = <size_t>min(max_rows, <uint64_t>TOGETHER) if max_rows else 1
    cdef size_t count = 1, i
    calls[0] = first
    first.retain()
    count += self.server.take_fast_calls(first, &calls[1], room - 1)
    for i in range(count):
        fast[i] = calls[i].fast
        calls[i].fast = NULL
        calls[i].watch(fast[i])  # before the push, because after it the timer may answer the call
    ksrv_push_fast(fast, count, results)
    for i in range(count):
        if results[i] != PUSH_OK and results[i] != PUSH_INLINE:
            calls[i].unwatch()
            undo_fast_call(fast[i])
            _run(self, calls[i], RUN_READY)
        calls[i].release()


cdef void _fast_answered(CRequest *request, void *answer) noexcept:
    """Answer a fast call with Python. Called with the GIL, as `Request.answered`."""
    cdef FastRequest *fast = <FastRequest *>request
    cdef CCall *native = <CCall *>fast.call
    cdef GrpcServer server = <GrpcServer>native.connection.server().owner()
    cdef Call call = None
    try:
        call = call_of(server, server.server, native)
        server.answered(call, ksrv_request_of(fast), <object>answer)
    except BaseException:
        fail_fast_request(fast)
        log.exception("an answer over gRPC failed")


cdef void _serve(void *owner) noexcept:
    """Run the calls that wait for Python. Called by the event loop with the GIL."""
    cdef GrpcServer self = <GrpcServer>owner
    cdef CCall *native
    cdef int reasons = 0
    _release_sent(self.server)
    while True:
        native = self.server.next_to_run(&reasons)
        if native == NULL:
            return
        if native.fast != NULL:
            _serve_fast(self, native)
            reasons &= ~RUN_READY
        if reasons:
            _run(self, native, reasons)
        native.release()


cdef void _release_sent(CServer *server) noexcept:
    """Free sent payloads. Threads that sent them had no GIL to release their Python objects."""
    cdef Payload *payload = server.decrefs.take()
    cdef Payload *following
    while payload != NULL:
        following = payload.next
        Py_DECREF(<object>payload.owner)
        payload.destroy()
        payload = following


cdef void _run(GrpcServer self, CCall *native, int reasons) noexcept:
    """Run a call's handler or check, or its callbacks. `reasons` has bits of `RunReason`."""
    cdef Call call
    cdef object callbacks
    try:
        if reasons & (RUN_READY | RUN_CHECK):
            call = call_of(self, self.server, native)
            try:
                if reasons & RUN_READY:
                    self.handler(call)
                else:
                    self.check(call)
                    # This `Call` must not end the call when it is deleted: another `Call` is made
                    # and answers once the message has arrived.
                    call.finished = True
            except BaseException:
                call.finish(CODE_OF["INTERNAL"], "the server failed; see its log")
                log.exception("a gRPC call failed")
        if reasons & RUN_ENDED and native.callbacks != NULL:
            callbacks = <object>native.callbacks
            native.callbacks = NULL
            Py_DECREF(callbacks)
            for callback in callbacks:
                try:
                    callback()
                except BaseException:
                    log.exception("a callback at the end of a gRPC call failed")
    except BaseException:
        log.exception("a gRPC call failed")


@cython.no_gc_clear  # __dealloc__ needs the loop
cdef class GrpcServer:
    """The HTTP/2 connections that a worker's event loop serves.

    Args:
        loop: The event loop.
        methods: The `ksrv.server.grpc.services.Method` of each path.
        handler: Called with a `Call` that is ready: its message is complete, or it takes messages
            one by one. It must not block.
        check: Called with a `Call` whose caller is unknown. It admits the call or ends it.
        answered: Called with a `Call`, its request, and a response or an exception, if a call that
            was queued without Python needs Python for its answer.
        budget: The memory budget for requests and answers.
        limits: The limits of connections.
        settings: Fields of `ServerConfig` in native/grpc/server.hpp.
        tls: Encrypts all connections. None for cleartext.
        misdirected_body: The JSON body of the answer to requests that are not gRPC.

    Raises:
        OSError: libnghttp2 is missing.
    """

    cdef CServer *server
    cdef EventLoop loop
    cdef object handler
    cdef object check
    cdef object answered
    cdef list endpoints  # kept alive while routes or requests refer to their signatures
    cdef dict methods  # kept alive while native methods refer to their readers
    cdef MemoryBudget budget

    def __cinit__(
        self,
        EventLoop loop not None,
        dict methods: dict[str, Any],
        handler: Callable[[Call], object],
        check: Callable[[Call], object],
        answered: Callable[[Call, InferRequest, object], object],
        MemoryBudget budget not None,
        ConnectionLimits limits not None,
        dict settings: dict[str, Any],
        TlsContext tls=None,
        bytes misdirected_body=b"",
    ):
        cdef ServerConfig config
        cdef Method method
        if library() == NULL:
            raise OSError("libnghttp2.so.14 cannot be loaded: install libnghttp2")
        (<CConnectionLimits *>&config)[0] = limits.limits
        config.streams = settings["streams"]
        config.message = settings["message"]
        config.message_by_budget = settings["message_by_budget"]
        config.small_message = settings["small_message"]
        config.head = settings["head"]
        config.calls = settings["calls"]
        config.log = settings["log"]
        config.checks_callers = settings["checks_callers"]
        config.own_hosts = settings["own_hosts"]
        config.decompress = settings["decompress"]
        self.handler = handler
        self.check = check
        self.answered = answered
        self.endpoints = []
        self.methods = methods
        self.budget = budget
        self.loop = loop
        self.server = new CServer(loop.loop, config, budget.budget, _serve, <void *>self)
        self.server.fast_answered = _fast_answered
        if tls is not None:
            self.server.tls = tls.context
        self.server.misdirected_body = misdirected_body
        for path, declared in methods.items():
            method.path = (<str>path).encode("ascii")
            method.streams = declared.stream is not None
            method.small = declared.small
            method.form = NULL
            if declared.infer is not None and declared.infer.form is not None:
                method.form = (<MessageForm?>declared.infer.form).native
                method.reader = <void *>declared.infer
            method.is_open = declared.is_open
            method.control = declared.control
            self.server.add_method(method)

    def __dealloc__(self):
        if self.server != NULL:
            self.close_all()
            del self.server

    def set_routes(self, routes: Sequence[tuple[str, str, ModelEndpoint]]) -> None:
        """Set the models whose calls need no Python before their handler.

        Args:
            routes: (name, version, endpoint) for each name and version in a request.
        """
        # 0: the table has no prepared answers that a change of a model could make out of date.
        cdef RouteTable *table = new RouteTable(0)
        cdef shared_ptr[const RouteTable] shared
        shared.reset(table)
        cdef ModelRoute route
        cdef ModelEndpoint endpoint
        if not self.endpoints:
            # From now on requests in the queues of models refer to this server: it is never freed.
            Py_INCREF(self)
        for name, version, endpoint in routes:
            route.name = (<str>name).encode()
            route.version = (<str>version).encode()
            route.queue = endpoint.queue.queue
            retain(route.queue)
            route.signature = endpoint.signature
            endpoint.signature.retain()
            if endpoint not in self.endpoints:
                self.endpoints.append(endpoint)
            table.add(route)
        table.sort()
        self.server.routes.replace(shared)
        self.endpoints = [endpoint for endpoint in self.endpoints if not endpoint.unused]

    def listen(self, listeners: Sequence[int]) -> None:
        """Serve listening sockets by their descriptors. Accepting begins with `accept(True)`.

        Raises:
            OSError: Memory is short, or the event loop has too many servers.
        """
        cdef vector[int] fds = listeners
        if not self.server.listen_on(fds.data(), fds.size()):
            raise OSError("the event loop cannot serve the listeners")
        self.loop.servers.append(self)

    def accept(self, bint enabled) -> None:
        """Start or stop accepting connections."""
        with nogil:
            self.server.accept_enabled(enabled)

    def drain(self) -> None:
        """Notify all clients that the server stops, so that they send new calls elsewhere."""
        with nogil:
            self.server.drain()

    def close_all(self) -> None:
        """Close every connection, and free what they have sent: the event loop may stop next."""
        with nogil:
            self.server.close_all()
        _release_sent(self.server)

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return self.server.connections.count()

    @property
    def last_connected(self) -> float:
        """When a client was last connected, by `time.monotonic`; 0 if no client was."""
        if self.server.connections.count():
            return time.monotonic()
        return self.server.listeners.last_seen_ns() / 1e9

    def records(self) -> list[tuple[str, float, str, int, str, str, str, str, bytes]]:
        """Return and remove the records of calls that have ended, for the access log.

        Returns:
            A list of (method's path, seconds, status, bytes of the answer, peer's IP address, the
            call's id, model or "", version or "", the lines of its metadata).
        """
        cdef vector[CallRecord] taken
        cdef size_t i
        self.server.records.take(&taken)
        return [
            (
                (<bytes>taken[i].path).decode("latin-1"), taken[i].duration_ns / 1e9,
                CODES[taken[i].status] if taken[i].status < len(CODES) else str(taken[i].status),
                taken[i].answered_bytes, ksrv_ip_address(&taken[i].peer),
                (<bytes>taken[i].request_id).decode("ascii"),
                (<bytes>taken[i].model).decode("utf-8", "replace"),
                (<bytes>taken[i].version).decode("utf-8", "replace"),
                <bytes>taken[i].metadata,
            )
            for i in range(taken.size())
        ]

    def counters(self) -> dict[str, int]:
        """Return the counters by name."""
        return counted(&self.server.counters)
