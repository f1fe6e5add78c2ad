"""Connections of HTTP/1.1, and the pool that keeps them between requests.

`ConnectionPool.send` and `ConnectionPool.open` are the entries. A `Connection` parses answers from the bytes of a
`Channel`.
"""

import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeAlias

import numpy as np

from ksrv.client.errors import ConnectionFailed
from ksrv.client.http1.channels import Channel
from ksrv.client.http1.messages import (
    HEAD_BYTES,
    IDLE_CONNECTIONS,
    BrokenConnection,
    Head,
    Target,
    chunk_size,
    failure,
    failure_text,
    may_repeat,
    parse_head,
    pieces_of,
    pieces_with_progress,
    unanswered_text,
)
from ksrv.client.rest import HttpRequest, HttpResponse
from ksrv.client.tensors import Block

_RECEIVE_BYTES = 65536

Open: TypeAlias = Callable[[Target, float], Awaitable[Channel]]
"""Opens a channel to a server before a deadline."""


class Connection:
    """One connection.

    Attributes:
        reusable: Whether the connection can take another request: the last answer was read to its end.
    """

    def __init__(self, target: Target, channel: Channel) -> None:
        self._target = target
        self._channel = channel
        self._keeps_open = False  # the server will not close the connection after this answer
        self.reusable = False
        self._received = bytearray()  # bytes that are not parsed yet
        self._arriving = memoryview(bytearray(_RECEIVE_BYTES))  # the buffer of `_receive`
        self.close = channel.close
        self.wait_closed = channel.wait_closed

    @property
    def stale(self) -> bool:
        """Whether the server has closed the connection, or sent bytes without a request."""
        return bool(self._received) or self._channel.stale

    async def begin(self, pieces: Iterable[Block], deadline: float) -> Head:
        """Send a request and return the head of its answer.

        Args:
            deadline: When the head must be complete, in seconds of the monotonic clock.

        Raises:
            BrokenConnection: The connection ended before an answer.
            OSError: The connection failed.
        """
        self.reusable = False
        refused: OSError | None = None
        try:
            for piece in pieces:
                await self._channel.send(piece, deadline)
        except (BrokenPipeError, ConnectionResetError) as error:
            refused = error  # the server may have answered before it read the whole request, for example with 413
        try:
            head = await self._head(deadline)
            while head.interim:
                head = await self._head(deadline)
        except BrokenConnection:
            if refused is not None:
                raise BrokenConnection(failure_text(refused, self._target)) from refused
            raise
        self._keeps_open = head.keeps_open and refused is None
        return head

    async def body_pieces(self, head: Head, deadline: float) -> AsyncIterator[Block]:
        """Yield the body of an answer as it arrives.

        Args:
            deadline: When the body must be complete, in seconds of the monotonic clock.

        Raises:
            ConnectionFailed: The body ends before it is complete.
            OSError: The connection failed.
        """
        if not head.chunked:
            yield await self.body(head, deadline)
            return
        while size := chunk_size(await self._until(b"\r\n", deadline)):
            yield (await self._exactly(size + 2, deadline))[:size]  # a chunk ends with CR LF
        while await self._until(b"\r\n", deadline) != b"\r\n":
            pass  # trailers
        self.reusable = self._keeps_open

    async def _head(self, deadline: float) -> Head:
        return parse_head(await self._until(b"\r\n\r\n", deadline))

    async def _receive(self, deadline: float) -> int:
        """Append bytes of the channel to the received bytes. Return their number; 0 at the end."""
        size = await self._channel.receive_into(self._arriving, deadline)
        self._received += self._arriving[:size]
        return size

    async def _until(self, mark: bytes, deadline: float) -> bytes:
        """Return the received bytes up to the end of the first `mark`."""
        start = 0
        while (found := self._received.find(mark, start)) < 0:
            if len(self._received) > HEAD_BYTES:
                raise ConnectionFailed(f"the answer's head is longer than {HEAD_BYTES} bytes")
            start = max(0, len(self._received) - len(mark) + 1)  # the mark may have arrived in part
            await self._extend(deadline)
        content = bytes(self._received[: found + len(mark)])
        del self._received[: found + len(mark)]
        return content

    async def _extend(self, deadline: float) -> None:
        """Receive more bytes; raise if the connection has ended."""
        try:
            size = await self._receive(deadline)
        except ConnectionResetError:
            size = 0
        if not size:
            kind = ConnectionFailed if self._received else BrokenConnection
            raise kind(unanswered_text(self._target, self._received))

    async def _exactly(self, count: int, deadline: float) -> memoryview:
        """Return the next `count` bytes. They are received into their final memory."""
        try:  # numpy does not clear the memory, so pages are allocated only as the bytes arrive
            content = np.empty(count, np.uint8).data
        except MemoryError as error:
            raise ConnectionFailed(
                f"no memory is left for the {count} bytes of the answer"
            ) from error
        have = min(count, len(self._received))
        content[:have] = self._received[:have]
        del self._received[:have]
        while have < count:
            more = await self._channel.receive_into(content[have:], deadline)
            if not more:
                raise ConnectionFailed(f"the answer ended after {have} of {count} bytes")
            have += more
        return content

    async def body(self, head: Head, deadline: float) -> memoryview:
        """Return the whole body of an answer; see `body_pieces`."""
        if head.chunked:
            pieces = [piece async for piece in self.body_pieces(head, deadline)]
            return memoryview(b"".join(pieces))
        self.reusable = self._keeps_open  # the pool closes a connection that fails here
        if (length := head.length) is not None:
            return await self._exactly(length, deadline)
        while await self._receive(deadline):
            pass
        return memoryview(bytes(self._received))


class ConnectionPool:
    """Connections to one server that are kept between requests. Any thread may use the pool.

    Args:
        repeats: Whether a request may be sent again, on a new connection, after a kept connection broke.
    """

    def __init__(self, target: Target, open_channel: Open, *, repeats: bool) -> None:
        self._target = target
        self._open_channel = open_channel
        self._repeats = repeats
        self._idle: deque[Connection] = deque()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    async def send(self, request: HttpRequest, deadline: float) -> HttpResponse:
        """Send a request and return its answer.

        Args:
            deadline: When the answer must be complete, in seconds of the monotonic clock.

        Raises:
            ConnectionFailed: No answer arrived.
            DeadlineExceeded: No answer arrived in time.
        """
        connection, head = await self._begin(request, deadline)
        with self._closed_on_failure(connection):
            body = await connection.body(head, deadline)
        self._leave(connection)
        return HttpResponse(head.status, head.headers, body)

    @asynccontextmanager
    async def open(
        self, request: HttpRequest, deadline: float
    ) -> AsyncIterator[tuple[HttpResponse, AsyncIterator[Block]]]:
        """Send a request. Yield its answer without the body, and an iterator over the pieces of the body.

        The connection is closed unless the pieces are read to their end: the server then cancels the request.

        Args:
            deadline: When the answer must be complete, in seconds of the monotonic clock.

        Raises:
            ConnectionFailed: No answer arrived, or it was cut off.
            DeadlineExceeded: The answer was not complete in time.
        """
        connection, head = await self._begin(request, deadline)
        with self._closed_on_failure(connection):
            pieces = connection.body_pieces(head, deadline)
            yield HttpResponse(head.status, head.headers, memoryview(b"")), pieces
        self._leave(connection)

    async def _begin(self, request: HttpRequest, deadline: float) -> tuple[Connection, Head]:
        """Send a request, and return its connection and the head of its answer."""
        kept = self._take()
        while True:
            connection = kept or await self._connect(deadline)
            sent = pieces_with_progress(request, pieces_of(self._target, request))
            try:
                with self._closed_on_failure(connection):
                    return connection, await connection.begin(sent, deadline)
            except BrokenConnection:
                if connection is not kept or not self._repeats or not may_repeat(request):
                    raise
                kept = None

    async def _connect(self, deadline: float) -> Connection:
        try:
            return Connection(self._target, await self._open_channel(self._target, deadline))
        except OSError as error:
            raise failure(error, self._target) from error

    @contextmanager
    def _closed_on_failure(self, connection: Connection) -> Iterator[None]:
        """Close a connection on any exception, and convert an `OSError` to the client's."""
        try:
            yield
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise failure(error, self._target) from error
            raise

    def _leave(self, connection: Connection) -> None:
        """Return a connection to the pool if it can be used again, else close it. A full pool drops its oldest."""
        unwanted: Connection | None = connection
        if connection.reusable:
            with self._lock:
                unwanted = self._idle.popleft() if len(self._idle) == IDLE_CONNECTIONS else None
                self._idle.append(connection)
        if unwanted is not None:
            unwanted.close()

    def _take(self) -> Connection | None:
        """Return the connection that was used last, or None if the pool is empty."""
        while True:
            with self._lock:
                if self._pid != os.getpid():  # after a fork the connections belong to the parent
                    self._idle.clear()
                    self._pid = os.getpid()
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not connection.stale:
                return connection
            connection.close()

    async def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
        for connection in idle:
            connection.close()
            await connection.wait_closed()
