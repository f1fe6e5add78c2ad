"""Sends and receives the messages between a worker and its handler process, over a Unix socket.

A sequenced packet socket preserves message boundaries, so a message is never read in part. A message has a kind, a
payload in MessagePack, and blocks of memory with its large tensors. There are two kinds of blocks:

- a slot of the memory that both sides share (`SharedMemory`), which is filled again after the other side has
  released it;
- a memfd for this message alone, if no slot is free or the tensors are larger than a slot. Its descriptor is sent
  with the message. The body of a large request was received into such a block, so it is not copied: the block is
  lent, and the other side cannot write to it.

A payload that is too long for the socket is put into a block, too.

Everything that arrives is checked before memory is touched, because the other side runs user
code. Inconsistent messages raise `ChannelError`.
"""

import os
import select
import socket
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Literal, NamedTuple, TypeAlias
from weakref import WeakSet

import msgspec
from msgspec import Meta

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.buffer_pool import Block
from ksrv._native.process.batch_ring import SharedMemory

MESSAGE_BYTES = 160 * 1024
"""The longest message: it fits the default send buffer of a Unix socket on Linux."""
INLINE_PAYLOAD_BYTES = 64 * 1024
"""Longer payloads are put into a block."""
MOST_DESCRIPTORS = 128
"""The kernel's limit is 253 (SCM_MAX_FD)."""
INLINE_BYTES = 32 * 1024
"""The most bytes of arrays in a message itself; for more, a block is cheaper."""
MOST_MAPPED = 16 * 1024
"""Memfds of the other side that are mapped at a time: a quarter of the mappings that Linux allows."""
MOST_MAPPED_BYTES = 1 << 40
"""The most bytes of these mappings. A process that sends sparse memfds could otherwise use up the address space."""
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


class TooLarge(Exception):
    """A message of this side exceeds the size that the other side accepts."""


class Part(msgspec.Struct):
    """Bytes in a block.

    Attributes:
        block: The place of the block among the blocks of the message.
    """

    block: int
    offset: int
    nbytes: int


class Packed(NamedTuple):
    """The content of a message.

    Attributes:
        payload: An object in MessagePack.
        blocks: The blocks that the payload names: slots, and blocks that can be lent.
    """

    payload: bytes = b"\xc0"
    blocks: Sequence[Block] = ()


EMPTY = Packed()


class Frame(NamedTuple):
    """A received message, after its blocks were mapped.

    Attributes:
        batch_number: The batch that the message belongs to, or 0.
        blocks: The blocks that the payload names.
        most_bytes: The most bytes that its tensors may have. The sizes of blocks do not limit them, because a block
            may have pages that were never written, and may be named many times.
    """

    kind: int
    batch_number: int
    payload: bytes
    blocks: Sequence[Block] = ()
    most_bytes: int = sys.maxsize

    def memory(self, part: Part) -> memoryview:
        """Return the bytes of a part of a block.

        Raises:
            ValueError: The part does not exist.
        """
        if not 0 <= part.block < len(self.blocks):
            raise ValueError(f"block {part.block} of {len(self.blocks)} is named")
        block = memoryview(self.blocks[part.block])
        if not 0 <= part.offset <= part.offset + part.nbytes <= len(block):
            raise ValueError(
                f"{part.nbytes} bytes from byte {part.offset} on are named of a block of {len(block)}"
            )
        return block[part.offset : part.offset + part.nbytes]


class _Message(msgspec.Struct, array_like=True):
    kind: int
    batch_number: Annotated[int, Meta(ge=0)]
    payload: msgspec.Raw
    spilled: Part | None  # the payload, if it is in a block
    # The number of each slot, and the negative size of each memfd, whose descriptors follow in this order.
    blocks: Annotated[list[int], Meta(max_length=MOST_DESCRIPTORS)] = []


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Message)


class Link:
    """One end of a sequenced packet socket.

    Threads may send at the same time. One thread at a time receives.

    Args:
        end: A connected SOCK_SEQPACKET socket. The link owns it.
        when_full: "wait": a sender waits while the socket has no room. "keep": the message is kept, with all messages
            after it, until `flush` or the next message. "drop": the message is dropped.

    Attributes:
        shared: The memory that both sides share, or None.
        most_sent: The most bytes in the tensors of a message, or in its payload, that the other side accepts.
        most_received: The most bytes in the tensors of a message, or in its payload, that this side accepts.
        kept_bytes: The bytes of the kept messages: their payloads, and the tensor bytes given to `send`.
    """

    def __init__(self, end: socket.socket, *, when_full: WhenFull = "wait") -> None:
        end.setblocking(True)
        self._socket = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._when_full = when_full
        self._flags = int(socket.MSG_NOSIGNAL) | (0 if when_full == "wait" else _NOT_WAITING)
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, _Message, Sequence[Block]]] = deque()  # each with its bytes
        self._buffer = bytearray(MESSAGE_BYTES)
        self._mapped: WeakSet[Block] = WeakSet()  # memfds of the other side that are still used
        self.shared: SharedMemory | None = None
        self.most_sent = self.most_received = sys.maxsize
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

    def lease(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes`. In a message its bytes are not copied, unless they are few.

        Raises:
            MemoryError: Not enough memory.
        """
        if nbytes <= INLINE_BYTES:
            return buffer_pool.lease(nbytes, pages=True)
        block = None if self.shared is None else self.shared.lease(nbytes)
        return block or buffer_pool.share(nbytes)

    def can_send(self, block: Block) -> bool:
        """Return whether a message can name a block. A block without a slot is lent from now on."""
        return (self.shared is not None and self.shared.number_of(block) >= 0) or block.lend()

    def check_size(self, nbytes: int) -> None:
        """Raise `TooLarge` if the other side does not accept a message of this size."""
        if nbytes > self.most_sent:
            raise TooLarge(f"{nbytes} bytes; a message has at most {self.most_sent}")

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
        self.check_size(length)
        spilled = None
        if length > INLINE_PAYLOAD_BYTES:
            block = self.lease(length)
            memoryview(block)[:length] = payload
            self.can_send(block)  # lends the block, unless it is a slot
            spilled = Part(len(blocks), 0, length)
            payload, blocks = EMPTY.payload, [*blocks, block]
        message = _Message(kind, batch_number, msgspec.Raw(payload), spilled)
        with self._lock:
            self._send_kept()
            is_sent = not self._kept and self._try_send(message, blocks)
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

    def _send_kept(self) -> None:
        while self._kept and self._try_send(*self._kept[0][1:]):
            self.kept_bytes -= self._kept.popleft()[0]

    def _try_send(self, message: _Message, blocks: Sequence[Block]) -> bool:
        """Send a message. Return False if the socket has no room."""
        rights: list[tuple[int, int, array[int]]] = []
        slots: list[int] = []
        shared = self.shared
        if blocks:
            numbers = [-1 if shared is None else shared.number_of(block) for block in blocks]
            slots = [number for number in numbers if number >= 0]
            lent = [block for block, number in zip(blocks, numbers, strict=True) if number < 0]
            message.blocks = [
                -len(block) if number < 0 else number
                for block, number in zip(blocks, numbers, strict=True)
            ]
            if lent:
                descriptors = array("i", [block.fd for block in lent])
                rights.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors))
        data = _ENCODER.encode(message)
        sent = False
        try:
            # Before the message is sent, because the other side may release the slots at once.
            for slot in slots:
                shared.name(slot)  # type: ignore[union-attr]
            self._socket.sendmsg((data,), rights, self._flags)
            sent = True
        except BlockingIOError:
            pass
        except OSError as error:
            raise ChannelClosed(f"the other end is gone: {error.strerror}") from error
        finally:
            for slot in [] if sent else slots:
                shared.unname(slot)  # type: ignore[union-attr]
        return sent

    # ---- receiving --------------------------------------------------------------------------

    def receive(self, deadline_ns: int | None = None) -> Frame:
        """Wait for a message and map its blocks.

        Args:
            deadline_ns: The time of `time.monotonic_ns` at which to give up, or None.

        Raises:
            ChannelClosed: No more messages will arrive.
            TimeoutError: The deadline passed.
            ChannelError: The message is inconsistent.
        """
        while True:
            data, descriptors = self._receive_bytes(deadline_ns)
            try:
                if len(data) > 1:  # one byte is a wake-up, see batch_ring.hpp
                    return self._parse(data, descriptors)
            except (ValueError, OSError, RecursionError) as error:
                raise ChannelError(f"a message of the other side is malformed: {error}") from error
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            if deadline_ns is not None and time.monotonic_ns() >= deadline_ns:
                raise TimeoutError("no message arrived before the deadline")

    def _receive_bytes(self, deadline_ns: int | None) -> tuple[bytes, list[int]]:
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
        """Return a message. Removes the descriptors that it takes from the list; the caller closes the others."""
        message = _DECODER.decode(data)
        if sum(number < 0 for number in message.blocks) != len(descriptors):
            raise ValueError(f"it has {len(descriptors)} descriptors, and names others")
        blocks = [self._received_block(number, descriptors) for number in message.blocks]
        payload = bytes(message.payload)
        frame = Frame(message.kind, message.batch_number, payload, blocks, self.most_received)
        if message.spilled is None:
            return frame
        if message.spilled.nbytes > self.most_received:
            raise ValueError(
                f"its payload has {message.spilled.nbytes} bytes, and {self.most_received} are allowed"
            )
        # Copied, so that the other side cannot change the bytes between checking and reading.
        return frame._replace(payload=bytes(frame.memory(message.spilled)))

    def _received_block(self, number: int, descriptors: list[int]) -> Block:
        """Return the block of a slot's number, or map the next memfd, whose size is `-number`."""
        if number >= 0:
            slot = None if self.shared is None else self.shared.receive(number)
            if slot is None:
                raise ValueError(f"it names slot {number}, which the other side does not write")
            return slot
        mapped = list(self._mapped)
        if len(mapped) >= MOST_MAPPED or sum(map(len, mapped)) - number > MOST_MAPPED_BYTES:
            raise ValueError(f"a memfd of {-number} bytes is one too many beside {len(mapped)}")
        block = buffer_pool.adopt_fd(descriptors[0], -number)
        del descriptors[0]
        block.close_fd()  # a mapping does not need it, and this process has few descriptors
        self._mapped.add(block)
        return block

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
        """Close the socket. Received blocks stay valid."""
        self._socket.close()
        with self._lock:
            self._kept.clear()
        self.shared = None
