"""Connections that the HTTP server hands to gunicorn: their socket, with the deadlines that gunicorn lacks.

gunicorn's threads read and write without a time limit. The kernel's own time limits on the socket
end a single wait, and the account kept here ends a slow message: like that of the HTTP server, it
asks for a least rate after a grace time. Either shows as a reset connection, which gunicorn closes
without a word.

A thread that serves questions (`is_question`) never waits for a client, neither for its bytes nor for
its reading: what a client does not take at once is kept, and sent by a thread that may wait.
"""

import errno
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gunicorn.workers.gthread import TConn

from ksrv.observe.traffic import count_refusal

Result = TypeVar("Result")

_NO_PROGRESS = (BlockingIOError, TimeoutError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

_QUESTION = re.compile(rb"GET /(?:v1|v2|metrics|ping)(?:[/?][!-~]*)? HTTP/1\.[01]\r\n")
_MAY_HAVE_BODY = re.compile(rb"content.length|transfer.encoding|expect|upgrade", re.IGNORECASE)


def is_question(received: bytes) -> bool:
    """Tell whether a message can be answered at once, without its client and without a model.

    Metadata, readiness, statistics, metrics. Whatever could make a thread wait for another byte is
    none, and so is a route that runs a handler.

    Args:
        received: What has come of the message.
    """
    if _QUESTION.match(received) is None:
        return False
    head, end, _ = received.partition(b"\r\n\r\n")
    return bool(end) and _MAY_HAVE_BODY.search(head) is None


@dataclass(frozen=True, slots=True)
class TransferTimeouts:
    """How long a peer may take, and the rate of its transfers.

    Attributes:
        wait: Seconds for a single read or write to make any progress.
        grace: Seconds before the rate counts.
        rate: Bytes per second, on average, after that.
        whole: Seconds after that for a body or an answer of any size.
    """

    wait: float = 10.0
    grace: float = 10.0
    rate: int = 4096
    whole: int = 300


class TimedSocket(socket.socket):
    """A blocking socket on which a stalled or slow peer looks like one that reset the connection.

    Attributes:
        timeouts: The limits on the peer.
        hurried: Whether not even a moment is waited for the peer.
    """

    timeouts = TransferTimeouts()
    hurried = False
    _moved = 0
    _waited = 0.0
    _rate = timeouts.rate
    _waits = True
    _kept: Sequence[bytes] = ()

    def begin(self, *, waits: bool = True) -> None:
        """Start the account of a message.

        Args:
            waits: Whether the thread that serves it may wait for the peer to read.
        """
        self.expect(0)
        self._waits = waits
        self._kept = ()

    @property
    def keeps(self) -> bool:
        """Whether a part of the answer was kept, because the peer did not take it at once."""
        return bool(self._kept)

    def send_kept(self) -> None:
        """Send what was kept, on a thread that may wait for the peer."""
        kept, self._kept, self._waits = self._kept, (), True
        for piece in kept:
            self.sendall(piece)

    def take(self, size: int) -> bytes:
        """Receive without the account, as a socket that does not block does."""
        return super().recv(size)

    def expect(self, nbytes: int) -> None:
        """Start the account of a body or an answer whose length is known.

        Args:
            nbytes: The length; the larger it is, the faster the transfer must be.
        """
        self._moved = 0
        self._waited = 0.0
        self._rate = max(self.timeouts.rate, nbytes // self.timeouts.whole)

    def _move(self, operation: Callable[..., Result], *arguments: Any) -> Result:
        began = time.monotonic()
        try:
            result = operation(*arguments)
        except _NO_PROGRESS as error:
            count_refusal("http", "too_slow")
            raise ConnectionResetError(errno.ECONNRESET, "the peer made no progress") from error
        # Only time spent waiting for the peer counts, not the time that a handler takes.
        self._waited += time.monotonic() - began
        self._moved += result if isinstance(result, int) else len(result)  # type: ignore[arg-type]
        if self._waited > self.timeouts.grace + self._moved / self._rate:
            count_refusal("http", "too_slow")
            raise ConnectionResetError(errno.ECONNRESET, "the peer is too slow")
        return result

    def recv(self, *arguments: Any) -> bytes:
        """See `socket.socket.recv`."""
        return self._move(super().recv, *arguments)

    def recv_into(self, *arguments: Any) -> int:
        """See `socket.socket.recv_into`."""
        return self._move(super().recv_into, *arguments)

    def send(self, *arguments: Any) -> int:
        """See `socket.socket.send`."""
        return self._move(super().send, *arguments)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """See `socket.socket.sendall`."""
        view = memoryview(data).cast("B")
        while view and not self._kept:
            if self._waits:
                view = view[self.send(view, flags) :]
                continue
            try:
                view = view[super().send(view, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                break
        if view:
            self._kept = (*self._kept, bytes(view))


class HandoffSocket(TimedSocket):
    """A socket made from a descriptor; the kernel ends a single wait.

    Args:
        fileno: The descriptor; the socket owns it.
        family: Its address family.
        timeouts: The limits on the peer.
    """

    def __init__(self, fileno: int, family: int, timeouts: TransferTimeouts) -> None:
        super().__init__(family, socket.SOCK_STREAM, 0, fileno)
        self.timeouts = timeouts
        seconds = int(timeouts.wait)
        limit = struct.pack("ll", seconds, int((timeouts.wait - seconds) * 1_000_000))
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        except OSError:
            self.detach()  # the descriptor stays the caller's
            raise

    def setblocking(self, flag: bool) -> None:
        """See `socket.socket.setblocking`; one that is hurried never blocks."""
        super().setblocking(flag and not self.hurried)


class TlsSocket(TimedSocket, ssl.SSLSocket):
    """An encrypted socket, made by a context; Python ends a single wait."""

    def setblocking(self, flag: bool) -> None:
        """See `socket.socket.setblocking`; one that blocks does so for a while only."""
        self.settimeout(self.timeouts.wait if flag and not self.hurried else 0.0)


class HandoffConnection(TConn):  # type: ignore[misc]
    """gunicorn's connection object for a socket that came from the HTTP server.

    Args:
        cfg: gunicorn's configuration.
        sock: The socket.
        client: The peer's address.
        server: The listener's address.
        slot: The connection's place in the HTTP server.
        received: What the HTTP server has read since the message began; the parser sees it first.
    """

    def __init__(
        self, cfg: Any, sock: HandoffSocket, client: Any, server: Any, slot: int, received: bytes
    ) -> None:
        super().__init__(cfg, sock, client, server)
        self.slot = slot
        self.init()
        self.parser.unreader.unread(received)
        self.data_ready = True

    @property
    def asks(self) -> bool:
        """Whether the next message is a question (see `is_question`)."""
        return is_question(self.parser.unreader.buf.getvalue())

    def finish_sending(self, keep: bool) -> bool:
        """Send what was kept of the answer; return whether the connection can go on.

        Args:
            keep: Whether it can if that succeeds.
        """
        try:
            self.sock.send_kept()
        except OSError:
            return False
        return keep

    @property
    def holds_bytes(self) -> bool:
        """Whether bytes of a next message were read ahead, which no event will tell of."""
        return bool(self.parser.unreader.buf.getvalue())
