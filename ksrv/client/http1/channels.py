"""Channels, which send and receive the bytes of a connection: over a blocking socket, or over asyncio's streams.

The methods of both are coroutines, so that `Connection` and `AsyncClient` run on either. Coroutines of a socket never
suspend: `ksrv.client.waiting` runs them to their end without an event loop.

Deadlines are seconds of the monotonic clock.
"""

import asyncio
import contextlib
import socket
import time
from typing import TypeAlias

from ksrv.client.http1.messages import HEAD_BYTES, Target, has_unread_bytes
from ksrv.client.tensors import Block


def seconds_left(deadline: float) -> float:
    """Return the seconds until a deadline of the monotonic clock.

    Raises:
        TimeoutError: The deadline has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class SocketChannel:
    """A channel over a socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    @property
    def stale(self) -> bool:
        """Whether the server has closed the idle connection, or sent bytes without a request."""
        return has_unread_bytes(self._socket.fileno())

    async def send(self, block: Block, deadline: float) -> None:
        """Send a block."""
        self._socket.settimeout(seconds_left(deadline))
        self._socket.sendall(block)

    async def receive_into(self, buffer: memoryview, deadline: float) -> int:
        """Wait for bytes, and return how many are in the buffer; 0 at the end of the connection."""
        self._socket.settimeout(seconds_left(deadline))
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed; a socket is closed at once."""


async def open_socket(target: Target, deadline: float) -> SocketChannel:
    """Connect a socket.

    Raises:
        OSError: The socket cannot be connected in time.
    """
    plain = socket.create_connection((target.host, target.port), seconds_left(deadline))
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.tls is None:
            return SocketChannel(plain)
        plain.settimeout(seconds_left(deadline))
        return SocketChannel(target.tls.wrap_socket(plain, server_hostname=target.host))
    except OSError:
        plain.close()
        raise


class StreamChannel:
    """A channel over asyncio's streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def stale(self) -> bool:
        """See `SocketChannel.stale`."""
        socket_of = self._writer.get_extra_info("socket")
        if self._writer.is_closing() or has_unread_bytes(socket_of.fileno()):
            return True
        reading = self._reader.read(1)
        # asyncio may have read bytes, or the end, from the socket into its buffer. `read` suspends only if the buffer
        # is empty and has no end, so one step of the coroutine shows this without waiting.
        try:
            reading.send(None)
        except (StopIteration, OSError):
            return True
        finally:
            reading.close()
        return False

    async def send(self, block: Block, deadline: float) -> None:
        """See `SocketChannel.send`."""
        async with asyncio.timeout(seconds_left(deadline)):
            self._writer.write(block)
            await self._writer.drain()

    async def receive_into(self, buffer: memoryview, deadline: float) -> int:
        """See `SocketChannel.receive_into`."""
        async with asyncio.timeout(seconds_left(deadline)):
            content = await self._reader.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        """See `SocketChannel.close`."""
        self._writer.close()

    async def wait_closed(self) -> None:
        """See `SocketChannel.wait_closed`."""
        with contextlib.suppress(OSError):  # the other side has closed it first
            await self._writer.wait_closed()


async def open_streams(target: Target, deadline: float) -> StreamChannel:
    """Connect asyncio's streams.

    Raises:
        OSError: The streams cannot be connected in time.
    """
    name = target.host if target.tls is not None else None
    async with asyncio.timeout(seconds_left(deadline)):
        return StreamChannel(
            *await asyncio.open_connection(
                target.host, target.port, ssl=target.tls, server_hostname=name, limit=HEAD_BYTES
            )
        )


Channel: TypeAlias = SocketChannel | StreamChannel
