"""Connections over sockets, for the client whose methods wait."""

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence

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
    parse_head,
    pieces_of,
)
from ksrv.client.rest import HttpRequest, HttpResponse
from ksrv.client.tensors import Block

_RECEIVE_BYTES = 65536


class Connection:
    """One connection over a socket.

    Args:
        target: Where it goes.
        deadline: When it must stand, in seconds of the monotonic clock.

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
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(self._received) or bool(poll.poll(0))

    def exchange(
        self, pieces: Sequence[Block], method: str, deadline: float
    ) -> tuple[HttpResponse, bool]:
        """Send a request and return its answer, and whether the connection can be used again.

        Args:
            pieces: The request.
            method: Its method.
            deadline: When the answer must be complete, in seconds of the monotonic clock.

        Raises:
            ConnectionFailed: There is no answer.
            DeadlineExceeded: There is none in time.
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
            body = self._body(head, deadline)
        except OSError as error:
            raise failure(error, self._target) from error
        return HttpResponse(head.status, head.headers, body), head.keeps_open and refused is None

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
            raise kind(f"{self._target.authority} closed the connection before it had answered")
        self._received += more

    def _head(self, deadline: float) -> Head:
        return parse_head(self._until(b"\r\n\r\n", deadline))

    def _exactly(self, count: int, deadline: float) -> memoryview:
        content = bytearray(count)
        have = min(count, len(self._received))
        content[:have] = self._received[:have]
        del self._received[:have]
        view = memoryview(content)
        while have < count:
            self._socket.settimeout(_left(deadline))
            more = self._socket.recv_into(view[have:])
            if not more:
                raise ConnectionFailed(f"the answer ended after {have} of {count} bytes")
            have += more
        return view

    def _body(self, head: Head, deadline: float) -> memoryview:
        if head.chunked:
            content = bytearray()
            while size := chunk_size(self._until(b"\r\n", deadline)):
                content += self._exactly(size + 2, deadline)[:size]
            while self._until(b"\r\n", deadline) != b"\r\n":
                pass  # trailers
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
        target: Where they go.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._idle: deque[Connection] = deque(maxlen=IDLE_CONNECTIONS)
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def send(self, request: HttpRequest, deadline: float) -> HttpResponse:
        """Send a request and return its answer.

        Args:
            request: The request.
            deadline: When the answer must be complete, in seconds of the monotonic clock.

        Raises:
            ConnectionFailed: There is no answer.
            DeadlineExceeded: There is none in time.
        """
        pieces = pieces_of(self._target, request)
        kept = self._take()
        if kept is not None:
            try:
                return self._use(kept, pieces, request.method, deadline)
            except BrokenConnection:
                pass  # closed by the server meanwhile, as it may
        return self._use(Connection(self._target, deadline), pieces, request.method, deadline)

    def _use(
        self, connection: Connection, pieces: Sequence[Block], method: str, deadline: float
    ) -> HttpResponse:
        try:
            response, reusable = connection.exchange(pieces, method, deadline)
        except BaseException:
            connection.close()
            raise
        if reusable:
            self._keep(connection)
        else:
            connection.close()
        return response

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
