# It relies on the GIL: Python objects change hands between threads, and are freed in turn.
"""The gRPC server on libnghttp2 as Python sees it: I/O threads, calls that are ready, answers."""

import logging
import socket
import time

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.utility cimport pair
from libcpp.vector cimport vector

from ksrv._native.memory.buffer_pool cimport ksrv_wrap
from ksrv._native.memory.memory_budget cimport AnswerRoom, MemoryBudget
from ksrv._native.queue.request_handle cimport CRequest, NativeHandle, release_request
from ksrv._native.queue.request_queue cimport PUSH_INLINE, PUSH_OK, Push, retain_queue
from ksrv._native.server.model_endpoint cimport ModelEndpoint, ksrv_request_of, ksrv_run_inline
from ksrv._native.server.server cimport (
    FastRequest, HttpServer, ModelRoute, ModelSignature, RouteTable, const_table,
    fail_fast_request,
)
from ksrv._native.tls.tls_context cimport TlsContext

log = logging.getLogger(__name__)

COUNTERS = (
    "accepted", "calls", "refused_connections", "floods", "too_slow", "too_large",
    "bytes_in_flight", "calls_refused", "invalid", "unknown_method", "idle_closed", "disconnected",
    "fast_path", "late", "lost_records",
)
assert len(COUNTERS) == GRPC_COUNTERS

CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)
CODE_OF = {name: number for number, name in enumerate(CODES)}

cdef enum:
    TOGETHER = 64           # requests that one visit pushes together
    COPIED = 16384          # a longer answer stays where it is
    COUNTED = 65536         # a shorter answer is not counted
    UNSENT = 1048576        # bytes of a stream's answers that wait for its client


def library_version():
    """Return the release of libnghttp2 that is used, or None where there is none."""
    cdef const Library *found = library()
    return None if found == NULL else (<bytes>found.version_text).decode()


cdef void _serve_fast(GrpcServer self, CCall *first) noexcept:
    """Push a fast call and those behind it to the same model; run them where a slot is claimed."""
    cdef CCall *calls[TOGETHER]
    cdef FastRequest *fast[TOGETHER]
    cdef CRequest *requests[TOGETHER]
    cdef Push results[TOGETHER]
    cdef ModelSignature *signature = first.fast.signature
    cdef ModelEndpoint endpoint = <ModelEndpoint>signature.endpoint
    cdef size_t room = 1, slot = 0, count = 1, inlined, i
    if signature.max_rows:
        room = <size_t>min(signature.max_rows, <uint64_t>TOGETHER)
    calls[0] = first
    first.retain()
    count += self.server.take_fast_calls(first, &calls[1], room - 1)
    for i in range(count):
        fast[i] = calls[i].fast
        requests[i] = fast[i]
        calls[i].fast = NULL
        calls[i].watch(requests[i])
    inlined = signature.queue.push_some(requests, count, signature.max_rows, results, &slot)
    for i in range(count):
        if results[i] == PUSH_OK:
            release_request(requests[i])
        elif results[i] != PUSH_INLINE:
            calls[i].unwatch()
            undo_fast_call(fast[i])
            _run(self, calls[i], RUN_READY)
    if inlined:
        ksrv_run_inline(endpoint, slot, requests, results, count)
    for i in range(count):
        calls[i].release()


cdef void _fast_answered(CRequest *request, void *answer) noexcept:
    cdef FastRequest *fast = <FastRequest *>request
    cdef CCall *native = <CCall *>fast.call
    cdef GrpcServer server = <GrpcServer>native.connection.server().owner()
    cdef Call call = None
    try:
        call = _call_of(server, native)
        server.answered(call, ksrv_request_of(fast), <object>answer)
    except BaseException:
        fail_fast_request(fast)
        log.exception("an answer over gRPC failed")


cdef void _serve(void *owner) noexcept with gil:
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
    cdef Payload *payload = server.take_decrefs()
    cdef Payload *following
    while payload != NULL:
        following = payload.next
        Py_DECREF(<object>payload.owner)
        payload.destroy()
        payload = following


cdef void _run(GrpcServer self, CCall *native, int reasons) noexcept:
    cdef Call call
    cdef object callbacks
    try:
        if reasons & (RUN_READY | RUN_CHECK):
            call = _call_of(self, native)
            try:
                if reasons & RUN_READY:
                    self.handler(call)
                else:
                    self.check(call)
                    call.finished = True  # answered with its message, which comes later
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


cdef Call _call_of(GrpcServer server, CCall *native):
    cdef Call call = Call.__new__(Call)
    native.retain()
    call.native = native
    call.server = server
    call.path = (<bytes>native.method.path).decode("ascii")
    return call


cdef str _ip_address(const sockaddr_storage *address):
    cdef const unsigned char *raw = <const unsigned char *>address
    if address.ss_family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[4:8])
    if address.ss_family == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, raw[8:24])
    return ""


@cython.no_gc_clear  # a call that is dropped unanswered is answered at its end
cdef class Call:
    """One call, with the methods of a `grpc.ServicerContext` that are needed.

    Attributes:
        path: The method's path.
    """

    cdef CCall *native
    cdef GrpcServer server
    cdef readonly str path
    cdef uint64_t counted
    cdef bint finished
    cdef int code
    cdef str details
    cdef list trailing

    def __dealloc__(self):
        if self.native != NULL:
            if not self.finished:
                self._end(CODE_OF["INTERNAL"], b"the server gave no answer; see its log", None)
            self.give_back_bytes()
            self.native.release()

    def metadata(self) -> dict:
        """Return the text metadata, names in lower case."""
        cdef dict found = {}
        cdef const char *text = self.native.text.data()
        cdef size_t i
        cdef Entry entry
        for i in range(self.native.entries.size()):
            entry = self.native.entries[i]
            name = text[entry.name:entry.name + entry.name_length].decode("latin-1")
            if not name.endswith("-bin"):
                found[name] = text[entry.value:entry.value + entry.value_length].decode("latin-1")
        found["x-request-id"] = self.request_id
        return found

    @property
    def request_id(self) -> str:
        """The call's id: the client's, or one made for it."""
        return self.native.request_id.text[:self.native.request_id.length].decode("ascii")

    @property
    def authorization(self):
        """The entry of that name, or None."""
        if self.native.authorization.empty():
            return None
        return (<bytes>self.native.authorization).decode("latin-1")

    def note_model(self, str model not None, str version not None):
        """Name the model in the access log."""
        cdef string name = model.encode()
        cdef string number = version.encode()
        self.native.note_model(name, number)

    def peer_address(self) -> str:
        """Return the caller's IP address, or "" for a unix socket."""
        return _ip_address(&self.native.connection.address)

    @property
    def deadline_ns(self):
        """The `time.monotonic_ns` of the deadline, or None."""
        return self.native.deadline_ns or None

    def is_active(self) -> bool:
        """Tell whether the call has neither ended nor been answered."""
        return self.native.is_active()

    @property
    def encoding(self):
        """How compressed messages of the call are: "gzip", "deflate", or None."""
        if self.native.encoding == Encoding.gzip:
            return "gzip"
        return "deflate" if self.native.encoding == Encoding.deflate else None

    # ---- messages ---------------------------------------------------------------------------

    cdef object _taken(self, Message *message):
        cdef object whole
        cdef bint compressed = message.compressed
        self.give_back_bytes()
        self.counted = message.counted
        if message.block == NULL:
            return b"", compressed
        whole = memoryview(ksrv_wrap(message.block))
        return whole[message.offset:message.offset + message.length], compressed

    def message(self):
        """Return the only message of a unary call, and whether it is compressed; taken once."""
        cdef Message message
        if not self.native.take_message(&message):
            raise RuntimeError("the call's message was taken before")
        return self._taken(&message)

    def next_message(self, double timeout):
        """Wait for the next message of a stream.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            The message, and whether it is compressed. None: the client sends no more, or the
            call has ended. False: none has come in time.
        """
        cdef Message message
        cdef Next found
        cdef int64_t until = time.monotonic_ns() + <int64_t>(timeout * 1e9)
        with nogil:
            found = self.native.next_message(&message, until)
        if found == Next.message:
            return self._taken(&message)
        return False if found == Next.late else None

    def give_back_bytes(self):
        """Give the bytes of the message that was taken last back to the budget."""
        if self.counted:
            self.server.server.budget.give_back(self.counted)
            self.counted = 0

    @property
    def admitted(self):
        """Whether nobody needs to look at the caller: he was looked at, or everybody may call.

        Where no token is needed, that is not said of calls that change the repository.
        """
        return self.native.admitted.load() and not self.native.method.control

    def admit(self):
        """Let the client send a message of any size: its caller may call."""
        self.native.admit()

    # ---- the end ----------------------------------------------------------------------------

    def add_callback(self, callback) -> bool:
        """Have a function called when the call ends; False where it has ended.

        Args:
            callback: Called on any thread; it must not wait.
        """
        cdef list callbacks
        if self.native.callbacks != NULL:
            (<list>self.native.callbacks).append(callback)
            return True
        callbacks = [callback]
        Py_INCREF(callbacks)
        if self.native.tell_of_end(<void *>callbacks):
            return True
        Py_DECREF(callbacks)
        return False

    def watch(self, NativeHandle handle not None):
        """Have a request cancelled if the call ends before it is answered.

        Args:
            handle: The request, queued.
        """
        with nogil:
            self.native.watch(handle.native)

    def cancel(self):
        """End the call without a status."""
        self.finished = True
        with nogil:
            self.native.cancel()

    # ---- answers ----------------------------------------------------------------------------

    def write(self, message not None) -> bool:
        """Send one message of a stream; waits while the client takes none.

        Returns:
            Whether the call goes on; None where the budget has no room for the message.
        """
        cdef bint open_still
        cdef Payload *payload = self._payload(message)
        if payload == NULL:
            return None
        with nogil:
            self.native.write(payload)
            open_still = self.native.wait_for_room(UNSENT)
        return open_still

    def answer(self, message not None, list metadata=None) -> bool:
        """Send the only message of an answer, and end the call well.

        Args:
            message: Contiguous bytes, or a list of such parts, which are held until they were sent.
            metadata: Trailing metadata as pairs of text.

        Returns:
            False where the budget has no room for the answer; the call is open still.
        """
        cdef Payload *payload
        if isinstance(message, list):
            payload = self._parts(message)
        else:
            payload = self._payload(message)
        if payload == NULL:
            return False
        self.finished = True
        self._send(payload, 0, b"", metadata)
        return True

    def finish(self, int code=0, str text="", list metadata=None):
        """End the call; further calls do nothing.

        Args:
            code: The status.
            text: What is wrong.
            metadata: Trailing metadata as pairs of text.
        """
        if not self.finished:
            self.finished = True
            self._end(code, text.encode("utf-8", "replace"), metadata)

    cdef int _end(self, int code, bytes text, list metadata) except -1:
        return self._send(NULL, code, text, metadata)

    cdef int _send(self, Payload *payload, int code, bytes text, list metadata) except -1:
        cdef vector[pair[string, string]] pairs
        cdef pair[string, string] entry
        cdef string words = text
        if metadata is not None:
            for name, value in metadata:
                entry.first = (<str>name).encode("latin-1")
                entry.second = (<str>value).encode("latin-1")
                pairs.push_back(entry)
        with nogil:
            self.native.finish(code, words, pairs, payload)
        return 0

    cdef Payload *_parts(self, list parts) except? NULL:
        """The same for a message in parts."""
        cdef list views = [memoryview(part) for part in parts]
        cdef uint64_t total = 0
        cdef Py_buffer view
        cdef Payload *payload = Payload.make(self.server.server, <int>len(views), 0)
        if payload == NULL:
            raise MemoryError()
        for part in views:
            PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
            payload.add(view.buf, <size_t>view.len)
            total += <uint64_t>view.len
            PyBuffer_Release(&view)  # the memoryview holds the bytes
        payload.room = self.server.server.budget.reserve_answer(total)
        if payload.room == AnswerRoom.none:
            payload.destroy()
            return NULL
        payload.budget = self.server.server.budget
        payload.counted = total
        payload.owner = <void *>views
        Py_INCREF(views)
        payload.close()
        return payload

    cdef Payload *_payload(self, message) except? NULL:
        """A message to be sent; NULL where the budget has no room for it."""
        cdef Py_buffer view
        cdef Payload *payload
        cdef size_t length
        PyObject_GetBuffer(message, &view, PyBUF_SIMPLE)
        length = <size_t>view.len
        try:
            payload = Payload.make(self.server.server, 1, length if length <= COPIED else 0)
            if payload == NULL:
                raise MemoryError()
            if length <= COPIED:
                memcpy(payload.bytes(), view.buf, length)
                payload.add(payload.bytes(), length)
            else:
                if length > COUNTED:
                    payload.room = self.server.server.budget.reserve_answer(length)
                    if payload.room == AnswerRoom.none:
                        payload.destroy()
                        return NULL
                    payload.budget = self.server.server.budget
                    payload.counted = length
                payload.add(view.buf, length)
                payload.owner = <void *>message
                Py_INCREF(message)
            payload.close()
            return payload
        finally:
            PyBuffer_Release(&view)


cdef class GrpcServer:
    """The I/O threads of one worker's gRPC server and the connections that they own.

    Args:
        methods: The fields of native/grpc/call.hpp's `Method` for each method.
        handler: Called with a `Call` that is ready: its message is there, or it takes messages one
            by one. It must not wait.
        check: Called with a `Call` whose caller is unknown; it admits or ends it.
        answered: Called with a `Call`, its request, and a response or an exception, where an answer
            to a call that was queued without Python takes Python.
        budget: The bytes that requests and answers may hold together.
        settings: The fields of native/grpc/server.hpp's `ServerConfig` that are not as there;
            seconds for times.
        tls: What all connections are encrypted with; None for cleartext.

    Raises:
        OSError: There is no libnghttp2.
    """

    cdef CServer *server
    cdef object handler
    cdef object check
    cdef object answered
    cdef list endpoints
    cdef MemoryBudget budget
    cdef HttpServer http

    def __cinit__(
        self, methods, handler, check, answered, MemoryBudget budget not None, dict settings,
        TlsContext tls=None,
    ):
        cdef ServerConfig config
        cdef Method method
        if library() == NULL:
            raise OSError("libnghttp2.so.14 cannot be loaded: install libnghttp2")
        config.threads = settings["threads"]
        config.connections = settings["connections"]
        config.streams = settings["streams"]
        config.message = settings["message"]
        config.message_by_budget = settings["message_by_budget"]
        config.small_message = settings["small_message"]
        config.head = settings["head"]
        config.calls = settings["calls"]
        config.head_ns = <uint64_t>(<double>settings["head_timeout"] * 1e9)
        config.grace_ns = <uint64_t>(<double>settings["grace"] * 1e9)
        config.rate = settings["rate"]
        config.log = settings["log"]
        config.idle_ns = <uint64_t>(<double>settings["idle"] * 1e9)
        config.age_ns = <uint64_t>(<double>settings["age"] * 1e9)
        config.checks_callers = settings["checks_callers"]
        config.decompress = settings["decompress"]
        self.handler = handler
        self.check = check
        self.answered = answered
        self.endpoints = []
        self.budget = budget
        self.server = new CServer(config, budget.budget, _serve, <void *>self)
        self.server.fast_answered = _fast_answered
        if tls is not None:
            self.server.tls = tls.context
        for declared in methods:
            method.path = (<str>declared["path"]).encode("ascii")
            method.streams = declared["streams"]
            method.small = declared["small"]
            method.infer = declared["infer"]
            method.is_open = declared["is_open"]
            method.control = declared["control"]
            self.server.add_method(method)

    def __dealloc__(self):
        if self.server != NULL:
            self.server.close_all()
            _release_sent(self.server)
            if self.http is None:  # else its streams may refer to the server
                del self.server

    def set_routes(self, routes):
        """Say which models take calls without Python before their handler.

        Args:
            routes: (name, version, endpoint) for each name and version that a request may have.
        """
        cdef RouteTable *table = new RouteTable(0)
        cdef shared_ptr[const_table] shared = shared_ptr[const_table](<const_table *>table)
        cdef ModelRoute route
        cdef ModelEndpoint endpoint
        if not self.endpoints:
            Py_INCREF(self)  # requests in the queues of models refer to it from now on
        for name, version, endpoint in routes:
            route.name = (<str>name).encode()
            route.version = (<str>version).encode()
            route.queue = endpoint.queue.queue
            retain_queue(route.queue)
            route.signature = endpoint.signature
            endpoint.signature.retain()
            if endpoint not in self.endpoints:
                self.endpoints.append(endpoint)
            table.add(route)
        table.sort()
        self.server.routes.replace(shared)
        self.endpoints = [endpoint for endpoint in self.endpoints if not endpoint.unused]

    def listen(self, listeners):
        """Watch listening sockets by their descriptors; accepting begins with `accept(True)`.

        Raises:
            OSError: epoll or an eventfd could not be set up.
        """
        cdef vector[int] fds = listeners
        if not self.server.listen_on(fds.data(), fds.size()):
            raise OSError("the gRPC server's epoll instance could not be set up")

    def serve_with(self, HttpServer http not None):
        """Take the connections of an HTTP server that speak HTTP/2; before it listens.

        Args:
            http: Where their requests that are not gRPC's are served.
        """
        self.http = http
        self.server.serve_with(http.server)

    def run(self, int index):
        """Be I/O thread number `index`, without the GIL, until `stop` is called."""
        with nogil:
            self.server.run(index)

    def stop(self):
        """Have every call of `run` return."""
        with nogil:
            self.server.stop()

    def accept(self, bint enabled):
        """Begin or stop accepting connections."""
        with nogil:
            self.server.accept_enabled(enabled)

    def drain(self):
        """Tell all clients that the server stops: new calls are to go elsewhere."""
        with nogil:
            self.server.drain()

    def close_all(self):
        """Cut off every connection."""
        with nogil:
            self.server.close_all()

    @property
    def open_connections(self):
        """The number of open connections."""
        return self.server.open_connections.load()

    @property
    def open_calls(self):
        """The number of unary calls that are being answered."""
        return self.server.open_calls.load()

    @property
    def unfinished(self):
        """The number of calls whose message has not come."""
        return self.server.unfinished.load()

    def records(self):
        """Return and forget the calls that ended since the last call, for the access log.

        Returns:
            A list of (method's path, seconds it took, status, bytes of the answer, peer's IP
            address, the call's id, model or "", version or "").
        """
        cdef vector[CallRecord] taken
        cdef size_t i
        self.server.take_records(&taken)
        return [
            (
                (<bytes>taken[i].path).decode("latin-1"), taken[i].duration_ns / 1e9,
                CODES[taken[i].status] if taken[i].status < len(CODES) else str(taken[i].status),
                taken[i].answered_bytes, _ip_address(&taken[i].peer),
                (<bytes>taken[i].request_id).decode("ascii"),
                (<bytes>taken[i].model).decode("utf-8", "replace"),
                (<bytes>taken[i].version).decode("utf-8", "replace"),
            )
            for i in range(taken.size())
        ]

    def counters(self):
        """Return what has happened so far, by name."""
        return {name: self.server.counters[index].load() for index, name in enumerate(COUNTERS)}
