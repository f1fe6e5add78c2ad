"""The socket between a worker and its handler process: whole messages, and descriptors with them.

A sequenced packet socket keeps the bounds of messages, so nothing is ever read in part and the
reader needs no length prefix. What a message means is the business of frames.py. Both ends use this
class; neither trusts the other to be in its right mind, so truncation is an error here.
"""

import array
import os
import select
import socket
import time
from collections.abc import Sequence

MESSAGE_BYTES = 160 * 1024
"""The longest message; fits into the default send buffer of a Unix socket on Linux."""

MESSAGE_DESCRIPTORS = 128
"""The most descriptors one message carries; the kernel's own bound is 253."""

_ANCILLARY = socket.CMSG_SPACE(MESSAGE_DESCRIPTORS * 4)


class ChannelClosed(Exception):
    """The other end is gone, or this end was shut down."""


class ChannelError(Exception):
    """The other end sent something that no peer in its right mind sends."""


class Channel:
    """One end of the socket.

    Args:
        end: A connected SOCK_SEQPACKET socket; the channel owns it.
    """

    __slots__ = ("_buffer", "_poll", "_socket", "_view")

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)
        self._socket = end
        self._buffer = bytearray(MESSAGE_BYTES)
        self._view = memoryview(self._buffer)
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    @staticmethod
    def pair() -> tuple["Channel", socket.socket]:
        """Return a channel and the socket for the other process to make its own from."""
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Channel(mine), other

    def fileno(self) -> int:
        """Return the descriptor, for polling."""
        return self._socket.fileno()

    def send(
        self, message: bytes | bytearray, descriptors: Sequence[int] = (), *, wait: bool = True
    ) -> None:
        """Send one message.

        Args:
            message: At most `MESSAGE_BYTES`.
            descriptors: Descriptors that the receiver gets copies of.
            wait: Whether to wait for room; otherwise BlockingIOError is raised when there is none.

        Raises:
            ChannelClosed: Nobody can receive it.
            BlockingIOError: There is no room, and `wait` is false.
            ValueError: The message is too long or carries too many descriptors.
        """
        if len(message) > MESSAGE_BYTES or len(descriptors) > MESSAGE_DESCRIPTORS:
            raise ValueError(
                f"a message holds at most {MESSAGE_BYTES} bytes and {MESSAGE_DESCRIPTORS}"
                f" descriptors, not {len(message)} and {len(descriptors)}"
            )
        flags = socket.MSG_NOSIGNAL if wait else socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT
        try:
            if descriptors:
                rights = array.array("i", descriptors)
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
                self._socket.sendmsg([message], ancillary, flags)
            else:
                self._socket.send(message, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise ChannelClosed(f"the other end is gone: {error}") from error

    def receive(self, deadline_ns: int | None = None) -> tuple[memoryview, list[int]]:
        """Wait for one message.

        Args:
            deadline_ns: `time.monotonic_ns` at which the wait ends, or None to wait for ever.

        Returns:
            The message, valid until the next call, and the descriptors that came with it, which
            are the caller's to close.

        Raises:
            ChannelClosed: No message will come any more.
            TimeoutError: The deadline passed.
            ChannelError: The message was longer than any that is sent.
        """
        if deadline_ns is not None:
            # Rounded up, and asked again when early: poll counts in milliseconds.
            while not self._poll.poll(max(0, deadline_ns - time.monotonic_ns()) / 1e6):
                if time.monotonic_ns() >= deadline_ns:
                    raise TimeoutError("no message came before the deadline")
        try:
            length, ancillary, flags, _ = self._socket.recvmsg_into(
                [self._buffer], _ANCILLARY, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise ChannelClosed(f"this end is closed: {error}") from error
        descriptors = _descriptors(ancillary) if ancillary else []
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            close_all(descriptors)
            raise ChannelError("a message was longer than the channel allows")
        if length == 0:
            close_all(descriptors)
            raise ChannelClosed("the other end is closed")
        return self._view[:length], descriptors

    def shutdown(self) -> None:
        """Wake whoever waits in `receive`, here and at the other end; the descriptor stays open."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # shut down before, or never connected: there is nobody to wake

    def finish(self) -> None:
        """Tell the other end that nothing more is sent; what it sends is still received."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise ChannelClosed(f"the other end is gone: {error}") from error

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found.tolist()


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors that nobody wants."""
    for descriptor in descriptors:
        os.close(descriptor)
