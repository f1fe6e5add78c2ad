"""HTTP/1.1 over a socket and over asyncio's streams: one request and its answer after the other.

http.client is not used because its headers cost more than a small inference, and asyncio has no HTTP
client at all; both clients share these readers.
"""

import asyncio
import contextlib
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from ksrv.client.errors import ConnectionFailed, DeadlineExceeded
from ksrv.client.rest import HttpRequest, HttpResponse
from ksrv.client.tensors import Block

HEAD_BYTES = 65536
"""A longer response head, or chunk's first line, is refused."""

_JOINED_BYTES = 65536
_RECEIVE_BYTES = 65536
_IDLE_CONNECTIONS = 64


@dataclass(frozen=True)
class Target:
    """Where requests go.

    Attributes:
        authority: HOST:PORT as the `Host` header has it.
        prefix: The path of a proxy, before every path.
        fields: Header lines that every request has.
    """

    host: str
    port: int
    authority: str
    prefix: str
    tls: ssl.SSLContext | None
    fields: str


def make_target(
    url: str, token: str | None, ca: str | None, certificate: tuple[str, str] | None
) -> Target:
    """Return the target of an http or https URL.

    Args:
        url: The URL.
        token: The bearer token, or None.
        ca: A file (PEM) of the authorities to trust instead of the system's, or None.
        certificate: Files (PEM) of the client's certificate chain and key, or None.

    Raises:
        ValueError: The URL or the token cannot be.
        OSError: A file cannot be read.
    """
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError(f"expected http://HOST:PORT, got {url!r}")
    encrypted = parts.scheme == "https"
    authority = parts.netloc.rpartition("@")[2]
    fields = [f"Host: {authority}", "User-Agent: ksrv-client", "Accept: */*"]
    if token is not None:
        if not token.isprintable() or not token.isascii():
            raise ValueError("a token consists of printable ASCII characters")
        fields.append(f"Authorization: Bearer {token}")
    tls = None
    if encrypted:
        tls = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            tls.load_cert_chain(*certificate)
    port = parts.port or (443 if encrypted else 80)
    prefix = parts.path.rstrip("/")
    return Target(parts.hostname, port, authority, prefix, tls, "\r\n".join(fields))


def head_of(target: Target, request: HttpRequest) -> bytes:
    """Return the head of a request.

    Args:
        target: Where it goes.
        request: The request.
    """
    lines = [f"{request.method} {target.prefix}{request.path} HTTP/1.1", target.fields]
    lines += [f"{name}: {value}" for name, value in request.headers]
    if request.method != "GET":
        lines.append(f"Content-Length: {sum(len(block) for block in request.blocks)}")
    return "\r\n".join([*lines, "\r\n"]).encode("ascii")


def pieces_of(target: Target, request: HttpRequest) -> list[Block]:
    """Return a request as pieces to send, small ones joined.

    Args:
        target: Where it goes.
        request: The request.
    """
    pieces: list[Block] = []
    small: list[Block] = [head_of(target, request)]
    size = len(small[0])
    for block in request.blocks:
        if size + len(block) > _JOINED_BYTES:
            pieces.append(b"".join(small))
            small, size = [], 0
            if len(block) > _JOINED_BYTES:
                pieces.append(block)
                continue
        small.append(block)
        size += len(block)
    return [piece for piece in (*pieces, b"".join(small)) if len(piece)]


@dataclass(frozen=True)
class Head:
    """The head of a response.

    Attributes:
        headers: By name in lower case; of several with one name the last.
    """

    status: int
    version: str
    headers: dict[str, str]

    @property
    def interim(self) -> bool:
        """Whether the answer proper is still to come."""
        return 100 <= self.status < 200 and self.status != 101

    @property
    def chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return self.headers.get("transfer-encoding", "").lower().endswith("chunked")

    @property
    def length(self) -> int | None:
        """The body's bytes; None where its end is the connection's."""
        if self.status in (204, 304):
            return 0
        text = self.headers.get("content-length")
        if text is None:
            return None
        if not text.isdigit():
            raise ConnectionFailed(f"the answer's Content-Length is no number: {text[:40]!r}")
        return int(text)

    @property
    def keeps_open(self) -> bool:
        """Whether the connection can take another request."""
        closes = "close" in self.headers.get("connection", "").lower()
        bounded = self.chunked or self.length is not None
        return self.version == "HTTP/1.1" and not closes and bounded


def parse_head(content: bytes) -> Head:
    """Return the head of a response.

    Args:
        content: Its bytes up to the empty line.

    Raises:
        ConnectionFailed: They are no such head.
    """
    first, *lines = content.decode("latin-1").rstrip("\r\n").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not (status.isdigit() and len(status) == 3):
        raise ConnectionFailed(f"the server does not speak HTTP/1.1; it answered {first[:60]!r}")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Head(int(status), version, headers)


class BrokenConnection(ConnectionFailed):
    """The connection ended before any of the answer had come, so the request may be sent anew."""


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
            raise _failure(error, target) from error

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
                    raise BrokenConnection(_text(refused, self._target)) from refused
                raise
            body = self._body(head, deadline)
        except OSError as error:
            raise _failure(error, self._target) from error
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


def chunk_size(line: bytes) -> int:
    """Return the size that a chunk's first line announces.

    Args:
        line: The line.

    Raises:
        ConnectionFailed: It announces none.
    """
    text = line.partition(b";")[0].strip()
    try:
        return int(text, 16)
    except ValueError:
        raise ConnectionFailed(f"a chunk of the answer begins with {text[:40]!r}") from None


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _text(error: BaseException, target: Target) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {target.authority} is not accepted: {error.verify_message}; "
            f"ca= names the file of an authority to trust"
        )
    return f"no answer from {target.authority}: {error}"


def _failure(error: BaseException, target: Target) -> ConnectionFailed | DeadlineExceeded:
    if isinstance(error, TimeoutError):
        return DeadlineExceeded(f"no answer from {target.authority} in time")
    return ConnectionFailed(_text(error, target))


class ConnectionPool:
    """Connections that are kept between requests; any thread may use it.

    Args:
        target: Where they go.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._idle: deque[Connection] = deque(maxlen=_IDLE_CONNECTIONS)
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
            oldest = self._idle.popleft() if len(self._idle) == _IDLE_CONNECTIONS else None
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
            raise _failure(error, self._target) from error

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
            if reusable and len(self._idle) < _IDLE_CONNECTIONS:
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
