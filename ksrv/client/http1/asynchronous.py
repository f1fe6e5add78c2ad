"""Connections over asyncio's streams."""

import asyncio
import contextlib
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
    parse_head,
    pieces_of,
)
from ksrv.client.rest import HttpRequest, HttpResponse
from ksrv.client.tensors import Block

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncConnectionPool:
    """The same over asyncio's streams, for one event loop.

    Args:
        target: Where the connections go.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._idle: deque[Streams] = deque()

    async def send(self, request: HttpRequest, deadline: float) -> HttpResponse:
        """Send a request and return its answer.

        Args:
            request: The request.
            deadline: When the answer must be complete, in seconds of the monotonic clock.

        Raises:
            ConnectionFailed: There is no answer.
            DeadlineExceeded: There is none in time.
        """
        pieces = pieces_of(self._target, request)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                kept = self._take()
                if kept is not None:
                    try:
                        return await self._use(kept, pieces)
                    except BrokenConnection:
                        pass  # closed by the server meanwhile, as it may
                return await self._use(await self._open(), pieces)
        except OSError as error:
            raise failure(error, self._target) from error

    def _take(self) -> Streams | None:
        while self._idle:
            streams = self._idle.pop()
            if not streams[0].at_eof():
                return streams
            streams[1].close()
        return None

    async def _open(self) -> Streams:
        target = self._target
        name = target.host if target.tls is not None else None
        return await asyncio.open_connection(
            target.host, target.port, ssl=target.tls, server_hostname=name, limit=HEAD_BYTES
        )

    async def _use(self, streams: Streams, pieces: Sequence[Block]) -> HttpResponse:
        reader, writer = streams
        reusable = False
        try:
            response, reusable = await self._exchange(reader, writer, pieces)
        except asyncio.IncompleteReadError as error:
            raise ConnectionFailed("the answer ended before it was complete") from error
        except asyncio.LimitOverrunError as error:
            raise ConnectionFailed(
                f"the answer's head is longer than {HEAD_BYTES} bytes"
            ) from error
        finally:
            if reusable and len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append(streams)
            else:
                writer.close()
        return response

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pieces: Sequence[Block]
    ) -> tuple[HttpResponse, bool]:
        refused = False
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        except (BrokenPipeError, ConnectionResetError):
            refused = True  # the answer may have come before all was sent, such as 413
        head = await self._head(reader)
        while head.interim:
            head = await self._head(reader)
        body = await _read_body(reader, head)
        return HttpResponse(head.status, head.headers, body), head.keeps_open and not refused

    async def _head(self, reader: asyncio.StreamReader) -> Head:
        closed = f"{self._target.authority} closed the connection before it had answered"
        try:
            return parse_head(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.IncompleteReadError as error:
            kind = ConnectionFailed if error.partial else BrokenConnection
            raise kind(closed) from error
        except ConnectionResetError as error:
            raise BrokenConnection(closed) from error

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            writer = self._idle.pop()[1]
            writer.close()
            with contextlib.suppress(OSError):  # closed by the other side first
                await writer.wait_closed()


async def _read_body(reader: asyncio.StreamReader, head: Head) -> memoryview:
    if head.chunked:
        content = bytearray()
        while size := chunk_size(await reader.readuntil(b"\r\n")):
            content += (await reader.readexactly(size + 2))[:size]
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailers
        return memoryview(bytes(content))
    if (length := head.length) is not None:
        return memoryview(await reader.readexactly(length))
    return memoryview(await reader.read())
