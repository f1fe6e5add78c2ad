"""Connections over asyncio's streams."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

from ksrv.client.errors import ConnectionFailed
from ksrv.client.http1.messages import (
    HEAD_BYTES,
    IDLE_CONNECTIONS,
    BrokenConnection,
    Head,
    Target,
    chunk_size,
    failure,
    has_unread_bytes,
    may_repeat,
    parse_head,
    pieces_of,
    pieces_with_progress,
    unanswered_text,
)
from ksrv.client.rest import HttpRequest, HttpResponse
from ksrv.client.tensors import Block

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncConnectionPool:
    """A pool of connections over asyncio's streams, for one event loop.

    Args:
        target: The server's address.
        repeats: Whether a request may be sent again, on a new connection, after a kept connection broke.
    """

    def __init__(self, target: Target, *, repeats: bool) -> None:
        self._target = target
        self._repeats = repeats
        self._idle: deque[Streams] = deque()

    async def send(self, request: HttpRequest, deadline: float) -> HttpResponse:
        """Send a request and return its answer.

        Args:
            request: The request.
            deadline: When the answer must be complete, in seconds of the monotonic clock.

        Raises:
            ConnectionFailed: No answer arrived.
            DeadlineExceeded: No answer arrived in time.
        """
        pieces = pieces_of(self._target, request)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                kept = self._take()
                if kept is not None:
                    try:
                        return await self._use(kept, request, pieces)
                    except BrokenConnection:
                        if not self._repeats or not may_repeat(request):
                            raise
                return await self._use(await self._open(), request, pieces)
        except OSError as error:
            raise failure(error, self._target) from error

    def _take(self) -> Streams | None:
        while self._idle:
            streams = self._idle.pop()
            if not _stale(*streams):
                return streams
            streams[1].close()
        return None

    async def _open(self) -> Streams:
        target = self._target
        name = target.host if target.tls is not None else None
        return await asyncio.open_connection(
            target.host, target.port, ssl=target.tls, server_hostname=name, limit=HEAD_BYTES
        )

    async def _use(
        self, streams: Streams, request: HttpRequest, pieces: Sequence[Block]
    ) -> HttpResponse:
        reusable = False
        try:
            with _converted_errors():
                head, reusable = await self._begin(streams, pieces_with_progress(request, pieces))
                body = b"".join([piece async for piece in _body_pieces(streams[0], head)])
        except BaseException:
            reusable = False
            raise
        finally:
            self._leave(streams, reusable=reusable)
        return HttpResponse(head.status, head.headers, memoryview(body))

    @contextlib.asynccontextmanager
    async def open(
        self, request: HttpRequest, deadline: float
    ) -> AsyncIterator[tuple[HttpResponse, AsyncIterator[Block]]]:
        """See `ConnectionPool.open`."""
        complete = reusable = False
        streams = self._take()

        async def pieces(reader: asyncio.StreamReader) -> AsyncIterator[Block]:
            nonlocal complete
            pieces = _body_pieces(reader, head)
            while True:
                with _converted_errors():
                    async with asyncio.timeout(deadline - time.monotonic()):
                        piece = await anext(pieces, None)
                if piece is None:
                    break
                yield piece
            complete = True

        try:
            with _converted_errors():
                async with asyncio.timeout(deadline - time.monotonic()):
                    streams = streams or await self._open()
                    sent = pieces_with_progress(request, pieces_of(self._target, request))
                    head, reusable = await self._begin(streams, sent)
            response = HttpResponse(head.status, head.headers, memoryview(b""))
            yield response, pieces(streams[0])
        except OSError as error:
            raise failure(error, self._target) from error
        finally:
            if streams is not None:
                self._leave(streams, reusable=reusable and complete)

    def _leave(self, streams: Streams, *, reusable: bool) -> None:
        if reusable and len(self._idle) < IDLE_CONNECTIONS:
            self._idle.append(streams)
        else:
            streams[1].close()

    async def _begin(self, streams: Streams, pieces: Iterable[Block]) -> tuple[Head, bool]:
        reader, writer = streams
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
        return head, head.keeps_open and not refused

    async def _head(self, reader: asyncio.StreamReader) -> Head:
        try:
            return parse_head(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.IncompleteReadError as error:
            kind = ConnectionFailed if error.partial else BrokenConnection
            raise kind(unanswered_text(self._target, error.partial)) from error
        except ConnectionResetError as error:
            raise BrokenConnection(unanswered_text(self._target, b"")) from error

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            writer = self._idle.pop()[1]
            writer.close()
            with contextlib.suppress(OSError):  # closed by the other side first
                await writer.wait_closed()


def _stale(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the server has closed an idle connection, or sent bytes without a request."""
    if writer.is_closing() or has_unread_bytes(writer.get_extra_info("socket").fileno()):
        return True
    reading = reader.read(1)
    try:  # a reader tells that it is empty by waiting; the coroutine is closed where it would
        reading.send(None)
    except (StopIteration, OSError):
        return True
    finally:
        reading.close()
    return False


@contextlib.contextmanager
def _converted_errors() -> Iterator[None]:
    """Raise what asyncio's streams say of an answer that ends early as the client's error."""
    try:
        yield
    except asyncio.IncompleteReadError as error:
        raise ConnectionFailed("the answer ended before it was complete") from error
    except asyncio.LimitOverrunError as error:
        raise ConnectionFailed(f"the answer's head is longer than {HEAD_BYTES} bytes") from error


async def _body_pieces(reader: asyncio.StreamReader, head: Head) -> AsyncIterator[bytes]:
    if head.chunked:
        while size := chunk_size(await reader.readuntil(b"\r\n")):
            yield (await reader.readexactly(size + 2))[:size]
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailers
    elif (length := head.length) is not None:
        yield await reader.readexactly(length)
    else:
        yield await reader.read()
