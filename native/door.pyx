"""The door as the gunicorn worker sees it: I/O threads, requests that came in, answers to send."""

import logging
import os
import socket
from collections.abc import Mapping

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector

from ksrv._native.arena cimport (
    Block, CBlock, ksrv_lease, ksrv_release, ksrv_retain, ksrv_wrap,
)
from ksrv._native.queue cimport (
    CQueue, Queue, ksrv_queue_full, ksrv_queue_release, ksrv_queue_retain,
)
from ksrv._native.recogniser cimport HeadRules

log = logging.getLogger(__name__)

ReadyAnswer = tuple
Address = tuple | str

COUNTERS = (
    "accepted", "infer", "health", "handed", "answered", "too_slow", "no_room", "queue_full",
    "idle_closed", "vanished", "accept_paused",
)
READY_ANSWERS_NEEDED = (
    "live", "not_live", "ready", "not_ready", "too_slow", "no_room", "failed",
)

# Below this many bytes an answer is sent with the GIL held: giving it up could cost 5 ms.
cdef enum:
    SENT_WITH_GIL = 65536


cdef class HeadFields:
    """The header fields of a request, read from its head when somebody first looks: a `Mapping`.

    Names are in lower case; a field that occurs several times is joined with commas, as WSGI does.

    Args:
        head: The bytes of a complete head.
    """

    cdef bytes head
    cdef dict fields

    def __cinit__(self, bytes head not None):
        self.head = head

    cdef dict read(self):
        cdef dict fields = self.fields
        if fields is None:
            fields = {}
            lines = self.head.decode("latin-1").split("\r\n")
            for line in lines[1:len(lines) - 2]:
                name, _, value = line.partition(":")
                name = name.lower()
                value = value.strip(" \t")
                fields[name] = f"{fields[name]},{value}" if name in fields else value
            self.fields = fields
        return fields

    def __getitem__(self, name):
        return self.read()[name]

    def __contains__(self, name):
        return name in self.read()

    def __iter__(self):
        return iter(self.read())

    def __len__(self):
        return len(self.read())

    def __eq__(self, other):
        return self.read() == other

    def __repr__(self):
        return f"HeadFields({self.read()!r})"

    def get(self, name, default=None):
        """Return a field's value, or `default` where it did not occur."""
        return self.read().get(name, default)

    def keys(self):
        """Return the names."""
        return self.read().keys()

    def values(self):
        """Return the values."""
        return self.read().values()

    def items(self):
        """Return the pairs of names and values."""
        return self.read().items()


Mapping.register(HeadFields)


cdef class Held:
    """The buffers of one answer, kept until its last byte was sent."""

    cdef Owners node
    cdef Py_buffer *views
    cdef int count

    def __dealloc__(self):
        cdef int i
        for i in range(self.count):
            PyBuffer_Release(&self.views[i])
        free(self.views)


cdef CBlock *_block_under(object thing, const Py_buffer *view) noexcept:
    """The arena block that a part's bytes lie in, or NULL."""
    cdef CBlock *block
    cdef const unsigned char *start = <const unsigned char *>view.buf
    for _ in range(8):
        if isinstance(thing, Block):
            block = (<Block>thing).block
            if (block == NULL or start < block.data
                    or start + view.len > block.data + block.size):
                return NULL
            return block
        thing = thing.obj if isinstance(thing, memoryview) else getattr(thing, "base", None)
        if thing is None:
            return NULL
    return NULL


cdef void _hold_blocks(Held held, list parts, Outgoing *out) noexcept:
    """Hold parts in arena blocks by the blocks alone.

    They go back to the arena with the last byte, and not when Python next gets to run: the next
    message of the same client finds them there.
    """
    cdef CBlock *block
    cdef int i
    for i in range(held.count):
        if out.block_count == ANSWER_BLOCKS:
            return
        block = _block_under(parts[i], &held.views[i])
        if block != NULL:
            ksrv_retain(block)
            out.blocks[out.block_count] = block
            out.block_count += 1
            PyBuffer_Release(&held.views[i])


@cython.no_gc_clear  # the door is needed to the end: an unanswered exchange is answered there
cdef class Exchange:
    """One infer request that came in on the hot route, and the place for its answer.

    An exchange is answered once, by any thread; one that is dropped unanswered answers 500.

    Attributes:
        model: The model's name from the target.
        version: The version from the target, or "".
        header_length: The `Inference-Header-Content-Length` as it was sent, or None.
        body: The received bytes, writable, until the exchange is answered; the first tensor behind
            the JSON is aligned.
        announced: The Content-Length: more than the body holds where the peer broke off.
        head: The bytes of the head.
    """

    cdef Door door
    cdef Connection *connection
    cdef readonly str model
    cdef readonly str version
    cdef readonly str header_length
    cdef readonly object body
    cdef readonly object announced
    cdef readonly bytes head

    def __dealloc__(self):
        cdef Connection *connection = self.connection
        self.connection = NULL
        if connection != NULL:
            self.door.door.answer_ready(connection, READY_FAILED)

    @property
    def headers(self):
        """The request's header fields, names in lower case."""
        return HeadFields.__new__(HeadFields, self.head)

    def answer(self, int status, bytes status_line not None, bytes fields not None, list parts):
        """Send the answer; what the socket does not take now follows by itself.

        Args:
            status: The status for the access log.
            status_line: Status and phrase, such as `200 OK`.
            fields: The application's header lines, each with its CRLF; they give the length.
            parts: Contiguous buffers that make up the body. They are held until they were sent.

        Raises:
            RuntimeError: The exchange was answered before.
            MemoryError: There is no memory for the answer; 500 was sent.
        """
        cdef Connection *connection = self.connection
        cdef CDoor *door = self.door.door
        cdef Outgoing *out
        cdef Held held = Held.__new__(Held)
        cdef int count = <int>len(parts)
        cdef uint64_t total = 0
        cdef object part
        cdef bint over
        if connection == NULL:
            raise RuntimeError("the exchange was answered before")
        held.views = <Py_buffer *>calloc(count if count else 1, sizeof(Py_buffer))
        if held.views == NULL:
            raise MemoryError()
        for part in parts:
            PyObject_GetBuffer(part, &held.views[held.count], PyBUF_SIMPLE)
            held.count += 1
        self.connection = NULL
        self.body = None
        out = &connection.out
        forget_outgoing(out)
        connection.close_after = (
            connection.close_after or door.draining.load() or door.retiring.load()
            or door.config.idle_ns == 0
        )
        connection.status = status
        if not reserve_parts(out, count) or not put_head(
            out, PyBytes_AS_STRING(status_line), PyBytes_GET_SIZE(status_line),
            PyBytes_AS_STRING(fields), PyBytes_GET_SIZE(fields),
            door.config.server.data(), door.config.server.size(), connection.close_after,
        ):
            door.answer_ready(connection, READY_FAILED)
            raise MemoryError()
        for i in range(count):
            add_part(out, held.views[i].buf, <size_t>held.views[i].len)
            total += <uint64_t>held.views[i].len
        connection.answered_bytes = total
        held.node.object = <void *>held
        Py_INCREF(held)
        if total > SENT_WITH_GIL:
            _hold_blocks(held, parts, out)
        if total <= SENT_WITH_GIL:
            over = door.answer(connection, &held.node)
        else:
            with nogil:
                over = door.answer(connection, &held.node)
        if over:
            Py_DECREF(held)

    def fail(self):
        """Answer 500 without saying why; nothing happens when it was answered before."""
        cdef Connection *connection = self.connection
        self.connection = NULL
        if connection != NULL:
            self.door.door.answer_ready(connection, READY_FAILED)


cdef str _text(const unsigned char *data, uint32_t length):
    return (<const char *>data)[:length].decode("ascii") if length else ""


cdef void _serve(void *owner) noexcept with gil:
    cdef Door self = <Door>owner
    cdef Connection *connection
    cdef Exchange exchange
    cdef CBlock *block
    while True:
        connection = self.door.next_to_run()
        if connection == NULL:
            return
        exchange = None
        try:
            exchange = Exchange.__new__(Exchange)
            exchange.door = self
            exchange.connection = connection
            exchange.model = _text(connection.buffer + connection.head.name.offset,
                                   connection.head.name.length)
            exchange.version = _text(connection.buffer + connection.head.version.offset,
                                     connection.head.version.length)
            exchange.head = PyBytes_FromStringAndSize(
                <const char *>connection.buffer, connection.head.length
            )
            if connection.head.has_json_length:
                exchange.header_length = str(connection.head.json_length)
            block = connection.block
            connection.block = NULL
            exchange.announced = connection.head.content_length
            exchange.body = memoryview(ksrv_wrap(block))[
                connection.body_offset:connection.body_offset + connection.body_got
            ]
            self.handler(exchange)
        except BaseException:
            log.exception("a request on the hot route failed")
            if exchange is None:
                self.door.answer_ready(connection, READY_FAILED)
            else:
                exchange.fail()


cdef cbool _queue_full(CQueue *queue) noexcept nogil:
    return ksrv_queue_full(queue)


cdef int _fill_answer(CReadyAnswer *made, tuple answer) except -1:
    made.status = answer[0]
    made.status_line = <bytes>answer[1]
    made.fields = <bytes>answer[2]
    made.body = <bytes>answer[3]
    return 0


cdef object _address(sockaddr_storage *storage, uint32_t length):
    cdef const unsigned char *raw = <const unsigned char *>storage
    if storage.ss_family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[4:8]), raw[2] << 8 | raw[3]
    if storage.ss_family == socket.AF_INET6:
        host = socket.inet_ntop(socket.AF_INET6, raw[8:24])
        flow = int.from_bytes(raw[4:8], "big")
        scope = int.from_bytes(raw[24:28], "little")
        return host, raw[2] << 8 | raw[3], flow, scope
    return ""


cdef class Door:
    """The I/O threads of one worker and the connections that they own.

    Args:
        rules: Which heads are plain.
        handler: Called with an `Exchange` for each infer request; it must not wait.
        answers: The ready-made answers by name: status, header lines and body.
        threads: I/O threads; each is a call of `run`.
        connections: Connections that are open at most, gunicorn's included.
        head: Seconds for a request head.
        grace: Seconds before the least rate of bodies and answers counts.
        rate: Bytes per second that a body or an answer must make after that.
        idle: Seconds between two messages; 0 closes behind every answer.
        room: Seconds that a request waits for bytes in flight.
        in_flight: Bytes of request bodies held at once.
        most_requests: Answers after which `retiring` is true; 0 for no such bound.
        log: Whether records for an access log are kept.
        server: The `Server` header.

    Raises:
        KeyError: An answer is missing.
        OSError: epoll could not be set up.
    """

    cdef CDoor *door
    cdef object handler

    def __cinit__(
        self, HeadRules rules not None, handler, answers, *, int threads=2,
        uint32_t connections=1000, double head=10.0, double grace=10.0, uint64_t rate=4096,
        double idle=75.0, double room=1.0, in_flight=None, most_requests=0, bint log=False,
        str server="gunicorn"
    ):
        cdef DoorConfig config
        cdef DoorHooks hooks
        cdef int index = 0
        if threads < 1 or connections < 1:
            raise ValueError("a door has at least one thread and one connection")
        config.limits = rules.limits
        config.threads = threads
        config.connections = connections
        config.head_ns = <uint64_t>(head * 1e9)
        config.grace_ns = <uint64_t>(grace * 1e9)
        config.rate = rate
        config.idle_ns = <uint64_t>(idle * 1e9)
        config.room_ns = <uint64_t>(room * 1e9)
        if in_flight is not None:
            config.in_flight = in_flight
        if most_requests:
            config.most_requests = most_requests
        config.log = log
        config.server = server.encode("ascii")
        hooks.owner = <void *>self
        hooks.serve = _serve
        hooks.lease = ksrv_lease
        hooks.release = ksrv_release
        hooks.queue_full = _queue_full
        self.handler = handler
        self.door = new CDoor(config, hooks)
        for name in READY_ANSWERS_NEEDED:
            _fill_answer(&self.door.ready_answers[index], answers[name])
            index += 1

    def __dealloc__(self):
        del self.door

    def listen(self, listeners):
        """Watch listening sockets by their descriptors; accepting begins with `accept(True)`.

        Raises:
            OSError: epoll or an eventfd could not be set up.
        """
        cdef vector[int] fds = listeners
        if not self.door.listen_on(fds.data(), fds.size()):
            raise OSError("the door's epoll instance could not be set up")

    def run(self, int index):
        """Be I/O thread number `index`, without the GIL, until `stop` is called."""
        with nogil:
            self.door.run(index)

    def stop(self):
        """Have every call of `run` return."""
        self.door.stop()

    def accept(self, bint enabled):
        """Begin or stop accepting connections."""
        with nogil:
            self.door.accept_enabled(enabled)

    def drain(self):
        """From now on answers close their connections, and idle ones end soon."""
        self.door.drain()

    def set_health(self, *, bint live, bint ready):
        """Set what the health routes answer."""
        self.door.live.store(live)
        self.door.ready.store(ready)

    def set_gates(self, gates):
        """Say which queues requests reach, so that a full one is answered without Python.

        Args:
            gates: For each name and version in a target (name, version, queue, answer when full).
        """
        cdef GateTable *table = new GateTable(ksrv_queue_release)
        cdef shared_ptr[const_table] shared = shared_ptr[const_table](<const_table *>table)
        cdef Gate gate
        for name, version, queue, answer in gates:
            gate.name = (<str>name).encode()
            gate.version = (<str>version).encode()
            _fill_answer(&gate.full, answer)
            gate.queue = ksrv_queue_retain(<Queue?>queue)
            table.add(gate)
        table.sort()
        self.door.gates.replace(shared)

    @property
    def retiring(self):
        """Whether the bound on requests was reached."""
        return self.door.retiring.load()

    @property
    def open_connections(self):
        """Connections that are open, with those that gunicorn has."""
        return self.door.connections.open()

    @property
    def in_flight(self):
        """Bytes of bodies announced and not answered yet."""
        return self.door.in_flight.load()

    def stuck(self):
        """Return for how many seconds the busiest I/O thread has not been back in epoll."""
        return self.door.stuck_ns() / 1e9

    def counters(self):
        """Return what has happened so far, by name."""
        return {name: self.door.counters[index].load() for index, name in enumerate(COUNTERS)}

    def fileno(self):
        """Return a descriptor that becomes readable when `collect` has something to do."""
        return self.door.notify_fd()

    def collect(self):
        """Return the connections that are to be handed over, and give back what was sent.

        Returns:
            A list of (slot, descriptor, listener's index, peer's address, received bytes).
        """
        cdef Owners *owners
        cdef Owners *following
        cdef Connection *connection
        cdef list handed = []
        try:
            os.read(self.door.notify_fd(), 8)
        except BlockingIOError:
            pass  # nobody notified; looking is harmless
        owners = self.door.take_buried()
        while owners != NULL:
            following = owners.next
            Py_DECREF(<object>owners.object)
            owners = following
        while True:
            connection = self.door.next_handed()
            if connection == NULL:
                return handed
            handed.append((
                connection.slot, connection.fd, connection.listener,
                _address(&connection.peer, connection.peer_length),
                PyBytes_FromStringAndSize(<const char *>connection.buffer, connection.filled),
            ))
            connection.fd = -1

    def adopt(self, uint32_t slot, int fd, *, bint keep=True):
        """Take a handed-over connection back between two messages.

        Args:
            slot: Its place.
            fd: Its descriptor, which is the door's from now on.
            keep: Whether it waits for another message; else the door closes it, once the peer has
                taken the answer.

        Raises:
            ValueError: The slot was not handed over.
        """
        if not self.door.adopt(slot, fd, keep):
            raise ValueError(f"slot {slot} was not handed over")

    def release(self, uint32_t slot):
        """Note that gunicorn has closed a handed-over connection."""
        self.door.release_handed(slot)

    def records(self):
        """Return and forget what was answered since the last call, for the access log.

        Returns:
            A list of (time of the answer, seconds it took, status, bytes of the body, listener's
            index, peer's address, head).
        """
        cdef vector[AccessRecord] taken
        cdef size_t i
        self.door.take_records(&taken)
        return [
            (
                taken[i].at.tv_sec + taken[i].at.tv_nsec / 1e9, taken[i].duration_ns / 1e9,
                taken[i].status, taken[i].answered_bytes, taken[i].listener,
                _address(&taken[i].peer, taken[i].peer_length), <bytes>taken[i].head,
            )
            for i in range(taken.size())
        ]
