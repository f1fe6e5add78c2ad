# Needs the GIL: Python objects pass from one thread to another.
"""An app message: a request that the native server leaves to the Falcon app, and its answer."""

import logging

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
cimport cython
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool

from native.http.incoming_body cimport BodyState
from native.http.message cimport Turn
from native.http.outgoing cimport add_part, forget_outgoing, reserve_parts
from native.http.request_head cimport HEAD_REFUSALS, HeadFault
from native.http.transport cimport look_at_peer

from ksrv._native.memory.exported_bytes cimport ExportedBytes
from ksrv._native.server.exchange cimport Exchange, ksrv_address, ksrv_fill_exchange

if not cython.compiled:
    from typing import Any

log: logging.Logger = logging.getLogger(__name__)

# The names of C++ enumerators, in their order: BodyState, the result of look_at_peer, ChunkFault.
BODY_STATES = ("none", "whole", "unread", "cut short", "too long", "malformed")
PEERS = ("open", "half-closed", "gone")
FAULTS = ("none", "size", "size bits", "end", "count", "length", "trailer")

cdef enum:
    PIECE_PARTS = 3


cdef bytes add_piece(Connection *connection, const ExportedBytes &piece, bint chunked):
    """Append a piece to the outgoing message; nothing for an empty piece.

    Returns the line with its size, which must live until the piece is sent.
    """
    cdef bytes size = b"%X\r\n" % piece.length if chunked else b""
    connection.answered_bytes += piece.length
    if piece.length:
        add_part(&connection.out, PyBytes_AS_STRING(size), PyBytes_GET_SIZE(size))
        add_part(&connection.out, piece.data, piece.length)
        add_part(&connection.out, b"\r\n", 2 if chunked else 0)
    return size


@cython.no_gc_clear  # as in Exchange: __dealloc__ answers a message that has no answer
cdef class AppMessage(Exchange):
    """A message for the app, with as much of its body as the app wants, and its answer.

    It is answered once: by `answer`, or by `begin_stream`, `send` and `end_stream`. `receive`
    ends this object without an answer.

    Attributes:
        peer: The client's address.
        listener: The index of the listener that accepted the connection.
        state: The state of the body, one of `BODY_STATES`.
        fault: The fault in the body's chunks, one of `FAULTS`.
        fault_at: The beginning of the faulty line.
        received: The bytes of the body that were received, or that its chunks announce.
        asked: Whether the app has requested the body.
        head_fault: If the head is refused, the status and the end of the sentence, which is "" for
            a head that is too long.
        http_1_0: Whether the message is HTTP/1.0.
        closes: Whether the head asks to close the connection after the answer.
    """

    cdef readonly object peer
    cdef readonly int listener
    cdef readonly str state
    cdef readonly str fault
    cdef readonly bytes fault_at
    cdef readonly object received
    cdef readonly bint asked
    cdef readonly tuple head_fault
    cdef readonly bint http_1_0
    cdef readonly bint closes
    cdef CHttpServer *server
    cdef Connection *streaming  # between `begin_stream` and the stream's end, else NULL

    peer: tuple[Any, ...] | str
    received: int
    head_fault: tuple[int, str] | None

    def __dealloc__(self):
        if self.streaming != NULL:  # the peer must not take the last piece for the end of the body
            self.server.connections.drop(self.streaming)

    @property
    def connection_id(self) -> int:
        """A number that no other open connection has; 0 after the message is answered."""
        return <size_t>self.turn.connection

    def set_close(self, bint close) -> None:
        """Set whether to close the connection after the answer. An incomplete body always does."""
        cdef Connection *connection = self.turn.connection
        if connection != NULL:
            connection.close_after = close or self.state not in ("none", "whole")

    def receive(self, uint64_t most) -> None:
        """Give the message back to the server, which receives its body.

        Then `HttpServer.next_app_message` returns the message again, as another object.

        Args:
            most: The most bytes of a chunked body to receive.

        Raises:
            RuntimeError: The message was answered already.
        """
        cdef CHttpServer *server = self.server
        cdef Connection *connection = self.take_connection()
        with nogil:
            server.receive_for_app(connection, most)

    def take_counted(self) -> int:
        """Return how many bytes of the budget the body uses. The caller must give them back."""
        if self.turn.connection == NULL:
            return 0
        return self.turn.connection.body.take_counted()

    def begin_stream(
        self,
        int status,
        bytes status_line not None,
        bytes fields not None,
        first not None: bytes | bytearray | memoryview,
        *,
        bint chunked,
    ) -> bool:
        """Send the head of an answer whose body is sent in pieces, and the first piece.

        Args:
            status_line: Status and phrase, such as `200 OK`.
            fields: The header lines, each with its CRLF, including the framing.
            first: The bytes of the first piece.
            chunked: Whether to send pieces as chunks.

        Returns:
            Whether the client is still connected.

        Raises:
            RuntimeError: The message was answered already.
            MemoryError: Not enough memory for the head. 500 was sent.
        """
        cdef CHttpServer *server = self.server
        cdef Connection *connection
        cdef ExportedBytes held
        cdef bytes _size
        cdef cbool sent
        held.take(first)
        connection = self.take_connection()
        server.connections.disconnects.unwatch(connection)
        self.put_head(connection, status, status_line, fields, PIECE_PARTS)
        _size = add_piece(connection, held, chunked)
        with nogil:
            sent = server.answers.send_piece(connection)
        if sent:
            self.streaming = connection
        return sent

    def send(self, piece not None: bytes | bytearray | memoryview, *, bint chunked) -> bool:
        """Send a piece of a streamed answer. Blocks until the client has read the previous piece.

        Args:
            piece: The bytes of the piece. An empty piece sends nothing.
            chunked: Whether to send the piece as a chunk.

        Returns:
            Whether the client is still connected.

        Raises:
            RuntimeError: `begin_stream` was not called, or the client has gone.
        """
        cdef CHttpServer *server = self.server
        cdef Connection *connection = self.streaming
        cdef ExportedBytes held
        cdef bytes _size
        cdef cbool sent
        if connection == NULL:
            raise RuntimeError("a piece belongs to a stream that was begun, and is not over")
        held.take(piece)
        if held.length == 0:  # an empty chunk would end the body (RFC 9112 7.1)
            return True
        forget_outgoing(&connection.out)
        reserve_parts(&connection.out, PIECE_PARTS)
        _size = add_piece(connection, held, chunked)
        with nogil:
            sent = server.answers.send_piece(connection)
        if not sent:
            self.streaming = NULL
        return sent

    def peer_state(self) -> str:
        """Return the state of the peer of a streamed answer, as known without sending.

        Returns:
            `open`, `half-closed` (sends nothing more, but may read), or `gone`.
        """
        if self.streaming == NULL:
            return "gone"
        return PEERS[<Py_ssize_t>look_at_peer(self.streaming)]

    def end_stream(self, *, bint chunked) -> None:
        """Send the end of a streamed answer. The connection continues, or is closed.

        Args:
            chunked: Whether the pieces were sent as chunks.
        """
        cdef CHttpServer *server = self.server
        cdef Connection *connection = self.streaming
        if connection == NULL:
            return
        self.streaming = NULL
        forget_outgoing(&connection.out)
        reserve_parts(&connection.out, 1)
        if chunked:
            add_part(&connection.out, b"0\r\n\r\n", 5)
        with nogil:
            server.answers.send(connection, NULL)

    def break_stream(self) -> None:
        """Close the connection of a stream that cannot continue, so the client sees an error."""
        cdef CHttpServer *server = self.server
        cdef Connection *connection = self.streaming
        if connection != NULL:
            self.streaming = NULL
            with nogil:
                server.connections.drop(connection)


cdef object ksrv_app_message(object owner, CHttpServer *server, Connection *connection):
    cdef Turn turn = connection.open_turn()
    cdef AppMessage message
    try:
        message = AppMessage.__new__(AppMessage)
        message.server = server
        message.peer = ksrv_address(&connection.peer)
        message.listener = connection.listener
        message.state = BODY_STATES[<Py_ssize_t>connection.body.state]
        message.fault = "none"
        message.fault_at = b""
        message.received = connection.body.got
        message.asked = connection.body.asked
        if connection.head.fault != HeadFault.none:
            refusal = HEAD_REFUSALS[<int>connection.head.fault]
            message.head_fault = refusal.status, (<bytes>refusal.text).decode()
        message.http_1_0 = connection.head.http_1_0
        message.closes = connection.head.close
        if connection.head.chunked and connection.body.block != NULL:
            message.received = max(connection.body.got, connection.body.chunks.announced())
            message.fault = FAULTS[<Py_ssize_t>connection.body.chunks.fault()]
            message.fault_at = PyBytes_FromStringAndSize(
                <const char *>connection.body.chunks.shown(), connection.body.chunks.shown_length()
            )
        # False: the head stays as received. The app reads the id from `request_id`.
        ksrv_fill_exchange(
            message, owner, &server.answers, turn, connection.body.state == BodyState.whole, False
        )
    except BaseException:
        server.answers.fail(turn)
        raise
    return message
