# Needs the GIL: Python objects pass from one thread to another.
"""The HTTP server, for gunicorn's worker: received requests, and answers to send.

`HttpServer` sets up the native server (native/server/server.hpp). Requests reach Python in two
ways. An I/O thread that holds the GIL runs `_serve` for infer requests in a usual form: it pushes
them into a queue, or gives them to the handler as an `Exchange`. Other threads take all other
requests with `HttpServer.next_app_message`, for the Falcon app.
"""

import logging
import time
from typing import Any, TypeAlias

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF
cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector

from native.http.connection cimport Connection
from native.http.outgoing cimport Owners
from native.infer.plain_request cimport PlainForm
from native.http.prepared_answer cimport PREPARED_ANSWERS, PreparedAnswer as CPreparedAnswer
from native.queue.request_queue cimport retain
from native.reactor.connection_limits cimport ConnectionLimits as CConnectionLimits
from native.server.access_log cimport AccessRecord
from native.server.app_messages cimport AppQueueKind
from native.server.http_connections cimport HttpServerConfig
from native.server.route_table cimport ModelRoute, RouteTable
from native.server.server cimport Refusal

from ksrv._native.http.proxy_header cimport ProxyRules
from ksrv._native.http.request_head cimport HeadRules
from ksrv._native.queue.request_queue cimport Queue
from ksrv._native.reactor.connection_limits cimport ConnectionLimits
from ksrv._native.reactor.counters cimport counted, counted_errors
from ksrv._native.server.app_message cimport ksrv_app_message
from ksrv._native.server.exchange cimport ksrv_address, ksrv_route
from ksrv._native.server.model_endpoint cimport ModelEndpoint, ksrv_serve_fast_requests
from ksrv._native.tls.tls_context cimport TlsContext

if not cython.compiled:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ksrv._native.server.app_message import AppMessage
    from ksrv._native.server.exchange import Exchange

    Route: TypeAlias = tuple[
        str, str, Queue, PreparedAnswer, ModelEndpoint | None, PreparedAnswer | None,
        PreparedAnswer | None, int,
    ]

log: logging.Logger = logging.getLogger(__name__)

PreparedAnswer: TypeAlias = tuple[int, bytes, bytes, bytes]
Address: TypeAlias = tuple[Any, ...] | str

PREPARED_ANSWERS_NEEDED = (
    "live", "ready", "too_slow", "bytes_in_flight", "failed", "server", "not_tls", "not_ready",
)
_NO_ANSWER = (0, b"", b"", b"")
assert len(PREPARED_ANSWERS_NEEDED) == PREPARED_ANSWERS + 1

cdef void _serve(void *owner) noexcept:
    """Run the connections that wait for Python. Called by the event loop with the GIL."""
    cdef HttpServer self = <HttpServer>owner
    cdef Connection *connection
    _release_sent(self.server)
    while True:
        connection = self.server.routes.next_to_run()
        if connection == NULL:
            return
        if connection.checking:
            _check(self, connection)
        elif connection.fast_request != NULL:
            ksrv_serve_fast_requests(self.server, connection)
        else:
            ksrv_route(self, &self.server.answers, connection.open_turn(), self.handler)


cdef void _release_sent(CHttpServer *server) noexcept:
    """Release sent answers. Threads that sent them had no GIL to release their Python objects."""
    cdef Owners *owners = server.connections.decrefs.take()
    cdef Owners *following
    while owners != NULL:
        following = owners.next
        owners.give_back()
        Py_DECREF(<object>owners.object)
        owners = following


cdef void _check(HttpServer self, Connection *connection) noexcept:
    """Check whether a caller may send a body, then give the connection back to the HTTP server."""
    cdef cbool admitted
    connection.checking = False
    connection.close_after = True  # if the check fails, the body is not read
    try:
        admitted = self.check(PyBytes_FromStringAndSize(
            <const char *>connection.buffer, connection.head.length
        ))
    except BaseException:
        self.server.answers.fail(connection.open_turn())
        log.exception("the look at who calls failed")
        return
    connection.close_after = connection.head.close
    with nogil:
        self.server.checked(connection, admitted)


cdef int _fill_answer(CPreparedAnswer *made, tuple answer) except -1:
    made.status = answer[0]
    made.status_line = <bytes>answer[1]
    made.fields = <bytes>answer[2]
    made.body = <bytes>answer[3]
    return 0


@cython.no_gc_clear  # __dealloc__ needs the loop
cdef class HttpServer:
    """The HTTP/1.1 connections that a worker's event loop serves.

    Args:
        handler: Called with an `Exchange` for each infer request. It must not block.
        answers: The ready-made answers by name (`PREPARED_ANSWERS_NEEDED`): status, status line,
            header lines and body.
        check: Called with a head before the body is received. Returns whether the caller may send
            the body. Messages of other callers are left to the app. None permits every caller.
        shared: Whether other processes accept from the same listeners. They then take turns.
        log: Whether to keep records for an access log.
        tls: Encrypts all connections. None for cleartext.
        proxy: Which connections begin with a PROXY protocol header. None if no connection does.
        plain: The paths of plain JSON, which are inference requests like KServe v2's: the path,
            such as `/v1/models/{name}:predict`, and the keys of the rows in a request and in an
            answer. Empty keys: both are an object of tensors by their names.

    Raises:
        KeyError: An answer is missing.
        OSError: epoll could not be set up.
    """

    def __cinit__(
        self,
        EventLoop loop not None,
        HeadRules rules not None,
        ConnectionLimits limits not None,
        handler: Callable[[Exchange], None],
        answers: Mapping[str, PreparedAnswer],
        *,
        check: Callable[[bytes], bool] | None = None,
        bint shared=False,
        bint log=False,
        TlsContext tls=None,
        ProxyRules proxy=None,
        plain: Iterable[tuple[str, str, str]] = (),
    ):
        cdef HttpServerConfig config
        cdef PlainForm form
        cdef int index = 0
        (<CConnectionLimits *>&config)[0] = limits.limits
        config.limits = rules.limits
        if proxy is not None:
            config.proxy = proxy.rules
        for path, rows, answer in plain:
            form.number += 1
            form.rows, form.answer = (<str>rows).encode(), (<str>answer).encode()
            config.limits.plain_paths.push_back(<bytes>(<str>path).encode())
            config.plain_forms.push_back(form)
        config.checks_callers = check is not None
        config.shared = shared
        config.log = log
        self.handler = handler
        self.check = check
        self.endpoints = []
        self.loop = loop
        self.server = new CHttpServer(loop.loop, config, _serve, <void *>self)
        if tls is not None:
            self.server.tls = tls.context
        for name in PREPARED_ANSWERS_NEEDED[:PREPARED_ANSWERS]:  # the last answer can change
            _fill_answer(&self.server.answers.prepared[index], answers[name])
            index += 1
        self._set_unready(answers["not_ready"])

    def __dealloc__(self):
        if self.server != NULL and self.server.answers.open_fast_requests.load():
            # Requests in queues refer to the server, its endpoints and the loop: leak all three.
            Py_INCREF(self.endpoints)
            Py_INCREF(self.loop)
        else:
            del self.server

    def listen(self, listeners: Sequence[int]) -> None:
        """Serve listening sockets by their descriptors. Accepting begins with `accept(True)`.

        Raises:
            OSError: Memory is short, or the event loop has too many servers.
        """
        cdef vector[int] fds = listeners
        if not self.server.listen_on(fds.data(), fds.size()):
            raise OSError("the event loop cannot serve the listeners")
        self.loop.servers.append(self)

    def stop(self) -> None:
        """Make `next_app_message` return in all threads. Call it before stopping the event loop."""
        self.server.stop()

    def accept(self, bint enabled) -> None:
        """Start or stop accepting connections."""
        with nogil:
            self.server.accept_enabled(enabled)

    def drain(self) -> None:
        """From now on answers close their connections, and idle connections are closed soon."""
        self.server.drain()

    cdef int _set_unready(self, tuple answer) except -1:
        cdef CPreparedAnswer *made = new CPreparedAnswer()
        cdef shared_ptr[const CPreparedAnswer] shared
        shared.reset(made)
        _fill_answer(made, answer)
        self.server.answers.unready.replace(shared)
        return 0

    def set_health(self, *, bint ready, unready: PreparedAnswer | None = None) -> None:
        """Set the answer of the route that tells whether the server is ready.

        Args:
            ready: Whether it is ready.
            unready: The answer while the server is not ready, with the reason. None keeps the
                current answer.
        """
        if unready is not None:
            self._set_unready(unready)
        self.server.answers.ready.store(ready)

    @property
    def model_changes(self) -> int:
        """How often `note_model_change` was called."""
        return self.server.routes.model_changes.load()

    def note_model_change(self) -> None:
        """Answer model metadata with Python until `set_routes` includes this change.

        Prepared answers may be out of date until then.
        """
        self.server.routes.model_changes.fetch_add(1)

    def set_routes(self, routes: Iterable[Route], uint64_t state=0) -> None:
        """Set the routes to models. Full queues and descriptions are then answered without Python.

        Args:
            routes: For each name and version in a target (name, version, queue, answer when full,
                endpoint for fast-path requests or None, answer that describes the model or None,
                answer that the model is ready or None, a bit for each path of plain JSON that it
                has without the app).
            state: The value of `model_changes` before the routes were gathered.
        """
        cdef RouteTable *table = new RouteTable(state)
        cdef shared_ptr[const RouteTable] shared
        shared.reset(table)
        cdef ModelRoute route
        cdef ModelEndpoint endpoint
        for name, version, queue, answer, endpoint, metadata, model_ready, route.plain in routes:
            route.name = (<str>name).encode()
            route.version = (<str>version).encode()
            _fill_answer(&route.full, answer)
            _fill_answer(&route.metadata, metadata or _NO_ANSWER)
            _fill_answer(&route.model_ready, model_ready or _NO_ANSWER)
            route.queue = (<Queue?>queue).queue
            retain(route.queue)
            route.signature = NULL
            if endpoint is not None:
                route.signature = endpoint.signature
                endpoint.signature.retain()
                if endpoint not in self.endpoints:
                    self.endpoints.append(endpoint)
            table.add(route)
        table.sort()
        self.server.routes.tables.replace(shared)
        self.forget_endpoints()

    def forget_endpoints(self) -> None:
        """Release endpoints that neither routes nor requests refer to."""
        self.endpoints = [endpoint for endpoint in self.endpoints if not endpoint.unused]

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return self.server.connections.open()

    @property
    def last_connected(self) -> float:
        """When a client was last connected, by `time.monotonic`; 0 if no client was."""
        if self.server.connections.open():
            return time.monotonic()
        return self.server.listeners.last_seen_ns() / 1e9

    def counters(self) -> dict[str, int]:
        """Return the counters by name."""
        return counted(&self.server.counts)

    def errors(self) -> dict[int, int]:
        """Return how many answers were errors, by status."""
        return counted_errors(&self.server.counts)

    def next_app_message(self, *, bint questions=False) -> AppMessage | None:
        """Wait for a message for the app.

        Args:
            questions: Whether to wait for messages that need no handler, or for all others.

        Returns:
            The `AppMessage`, or None once the server stops.

        Raises:
            MemoryError: Not enough memory for a message. It was answered with 500.
        """
        cdef Connection *connection
        cdef AppQueueKind kind = AppQueueKind.metadata if questions else AppQueueKind.others
        with nogil:
            connection = self.server.next_app_message(kind)
        if connection == NULL:
            return None
        return ksrv_app_message(self, self.server, connection)

    def records(self) -> list[tuple[float, int, int, Address, bytes, str, str]]:
        """Return and remove the records of answers, for the access log.

        Returns:
            A list of (seconds, status, bytes of the body, peer's address, head, the request's id,
            the answer's `Server-Timing` or "").
        """
        cdef vector[AccessRecord] taken
        cdef size_t i
        self.server.answers.log.take(&taken)
        return [
            (
                taken[i].duration_ns / 1e9, taken[i].status, taken[i].answered_bytes,
                ksrv_address(&taken[i].peer), <bytes>taken[i].head,
                (<bytes>taken[i].request_id).decode("latin-1"),
                (<bytes>taken[i].timing).decode("latin-1"),
            )
            for i in range(taken.size())
        ]

    def refusals(self) -> list[tuple[Address, str, str]]:
        """Return and remove the connections that were closed for their protocol, at most 16.

        Returns:
            A list of (peer's address, name of the protocol, sentence with the cause).
        """
        cdef vector[Refusal] taken
        self.server.refusals.take(&taken)
        return [
            (
                ksrv_address(&taken[i].peer),
                (<bytes>taken[i].protocol).decode(), (<bytes>taken[i].cause).decode(),
            )
            for i in range(taken.size())
        ]
