# Needs the GIL: Python objects pass from one thread to another.
"""An infer request of the HTTP server and its answer, for Python."""

import logging
import socket
from collections.abc import Mapping

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF
cimport cython
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from native.base.request_id cimport (
    RequestId, choose_request_id as choose_id, identified_head_bytes, put_identified_head,
)
from native.base.unix_peer cimport UnixPeer, unix_peer
from native.http.outgoing cimport Outgoing, Owners, add_part
from native.http.prepared_answer cimport ANSWER_BYTES_IN_FLIGHT, ANSWER_FAILED
from native.memory.buffer_pool cimport Block as CBlock

from ksrv._native.memory.buffer_pool cimport ksrv_wrap
from ksrv._native.queue.request_handle cimport NativeHandle

if not cython.compiled:
    from collections.abc import Iterator

log: logging.Logger = logging.getLogger(__name__)

cdef enum:
    # Answers of at most this size are sent with the GIL held, because waiting to get it back may
    # take 5 ms (the switch interval of CPython).
    SENT_WITH_GIL_BYTES = 65536
    # Larger answers are counted in the memory budget before they are sent, smaller answers only
    # while they wait for a client that reads slowly.
    COUNTED_BYTES = 65536


cdef object ksrv_address(const sockaddr_storage *storage):
    # As in netinet/in.h: the port at byte 2, an IPv4 address at byte 4; of IPv6 the flow label at
    # byte 4, the address at byte 8, the scope at byte 24. Only the scope has the host's byte order,
    # which is little-endian on all supported machines.
    cdef const unsigned char *raw = <const unsigned char *>storage
    if storage.ss_family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[4:8]), raw[2] << 8 | raw[3]
    if storage.ss_family == socket.AF_INET6:
        host = socket.inet_ntop(socket.AF_INET6, raw[8:24])
        flow = int.from_bytes(raw[4:8], "big")
        scope = int.from_bytes(raw[24:28], "little")
        return host, raw[2] << 8 | raw[3], flow, scope
    return ""


cdef str ksrv_ip_address(const sockaddr_storage *storage):
    address = ksrv_address(storage)
    return address if isinstance(address, str) else address[0]


cdef tuple ksrv_user(const sockaddr_storage *storage):
    cdef UnixPeer peer = unix_peer(storage[0])
    return (peer.uid, peer.gid) if peer.known else None


class HeadFields(Mapping[str, str]):
    """The header fields of a request, parsed on first use.

    Names are in lower case. Fields that occur several times are joined with commas, as in WSGI. Of
    `x-request-id` the last counts, because the server appends the request's id if the client's id
    is invalid.

    Args:
        head: The bytes of a complete head.
    """

    __slots__ = ("_fields", "_head")

    def __init__(self, bytes head not None):
        self._head = head
        self._fields = None

    def _read(self) -> dict[str, str]:
        if self._fields is None:
            fields = {}
            lines = self._head.decode("latin-1").split("\r\n")
            for line in lines[1:len(lines) - 2]:
                name, _, value = line.partition(":")
                name = name.lower()
                value = value.strip(" \t")
                joined = name in fields and name != "x-request-id"
                fields[name] = f"{fields[name]},{value}" if joined else value
            self._fields = fields
        return self._fields

    def __getitem__(self, name: str) -> str:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self):
        return len(self._read())

    def __reduce__(self):
        # Pickled and copied as a dict, because a handler in a process gets a dict.
        return dict, (self._read(),)


cdef class SentBuffers:
    """The buffers of an answer, kept until its last byte is sent.

    A thread that sends the last byte may not have the GIL. It then adds `node` to a list, and the
    next thread in Python releases the reference (see `_release_sent` in server.pyx).
    """

    cdef Owners node
    cdef Py_buffer *views
    cdef int count

    def __dealloc__(self):
        cdef int i
        for i in range(self.count):
            PyBuffer_Release(&self.views[i])
        free(self.views)


# The garbage collector must not clear `owner` before __dealloc__, which may answer with 500.
@cython.no_gc_clear
cdef class Exchange:
    """An infer request in a usual form, and its answer. Also the base of `AppMessage`.

    It is answered once, by any thread. If it is deleted without an answer, it answers 500.

    Attributes:
        model: The model's name in the target.
        version: The version in the target, or "".
        header_length: The value of `Inference-Header-Content-Length`, or None.
        body: The received bytes, writable, until the exchange is answered. The first tensor after
            the JSON is aligned.
        announced: The Content-Length. It exceeds the body if the peer broke off.
        head: The bytes of the head. Of an infer request with the request's id, if the client sent
            no valid id.
        sampled: Whether the request was chosen for recording.
        plain: The number of its path among the paths of plain JSON, from 1; 0 for KServe v2.
    """

    header_length: str | None
    body: memoryview
    announced: int

    def __dealloc__(self):
        if self.turn.connection != NULL:
            self.answers.fail(self.turn)

    def client_address(self) -> str:
        """Return the client's IP address; "" for a unix socket, or after the answer."""
        if self.turn.connection == NULL:
            return ""
        return ksrv_ip_address(&self.turn.connection.peer)

    def client_user(self) -> tuple[int, int] | None:
        """Return the user and group of the program at the other end of a unix socket, or None."""
        if self.turn.connection == NULL:
            return None
        return ksrv_user(&self.turn.connection.peer)

    @property
    def headers(self) -> Mapping[str, str]:
        """The request's header fields, with names in lower case."""
        return HeadFields(self.head)

    cdef Connection *take_connection(self) except NULL:
        cdef Connection *connection = NULL
        if self.turn.connection != NULL:
            connection = self.answers.take_turn(self.turn)
        self.turn.connection = NULL
        if connection == NULL:
            raise RuntimeError("the message was answered before")
        self.body = None
        return connection

    cdef int put_head(
        self, Connection *connection, int status, bytes line, bytes fields, int parts
    ) except -1:
        if not self.answers.put(
            connection, <uint16_t>status, PyBytes_AS_STRING(line), PyBytes_GET_SIZE(line),
            PyBytes_AS_STRING(fields), PyBytes_GET_SIZE(fields), NULL, 0, parts,
        ):
            self.answers.send_prepared(connection, ANSWER_FAILED)
            raise MemoryError()
        return 0

    def answer(
        self,
        int status,
        bytes status_line not None,
        bytes fields not None,
        list parts: list[bytes | memoryview],
    ) -> None:
        """Send the answer. Bytes that the socket cannot take now follow without further calls.

        An answer that exceeds the budget for bytes in flight is replaced by 503.

        Args:
            status_line: Status and phrase, such as `200 OK`.
            fields: The application's header lines, each with its CRLF, including the length.
            parts: Contiguous buffers that make up the body. They are kept until they are sent.

        Raises:
            RuntimeError: The exchange was answered already.
            MemoryError: Not enough memory for the answer. 500 was sent.
        """
        cdef Connection *connection
        cdef AnswerSender *answers = self.answers
        cdef Outgoing *out
        cdef SentBuffers buffers = SentBuffers.__new__(SentBuffers)
        cdef int count = <int>len(parts)
        cdef uint64_t total = 0
        cdef object part
        cdef bint over
        if self.turn.connection == NULL:
            raise RuntimeError("the message was answered before")
        buffers.views = <Py_buffer *>calloc(count if count else 1, sizeof(Py_buffer))
        if buffers.views == NULL:
            raise MemoryError()
        for part in parts:
            PyObject_GetBuffer(part, &buffers.views[buffers.count], PyBUF_SIMPLE)
            total += <uint64_t>buffers.views[buffers.count].len
            buffers.count += 1
        connection = self.take_connection()
        if total > COUNTED_BYTES and not answers.reserve(connection, total):
            buffers = None
            answers.send_prepared(connection, ANSWER_BYTES_IN_FLIGHT)
            return
        self.put_head(connection, status, status_line, fields, count)
        out = &connection.out
        for i in range(count):
            add_part(out, buffers.views[i].buf, <size_t>buffers.views[i].len)
        connection.answered_bytes = total
        buffers.node.object = <void *>buffers
        Py_INCREF(buffers)  # owned by the native server until the answer is sent
        if total <= SENT_WITH_GIL_BYTES:
            over = answers.send(connection, &buffers.node)
        else:
            with nogil:
                over = answers.send(connection, &buffers.node)
        if over:  # sent at once, or the client has left: the native server keeps no reference
            Py_DECREF(buffers)

    def remember_caller(self) -> None:
        """Remember the permitted caller: later messages with the same token need no check."""
        if self.turn.connection != NULL:
            self.answers.connections().remember_caller(self.turn.connection)

    def give_back_bytes(self) -> None:
        """Give the body's bytes back to the budget, because the queue counts them from now on."""
        if self.turn.connection != NULL:
            self.turn.connection.body.give_back()

    def watch(self, NativeHandle handle not None) -> None:
        """Cancel the request if its client disconnects before it is answered.

        It replaces a request that was watched before.
        """
        if self.turn.connection != NULL:
            self.answers.connections().disconnects.unwatch(self.turn.connection)
            self.answers.connections().disconnects.watch(self.turn.connection, handle.native)

    def fail(self) -> None:
        """Answer 500 without a reason. Does nothing if the exchange was answered already."""
        cdef Turn turn = self.turn
        self.turn.connection = NULL
        if turn.connection != NULL:
            self.answers.fail(turn)


def choose_request_id(given: str, traceparent: str) -> str:
    """Return the id of a request that gunicorn or grpcio has received.

    Args:
        given: Its `X-Request-ID`. Repeated fields are joined by commas, so they are not a valid id.
        traceparent: Its `traceparent`.
    """
    cdef RequestId made
    cdef bytes wanted = given.encode("latin-1", "replace")
    cdef bytes trace = traceparent.encode("latin-1", "replace")
    choose_id(
        &made, PyBytes_AS_STRING(wanted), PyBytes_GET_SIZE(wanted),
        PyBytes_AS_STRING(trace), PyBytes_GET_SIZE(trace)
    )
    return made.text[:made.length].decode("ascii")


cdef str _text(const unsigned char *data, uint32_t length):
    return (<const char *>data)[:length].decode("ascii") if length else ""


cdef bytes _identified_head(Connection *connection):
    """Return the bytes of a head, with the request's id."""
    cdef size_t length = identified_head_bytes(connection.head.length, connection.request_id)
    cdef bytes head = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>length)
    put_identified_head(
        PyBytes_AS_STRING(head), connection.buffer, connection.head.length, connection.request_id
    )
    return head


cdef int ksrv_fill_exchange(
    Exchange exchange, object owner, AnswerSender *answers, const Turn &turn, bint take_body,
    bint identified
) except -1:
    """Connect a message with an exchange, which answers it from now on.

    `take_body`: move the body's block from the connection to the exchange. `identified`: add the
    request's id to the head, for handlers that read it there.
    """
    cdef Connection *connection = turn.connection
    cdef CBlock *block
    exchange.owner = owner
    exchange.answers = answers
    exchange.model = _text(connection.buffer + connection.head.name.offset,
                           connection.head.name.length)
    exchange.version = _text(connection.buffer + connection.head.version.offset,
                             connection.head.version.length)
    exchange.head = _identified_head(connection) if identified else PyBytes_FromStringAndSize(
        <const char *>connection.buffer, connection.head.length
    )
    exchange.request_id = connection.request_id.text[:connection.request_id.length].decode("ascii")
    if connection.head.has_json_length:
        exchange.header_length = str(connection.head.json_length)
    exchange.announced = connection.head.content_length
    exchange.sampled = connection.sampled
    exchange.plain = connection.head.plain
    block = connection.body.block
    if take_body and block != NULL:  # NULL if a fast-path request has taken the block
        connection.body.block = NULL
        exchange.body = memoryview(ksrv_wrap(block))[
            connection.body.offset:connection.body.offset + connection.body.got
        ]
    exchange.turn = turn
    return 0


cdef Exchange ksrv_exchange(object owner, AnswerSender *answers, const Turn &turn):
    """Return an exchange for a request. It takes the body unless a fast-path request has it."""
    cdef Exchange exchange = Exchange.__new__(Exchange)
    ksrv_fill_exchange(exchange, owner, answers, turn, True, True)
    return exchange


cdef void ksrv_route(
    object owner, AnswerSender *answers, const Turn &turn, object handler
) noexcept:
    """Pass a request to `handler`. If it raises, the answer is 500: the I/O thread must go on."""
    cdef Exchange exchange = None
    try:
        exchange = ksrv_exchange(owner, answers, turn)
        handler(exchange)
    except BaseException:
        if exchange is None:
            answers.fail(turn)
        else:
            exchange.fail()
        log.exception("a request on the fast path failed")
