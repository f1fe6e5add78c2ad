"""Sockets of the threaded way, with the deadlines that gunicorn's threads lack.

They read and write without a time limit. The kernel's own time limits on the socket end a single wait, and
the account kept here ends a slow message: like that of the native HTTP server, it asks for a least rate
after a grace time. Either shows as a reset connection, which gunicorn closes without a word.
"""

import errno
import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ksrv.observe.traffic import count_refusal

Result = TypeVar("Result")

_NO_PROGRESS = (BlockingIOError, TimeoutError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


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
        wants_head: Whether the message that is answered is HEAD, whose answers have no body.
    """

    timeouts = TransferTimeouts()
    hurried = False
    wants_head = False
    _moved = 0
    _waited = 0.0
    _rate = timeouts.rate

    def begin(self) -> None:
        """Start the account of a message."""
        self.expect(0)

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
        while view:
            view = view[self.send(view, flags) :]


class PlainSocket(TimedSocket):
    """A socket made from a descriptor; the kernel ends a single wait.

    Args:
        fileno: The descriptor; the socket owns it.
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
        """See `socket.socket.setblocking`; a socket whose message is late never blocks."""
        super().setblocking(flag and not self.hurried)


class TlsSocket(TimedSocket, ssl.SSLSocket):
    """An encrypted socket, made by a context; Python ends a single wait."""

    def setblocking(self, flag: bool) -> None:
        """See `socket.socket.setblocking`; a blocking socket waits for its timeout at most."""
        self.settimeout(self.timeouts.wait if flag and not self.hurried else 0.0)
