"""The messages between a worker and its handler process, over a socket that carries descriptors.

A sequenced packet socket preserves message boundaries, so nothing is ever read in part. A message
has a kind, a payload and changes of the shared blocks: new blocks with their descriptors, blocks that are
returned to the other side, and disowned blocks. A payload that is too long for the socket is put into a block.

Everything that arrives is checked before memory is touched, because the other side runs user
code. Inconsistent messages raise `ChannelError`.
"""

import os
import select
import socket
import threading
import time
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from ksrv._native.memory.buffer_pool import Block
from ksrv.engine.processes.shared_blocks import (
    BlockError,
    ExportedBlocks,
    ImportedBlocks,
    Part,
    Shared,
)

MESSAGE_BYTES = 160 * 1024
"""The longest message: it fits the default send buffer of a Unix socket on Linux."""
INLINE_PAYLOAD_BYTES = 64 * 1024
"""Longer payloads are put into a block."""
MOST_DESCRIPTORS = 128
"""The kernel's limit is 253 (SCM_MAX_FD)."""
_MOST_NUMBERS = 2048
"""Blocks that a message returns, and blocks that it disowns."""
_NOT_WAITING = int(socket.MSG_DONTWAIT)
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_TRUNCATED = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_ANCILLARY_BYTES = socket.CMSG_SPACE(MOST_DESCRIPTORS * 4)
_LONGEST_POLL_MS = 2**31 - 1

WhenFull: TypeAlias = Literal["wait", "keep", "drop"]


class ChannelClosed(Exception):
    """The other end is gone, or this end was shut down."""


class ChannelError(Exception):
    """The other end violated the protocol."""


class Packed(NamedTuple):
    """The content of a message.

    Attributes:
        payload: An object in MessagePack.
        blocks: The blocks of this side that the payload names; kept until it is sent.
    """

    payload: bytes = b"\xc0"
    blocks: Sequence[Block | Shared] = ()


EMPTY = Packed()


class Frame(NamedTuple):
    """A received message, after its blocks were mapped.

    Attributes:
        batch_number: The batch that the message belongs to, or 0.
    """

    kind: int
    batch_number: int
    payload: bytes


class _Announced(msgspec.Struct, array_like=True):
    number: Annotated[int, Meta(gt=0)]
    nbytes: Annotated[int, Meta(gt=0)]
    lent: bool


class _Message(msgspec.Struct, array_like=True):
    kind: int
    batch_number: Annotated[int, Meta(ge=0)]
    payload: msgspec.Raw
    spilled: Part | None  # the payload, if it is in a block
    announced: list[_Announced] = []
    returned: list[int] = []
    retired: list[int] = []


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Message)


class Link:
    """One end of a sequenced packet socket, with the shared blocks of both sides.

    Threads may send at the same time. One thread at a time receives.

    Args:
        end: A connected SOCK_SEQPACKET socket. The link owns it.
        when_full: "wait": a sender waits while the socket has no room. "keep": the message is kept, with all messages
            after it, until `flush` or the next message. "drop": the message is dropped.
        borrows: Whether the other side may lend blocks; see `ImportedBlocks`.

    Attributes:
        exported: The blocks of this side.
        imported: The blocks of the other side.
        kept_bytes: The bytes of the kept messages: their payloads, and the blocks that their senders report.
    """

    def __init__(
        self, end: socket.socket, *, when_full: WhenFull = "wait", borrows: bool = False
    ) -> None:
        end.setblocking(True)
        self._socket = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._when_full = when_full
        self._flags = int(socket.MSG_NOSIGNAL) | (0 if when_full == "wait" else _NOT_WAITING)
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, _Message, Sequence[Block | Shared]]] = deque()
        self._returned: list[int] = []
        self._retired: list[int] = []
        self._buffer = bytearray(MESSAGE_BYTES)
        self.exported = ExportedBlocks()
        self.imported = ImportedBlocks(borrows=borrows)
        self.kept_bytes = 0

    @staticmethod
    def pair(when_full: WhenFull = "wait") -> tuple["Link", socket.socket]:
        """Return a link, and the socket from which the other process makes its end."""
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Link(mine, when_full=when_full), other

    def fileno(self) -> int:
        """Return the descriptor, for polling."""
        return self._socket.fileno()

    # ---- sending ----------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many messages are kept until the socket has room."""
        return len(self._kept)

    def count(self, kind: int) -> int:
        """Return how many messages of a kind are kept."""
        with self._lock:
            return sum(message.kind == kind for _, message, _ in self._kept)

    def send(
        self, kind: int, packed: Packed = EMPTY, *, batch_number: int = 0, nbytes: int = 0
    ) -> None:
        """Send a message.

        Args:
            nbytes: The bytes of the tensors in its blocks.

        Raises:
            ChannelClosed: The other end is closed.
            MemoryError: No memory is left for a long payload.
            TooLarge: The other side does not accept payloads of this size.
        """
        payload, blocks = packed
        length = len(payload)
        self.exported.check_size(length)
        spilled = None
        if length > INLINE_PAYLOAD_BYTES:
            block = self.exported.lease(length)
            memoryview(block)[:length] = payload
            spilled = Part(self.exported.number_of(block), 0, length)
            payload, blocks = EMPTY.payload, [*blocks, block]
        message = _Message(kind, batch_number, msgspec.Raw(payload), spilled)
        with self._lock:
            self._send_kept()
            is_sent = not self._kept and self._sent(message, blocks)
            if not is_sent and self._when_full == "keep":
                self._kept.append((nbytes + length, message, blocks))
                self.kept_bytes += nbytes + length

    def flush(self) -> None:
        """Send the kept messages until the socket has no more room.

        Raises:
            ChannelClosed: The other end is closed.
        """
        with self._lock:
            self._send_kept()

    def owes_blocks(self) -> bool:
        """Return whether the next message returns blocks to the other side."""
        with self._lock:
            self._returned += self.imported.unused()
            return bool(self._returned)

    def _send_kept(self) -> None:
        while self._kept and self._sent(*self._kept[0][1:]):
            self.kept_bytes -= self._kept.popleft()[0]

    def _sent(self, message: _Message, blocks: Sequence[Block | Shared]) -> bool:
        """Send a message, with the blocks that changed since the last. Return False if the socket has no room."""
        unknown: list[Shared] = []
        rights: list[tuple[int, int, array[int]]] = []
        if blocks:
            try:
                unknown = self.exported.name(blocks)
            except KeyError:
                if self.fileno() >= 0:
                    raise
                raise ChannelClosed("this end is closed") from None  # `close` released the blocks
            message.announced = [
                _Announced(one.number, len(one.block), one.lent) for one in unknown
            ]
        if unknown:
            descriptors = array("i", [one.block.fd for one in unknown])
            rights.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors))
        self._returned += self.imported.unused()
        self._retired += self.exported.retired()
        message.returned = self._returned[:_MOST_NUMBERS]
        message.retired = self._retired[:_MOST_NUMBERS]
        try:
            self._socket.sendmsg((_ENCODER.encode(message),), rights, self._flags)
        except BlockingIOError:
            self.exported.unname(blocks, unknown)
            return False
        except OSError as error:
            raise ChannelClosed(f"the other end is gone: {error.strerror}") from error
        del self._returned[:_MOST_NUMBERS], self._retired[:_MOST_NUMBERS]
        return True

    # ---- receiving --------------------------------------------------------------------------

    def receive(self, deadline_ns: int | None = None) -> Frame:
        """Wait for a message and map the blocks that came with it.

        Args:
            deadline_ns: The time of `time.monotonic_ns` at which to give up, or None.

        Raises:
            ChannelClosed: No more messages will arrive.
            TimeoutError: The deadline passed.
            ChannelError: The message is inconsistent.
        """
        while True:
            data, descriptors = self._received(deadline_ns)
            try:
                if len(data) > 1:  # one byte is a wake-up, see batch_ring.hpp
                    return self._parse(data, descriptors)
            except (BlockError, ValueError, RecursionError) as error:
                raise ChannelError(f"a message of the other side is malformed: {error}") from error
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            if deadline_ns is not None and time.monotonic_ns() >= deadline_ns:
                raise TimeoutError("no message arrived before the deadline")

    def _received(self, deadline_ns: int | None) -> tuple[bytes, list[int]]:
        """Return the bytes of the next message, and the descriptors that came with it."""
        if deadline_ns is not None:
            left_ms = -(-(deadline_ns - time.monotonic_ns()) // 1_000_000)
            if not self._poll.poll(min(max(left_ms, 0), _LONGEST_POLL_MS)):
                raise TimeoutError("no message arrived before the deadline")
        try:
            length, rights, flags, _ = self._socket.recvmsg_into(
                (self._buffer,), _ANCILLARY_BYTES, _CLOSE_ON_EXEC
            )
        except OSError as error:
            raise ChannelClosed(f"this end is closed: {error.strerror}") from error
        descriptors = array("i")
        for _, _, data in rights:
            descriptors.frombytes(data[: len(data) // 4 * 4])
        if length == 0 or flags & _TRUNCATED:
            for descriptor in descriptors:
                os.close(descriptor)
            if length:
                raise ChannelError("a message was longer than the channel allows")
            raise ChannelClosed("the other end is closed")
        return bytes(memoryview(self._buffer)[:length]), list(descriptors)

    def _parse(self, data: bytes, descriptors: list[int]) -> Frame:
        """Return a message. Descriptors of blocks that were mapped are removed from the list."""
        message = _DECODER.decode(data)
        if len(message.announced) != len(descriptors):
            raise BlockError(
                f"it announces {len(message.announced)} blocks with {len(descriptors)} descriptors"
            )
        for one in message.announced:
            self.imported.map(one.number, one.nbytes, descriptors[0], lent=one.lent)
            del descriptors[0]
        if message.returned:
            self.exported.take_back(message.returned)
        payload = bytes(message.payload)
        if message.spilled is not None:
            start, length = message.spilled.offset, message.spilled.nbytes
            if length > self.imported.most_bytes:
                raise BlockError(
                    f"its payload has {length} bytes, and {self.imported.most_bytes} are allowed"
                )
            (block,) = self.imported.read([message.spilled])
            # Copied, so that the other side cannot change the bytes between checking and reading.
            payload = bytes(memoryview(block)[start : start + length])
        if message.retired:
            self.imported.forget(message.retired)
        return Frame(message.kind, message.batch_number, payload)

    # ---- the end ----------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Wake the threads that wait for a message, at both ends. The socket stays open."""
        with suppress(OSError):  # already shut down, or never connected: no thread waits
            self._socket.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """End sending: the other end reads an end of file. Its messages are still received.

        Raises:
            ChannelClosed: The other end is gone.
        """
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise ChannelClosed(f"the other end is gone: {error}") from error

    def close(self) -> None:
        """Close the socket and release every block."""
        self._socket.close()
        self.exported.clear()
        self.imported.clear()
