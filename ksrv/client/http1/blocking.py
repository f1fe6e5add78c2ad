"""Connections over sockets, for the client whose methods wait."""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ksrv.client.errors import ConnectionFailed
from ksrv.client.http1.messages import (
    HEAD_BYTES,
    IDLE_CONNECTIONS,
    BrokenConnection,
    Head,
    Target,
    chunk_size,
    failure,
    failure_text,
    has_unread_bytes,
    may_repeat,
    parse_head,
    pieces_of,
    pieces_with_progress,
    unanswered_text,
)
from ksrv.client.rest import HttpRequest, HttpResponse
from ksrv.client.tensors import Block

_RECEIVE_BYTES = 65536


class Connection:
    """One connection over a socket.

    Args:
        target: The server's address.
        deadline: When it must be connected, in seconds of the monotonic clock.

    Raises:
        ConnectionFailed: It cannot be made.
        DeadlineExceeded: It cannot be made in time.
    """

    def __init__(self, target: Target, deadline: float) -> None:
        self._target = target
        self._received = bytearray()
        plain = None
        try:
            plain = socket.create_connection((target.host, target.port), _left(deadline))
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket: socket.socket = plain
            if target.tls is not None:
                plain.settimeout(_left(deadline))
                self._socket = target.tls.wrap_socket(plain, server_hostname=target.host)
        except OSError as error:
            if plain is not None:
                plain.close()
            raise failure(error, target) from error

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    @property
    def stale(self) -> bool:
        """Whether the server has closed it, or sent bytes without a request."""
        return bool(self._received) or has_unread_bytes(self._socket.fileno())

    def exchange(self, pieces: Iterable[Block], deadline: float) -> tuple[HttpResponse, bool]:
        """Send a request and return its answer, and whether the connection can be used again.

        Args:
            pieces: The request.
            deadline: When the answer must be complete, in seconds of the monotonic clock.

        Raises:
            ConnectionFailed: No answer arrived.
            DeadlineExceeded: No answer arrived in time.
        """
        head, reusable = self.begin(pieces, deadline)
        try:
            body = self._body(head, deadline)
        except OSError as error:
            raise failure(error, self._target) from error
        return HttpResponse(head.status, head.headers, body), reusable

    def begin(self, pieces: Iterable[Block], deadline: float) -> tuple[Head, bool]:
        """Send a request and return the head of its answer, and whether it leaves the connection usable.

        Args:
            pieces: The request.
            deadline: When the head must be there, in seconds of the monotonic clock.

        Raises:
            ConnectionFailed: No answer arrived.
            DeadlineExceeded: No answer arrived in time.
        """
        try:
            refused: OSError | None = None
            try:
                for piece in pieces:
                    self._socket.settimeout(_left(deadline))
                    self._socket.sendall(piece)
            except (BrokenPipeError, ConnectionResetError) as error:
                refused = error  # the answer may have come before all was sent, such as 413
            try:
                head = self._head(deadline)
                while head.interim:
                    head = self._head(deadline)
            except BrokenConnection:
                if refused is not None:
                    raise BrokenConnection(failure_text(refused, self._target)) from refused
                raise
        except OSError as error:
            raise failure(error, self._target) from error
        return head, head.keeps_open and refused is None

    def body_pieces(self, head: Head, deadline: float) -> Iterator[Block]:
        """Yield the body of an answer as it arrives.

        Args:
            head: The answer's head.
            deadline: When the body must be complete, in seconds of the monotonic clock.

        Raises:
            ConnectionFailed: It ends before it is complete.
            DeadlineExceeded: It is not complete in time.
        """
        try:
            if not head.chunked:
                yield self._body(head, deadline)
                return
            while size := chunk_size(self._until(b"\r\n", deadline)):
                yield self._exactly(size + 2, deadline)[:size]
            while self._until(b"\r\n", deadline) != b"\r\n":
                pass  # trailers
        except OSError as error:
            raise failure(error, self._target) from error

    def _receive(self, deadline: float) -> bytes:
        self._socket.settimeout(_left(deadline))
        return self._socket.recv(_RECEIVE_BYTES)

    def _until(self, mark: bytes, deadline: float) -> bytes:
        """Return what comes up to and with a mark."""
        start = 0
        while (found := self._received.find(mark, start)) < 0:
            if len(self._received) > HEAD_BYTES:
                raise ConnectionFailed(f"the answer's head is longer than {HEAD_BYTES} bytes")
            start = max(0, len(self._received) - len(mark) + 1)
            self._extend(deadline)
        content = bytes(self._received[: found + len(mark)])
        del self._received[: found + len(mark)]
        return content

    def _extend(self, deadline: float) -> None:
        try:
            more = self._receive(deadline)
        except ConnectionResetError:
            more = b""
        if not more:
            kind = ConnectionFailed if self._received else BrokenConnection
            raise kind(unanswered_text(self._target, self._received))
        self._received += more

    def _head(self, deadline: float) -> Head:
        return parse_head(self._until(b"\r\n\r\n", deadline))

    def _exactly(self, count: int, deadline: float) -> memoryview:
        try:  # numpy leaves the memory untouched, so the system gives pages only to what arrives
            content = np.empty(count, np.uint8).data
        except MemoryError as error:
            raise ConnectionFailed(
                f"no memory is left for the {count} bytes of the answer"
            ) from error
        have = min(count, len(self._received))
        content[:have] = self._received[:have]
        del self._received[:have]
        while have < count:
            self._socket.settimeout(_left(deadline))
            more = self._socket.recv_into(content[have:])
            if not more:
                raise ConnectionFailed(f"the answer ended after {have} of {count} bytes")
            have += more
        return content

    def _body(self, head: Head, deadline: float) -> memoryview:
        if head.chunked:
            content = bytearray()
            for piece in self.body_pieces(head, deadline):
                content += piece
            return memoryview(content)
        if (length := head.length) is not None:
            return self._exactly(length, deadline)
        content = self._received
        while more := self._receive(deadline):
            content += more
        return memoryview(bytes(content))


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class ConnectionPool:
    """Connections that are kept between requests; any thread may use it.

    Args:
        target: The server's address.
        repeats: Whether a request may be sent again, on a new connection, after a kept connection broke.
    """

    def __init__(self, target: Target, *, repeats: bool) -> None:
        self._target = target
        self._repeats = repeats
        self._idle: deque[Connection] = deque(maxlen=IDLE_CONNECTIONS)
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def send(self, request: HttpRequest, deadline: float) -> HttpResponse:
        """Send a request and return its answer.

        Args:
            request: The request.
            deadline: When the answer must be complete, in seconds of the monotonic clock.

        Raises:
            ConnectionFailed: No answer arrived.
            DeadlineExceeded: No answer arrived in time.
        """
        pieces = pieces_of(self._target, request)
        kept = self._take()
        if kept is not None:
            try:
                return self._use(kept, request, pieces, deadline)
            except BrokenConnection:
                if not self._repeats or not may_repeat(request):
                    raise
        return self._use(Connection(self._target, deadline), request, pieces, deadline)

    def _use(
        self,
        connection: Connection,
        request: HttpRequest,
        pieces: Sequence[Block],
        deadline: float,
    ) -> HttpResponse:
        reusable = False
        try:
            response, reusable = connection.exchange(
                pieces_with_progress(request, pieces), deadline
            )
        finally:
            self._leave(connection, reusable=reusable)
        return response

    @contextmanager
    def open(
        self, request: HttpRequest, deadline: float
    ) -> Iterator[tuple[HttpResponse, Iterator[Block]]]:
        """Send a request, and lend its answer without the body, and the pieces of the body as they arrive.

        The connection is closed unless the pieces are read to their end: the server then cancels the request.

        Args:
            request: The request.
            deadline: When the answer must be complete, in seconds of the monotonic clock.

        Raises:
            ConnectionFailed: No answer arrived, or it was cut off.
            DeadlineExceeded: It is not complete in time.
        """
        connection = self._take() or Connection(self._target, deadline)
        complete = reusable = False

        def pieces() -> Iterator[Block]:
            nonlocal complete
            yield from connection.body_pieces(head, deadline)
            complete = True

        try:
            sent = pieces_with_progress(request, pieces_of(self._target, request))
            head, reusable = connection.begin(sent, deadline)
            yield HttpResponse(head.status, head.headers, memoryview(b"")), pieces()
        finally:
            self._leave(connection, reusable=reusable and complete)

    def _leave(self, connection: Connection, *, reusable: bool) -> None:
        if reusable:
            self._keep(connection)
        else:
            connection.close()

    def _take(self) -> Connection | None:
        while True:
            with self._lock:
                if self._pid != os.getpid():  # after a fork the parent uses them on
                    self._idle.clear()
                    self._pid = os.getpid()
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not connection.stale:
                return connection
            connection.close()

    def _keep(self, connection: Connection) -> None:
        with self._lock:
            oldest = self._idle.popleft() if len(self._idle) == IDLE_CONNECTIONS else None
            self._idle.append(connection)
        if oldest is not None:
            oldest.close()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
        for connection in idle:
            connection.close()
