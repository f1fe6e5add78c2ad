# Needs the GIL: one thread at a time uses the lists and the buffer of a Link.
"""The messages between a worker and its handler process, over a socket that carries descriptors.

A sequenced packet socket preserves message boundaries, so nothing is ever read in part. A message
has a fixed head, changes of the shared blocks (new blocks with their descriptors, blocks that are
returned to the other side, disowned blocks) and a payload. A payload that is too long for the
socket is put into a block. Tensors are never in a message.

Every number that arrives is checked before memory is touched, because the other side runs user
code. Inconsistent messages raise `ChannelError`. Waiting, sending and receiving release the GIL.
"""

import os
import socket

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcmp, memcpy, memset, strerror

from ksrv._native.memory.buffer_pool cimport Block
from ksrv._native.memory.exported_bytes cimport ExportedBytes
from ksrv._native.process.shared_blocks cimport ExportedBlocks, ImportedBlocks, Shared

from ksrv._native.process.shared_blocks import BlockError

if not cython.compiled:
    from collections.abc import Sequence

    from typing_extensions import Buffer


cdef extern from "process/channel.hpp" namespace "ksrv" nogil:
    cdef enum:
        MESSAGE_BYTES
        MESSAGE_DESCRIPTORS

    cdef enum Wait:
        CHANNEL_READY
        CHANNEL_PASSED
        CHANNEL_INTERRUPTED
        CHANNEL_FAILED

    Wait wait_readable(int fd, int64_t deadline_ns)
    Py_ssize_t send_message(
        int fd, const void *data, size_t length, const int *descriptors, int count, bint wait
    )
    Py_ssize_t receive_message(
        int fd, void *data, size_t room, int *descriptors, int *count, int *truncated, bint wait
    )


cdef extern from "base/clock.hpp" namespace "ksrv" nogil:
    int64_t now_ns() noexcept


class ChannelClosed(Exception):
    """The other end is gone, or this end was shut down."""


class ChannelError(Exception):
    """The other end violated the protocol."""


cdef struct Head:
    char magic[4]
    uint8_t kind
    uint8_t flags
    uint16_t announced
    uint16_t returned
    uint16_t retired
    uint8_t unused[4]
    uint64_t batch_number
    uint64_t length

cdef struct Announced:
    uint64_t number
    uint64_t size
    uint64_t lent  # 1: lent for this message only

cdef struct Spilled:
    uint64_t number
    uint64_t offset

cdef enum:
    IN_BLOCK = 1
    LENIENT = 2
    INLINE_PAYLOAD = 64 * 1024
    NUMBERS = 2048

cdef uint64_t PAYLOAD_LIMIT = 1 << 32


cdef class Channel:
    """One end of a sequenced packet socket.

    Args:
        end: A connected SOCK_SEQPACKET socket. The channel owns it.
    """

    cdef object _socket
    cdef int _fd

    def __init__(self, end: socket.socket):
        end.setblocking(True)
        self._socket = end
        self._fd = end.fileno()

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """Return a channel, and the socket from which the other process makes its end."""
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Channel(mine), other

    def fileno(self) -> int:
        """Return the descriptor, for polling."""
        return self._fd

    def send(self, message: Buffer, descriptors: Sequence[int] = (), *, bint wait=True) -> None:
        """Send one message.

        Args:
            message: At most 160 KiB.
            descriptors: Descriptors to pass to the receiver, at most 128.
            wait: Whether to block while the socket buffer is full, or else raise BlockingIOError.

        Raises:
            ChannelClosed: The other end is closed.
            BlockingIOError: The socket buffer is full, and `wait` is false.
            ValueError: The message is too long or carries too many descriptors.
        """
        cdef int numbers[MESSAGE_DESCRIPTORS]
        cdef int count = 0
        cdef ExportedBytes sent
        sent.take(message)
        cdef size_t length = sent.length
        if length == 0 or length > MESSAGE_BYTES or len(descriptors) > MESSAGE_DESCRIPTORS:
            raise ValueError(
                f"a message holds 1 to {MESSAGE_BYTES} bytes and at most {MESSAGE_DESCRIPTORS}"
                f" descriptors, not {length} and {len(descriptors)}"
            )
        for descriptor in descriptors:
            numbers[count] = descriptor
            count += 1
        self._send(sent.data, length, numbers, count, wait)

    cdef int _send(
        self, const void *data, size_t length, const int *descriptors, int count, bint wait
    ) except -1:
        cdef Py_ssize_t sent
        cdef int error
        while True:
            with nogil:
                sent = send_message(self._fd, data, length, descriptors, count, wait)
                error = errno
            if sent >= 0:
                return 0
            if error == EAGAIN:
                raise BlockingIOError(error, "the other end does not read")
            if error != EINTR:
                raise ChannelClosed(f"the other end is gone: {strerror(error).decode()}")
            PyErr_CheckSignals()

    cdef Py_ssize_t _receive(
        self, void *data, size_t room, object deadline_ns, int *descriptors, int *count
    ) except -1:
        """Receive one message. The caller owns the descriptors unless this raises."""
        cdef bint bounded = deadline_ns is not None
        cdef int64_t deadline = deadline_ns if bounded else 0
        cdef bint looks = bounded and deadline <= now_ns()  # only look: no poll needed
        cdef Wait waited = CHANNEL_READY
        cdef Py_ssize_t length = -1
        cdef int truncated = 0
        cdef int error = 0
        while True:
            with nogil:
                if bounded and not looks:
                    waited = wait_readable(self._fd, deadline)
                if waited == CHANNEL_READY:
                    length = receive_message(
                        self._fd, data, room, descriptors, count, &truncated, not looks
                    )
                error = errno
            if waited == CHANNEL_PASSED or (looks and length < 0 and error == EAGAIN):
                raise TimeoutError("no message arrived before the deadline")
            if waited == CHANNEL_READY and length >= 0:
                break
            if waited == CHANNEL_FAILED or error != EINTR:
                raise ChannelClosed(f"this end is closed: {strerror(error).decode()}")
            PyErr_CheckSignals()
        if length == 0 or truncated:
            close_all(descriptors, 0, count[0])
            if length:
                raise ChannelError("a message was longer than the channel allows")
            raise ChannelClosed("the other end is closed")
        return length

    def shutdown(self) -> None:
        """Wake the threads that wait for a message, at both ends. The socket stays open."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # already shut down, or never connected: no thread waits

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
        """Close the socket."""
        # First, because a late result must not be sent to the next owner of the descriptor.
        self._fd = -1
        self._socket.close()


cdef void close_all(const int *descriptors, int first, int count) noexcept:
    cdef int i
    for i in range(first, count):
        os.close(descriptors[i])


cdef class Frame:
    """A received message, after its blocks were mapped.

    Attributes:
        kind: The message type, a number that both ends know.
        batch_number: The batch that the message belongs to, or 0.
        lenient: Whether the JSON was written by the standard library, with NaN and lone surrogates.
    """

    cdef readonly int kind
    cdef readonly uint64_t batch_number
    cdef readonly bytes payload
    cdef readonly bint lenient


cdef class Link:
    """A channel with the shared blocks of both sides. Turns payloads into messages and back.

    Args:
        borrows: Whether the other side may lend blocks; see `ImportedBlocks`.

    Attributes:
        channel: The socket.
        exported: The blocks of this side.
        imported: The blocks of the other side.
    """

    cdef readonly Channel channel
    cdef readonly ExportedBlocks exported
    cdef readonly ImportedBlocks imported
    cdef list _returns
    cdef list _retired
    cdef bytearray _buffer

    def __init__(self, Channel channel not None, *, bint borrows=False):
        self.channel = channel
        self.exported = ExportedBlocks()
        self.imported = ImportedBlocks(borrows=borrows)
        self._returns = []
        self._retired = []
        self._buffer = bytearray(MESSAGE_BYTES)

    def send(
        self,
        int kind,
        bytes payload not None,
        *,
        uint64_t batch_number=0,
        list blocks: list[Block] | None = None,
        bint lenient=False,
        bint wait=True,
    ) -> None:
        """Send a message.

        Args:
            kind: The message type, a number that both ends know.
            batch_number: The batch that the message belongs to.
            blocks: The blocks of this side that the payload refers to, and the blocks that it
                lends.
            lenient: Whether the JSON was written by the standard library.
            wait: Whether to block while the socket buffer is full.

        Raises:
            ChannelClosed: The other end is closed.
            BlockingIOError: The socket buffer is full, and `wait` is false.
            MemoryError: Not enough memory for a long payload.
            TooLarge: The other side does not accept payloads of this size.
        """
        cdef Head head
        cdef Spilled spilled
        cdef Block block
        cdef Shared shared
        cdef Announced announced
        cdef int descriptors[MESSAGE_DESCRIPTORS]
        cdef uint64_t number
        cdef const char *tail = PyBytes_AS_STRING(payload)
        cdef size_t tail_bytes = <size_t>len(payload)
        cdef list referred = [] if blocks is None else blocks
        self.exported.check_size(tail_bytes)
        memset(&head, 0, sizeof(Head))
        memcpy(head.magic, b"ksv1", 4)
        head.kind = <uint8_t>kind
        head.flags = LENIENT if lenient else 0
        head.batch_number = batch_number
        head.length = tail_bytes
        if tail_bytes > INLINE_PAYLOAD:
            block = self.exported.lease(tail_bytes)
            memcpy(block.block.data, tail, tail_bytes)
            referred = [*referred, block]
            head.flags |= IN_BLOCK
            spilled.number = self.exported.number_of(block)
            spilled.offset = 0
            tail = <const char *>&spilled
            tail_bytes = sizeof(Spilled)
        cdef list unknown
        try:
            unknown = self.exported.note_named(referred)
        except KeyError:
            if self.channel._fd >= 0:
                raise
            raise ChannelClosed("this end is closed") from None  # `close` has released the blocks
        self._returns.extend(self.imported.unused())
        self._retired.extend(self.exported.retired())
        if len(unknown) > MESSAGE_DESCRIPTORS:
            raise ValueError(f"{len(unknown)} new blocks do not fit into one message")
        cdef list returned = self._returns[:NUMBERS]
        cdef list retired = self._retired[:NUMBERS]
        del self._returns[:NUMBERS]
        del self._retired[:NUMBERS]
        head.announced = <uint16_t>len(unknown)
        head.returned = <uint16_t>len(returned)
        head.retired = <uint16_t>len(retired)
        cdef size_t total = (
            sizeof(Head)
            + head.announced * sizeof(Announced)
            + (head.returned + head.retired) * sizeof(uint64_t)
            + tail_bytes
        )
        cdef bytes message = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
        cdef char *at = PyBytes_AS_STRING(message)
        cdef int count = 0
        memcpy(at, &head, sizeof(Head))
        at += sizeof(Head)
        for shared in unknown:
            announced.number = shared.number
            announced.size = shared.block.block.size
            announced.lent = shared.lent
            descriptors[count] = shared.block.block.fd
            count += 1
            memcpy(at, &announced, sizeof(Announced))
            at += sizeof(Announced)
        for number in returned + retired:
            memcpy(at, &number, sizeof(uint64_t))
            at += sizeof(uint64_t)
        memcpy(at, tail, tail_bytes)
        try:
            self.channel._send(PyBytes_AS_STRING(message), total, descriptors, count, wait)
        except BlockingIOError:
            for shared in unknown:
                shared.announced = shared.named = False
            self._returns[:0] = returned
            self._retired[:0] = retired
            raise

    def owes_blocks(self) -> bool:
        """Return whether the next message returns blocks to the other side."""
        self._returns.extend(self.imported.unused())
        return len(self._returns) > 0

    def receive(self, deadline_ns: int | None = None) -> Frame:
        """Wait for a message and map the blocks that came with it.

        Args:
            deadline_ns: The time of `time.monotonic_ns` at which to give up, or None.

        Raises:
            ChannelClosed: No more messages will arrive.
            TimeoutError: The deadline passed.
            ChannelError: The message is inconsistent.
        """
        cdef int descriptors[MESSAGE_DESCRIPTORS]
        cdef int count = 0
        cdef int adopted = 0
        cdef unsigned char *buffer = self._buffer
        cdef size_t length = 1
        while length == 1:  # one byte is a wake-up, see batch_ring.hpp
            close_all(descriptors, 0, count)
            length = <size_t>self.channel._receive(
                buffer, MESSAGE_BYTES, deadline_ns, descriptors, &count
            )
            if length == 1 and deadline_ns is not None and now_ns() >= <int64_t>deadline_ns:
                close_all(descriptors, 0, count)
                raise TimeoutError("no message arrived before the deadline")
        try:
            return self._parse(buffer, length, descriptors, count, &adopted)
        except (BlockError, ValueError) as error:
            raise ChannelError(f"a message of the other side is malformed: {error}") from error
        finally:
            close_all(descriptors, adopted, count)

    cdef Frame _parse(
        self, const unsigned char *at, size_t left, const int *descriptors, int count, int *adopted
    ):
        cdef Head head
        cdef Announced announced
        cdef Spilled spilled
        cdef uint64_t number
        cdef size_t needed
        cdef const unsigned char *retired
        cdef Block block
        cdef Frame frame = Frame.__new__(Frame)
        if left < sizeof(Head):
            raise ValueError("it is shorter than its head")
        memcpy(&head, at, sizeof(Head))
        at += sizeof(Head)
        left -= sizeof(Head)
        if memcmp(head.magic, b"ksv1", 4) != 0 or head.length > PAYLOAD_LIMIT:
            raise ValueError("its head is not one")
        if head.length > self.imported.most_bytes:
            raise ValueError(
                f"its payload has {head.length} bytes, and {self.imported.most_bytes} are allowed"
            )
        if head.announced != count:
            raise ValueError(f"it announces {head.announced} blocks with {count} descriptors")
        needed = head.announced * sizeof(Announced)
        needed += (head.returned + head.retired) * sizeof(uint64_t)
        if left < needed:
            raise ValueError("it is shorter than its lists of blocks")
        left -= needed
        for _ in range(head.announced):
            memcpy(&announced, at, sizeof(Announced))
            at += sizeof(Announced)
            if announced.lent:
                self.imported.borrow(announced.number, announced.size, descriptors[adopted[0]])
            else:
                self.imported.adopt(announced.number, announced.size, descriptors[adopted[0]])
            adopted[0] += 1
        for _ in range(head.returned):
            memcpy(&number, at, sizeof(uint64_t))
            at += sizeof(uint64_t)
            self.exported.returned(number)
        retired = at
        at += head.retired * sizeof(uint64_t)
        if head.flags & IN_BLOCK:
            if left != sizeof(Spilled):
                raise ValueError("its payload is not where it should be")
            memcpy(&spilled, at, sizeof(Spilled))
            block = self.imported.part(spilled.number, spilled.offset, head.length)
            # Copied, so that the other side cannot change the bytes between checking and reading.
            frame.payload = (<char *>block.block.data + spilled.offset)[: head.length]
        else:
            if left != head.length:
                raise ValueError(f"its payload has {left} bytes and should have {head.length}")
            frame.payload = (<const char *>at)[:left]
        for _ in range(head.retired):
            memcpy(&number, retired, sizeof(uint64_t))
            retired += sizeof(uint64_t)
            self.imported.forget(number)
        frame.kind = head.kind
        frame.batch_number = head.batch_number
        frame.lenient = (head.flags & LENIENT) != 0
        return frame

    def close(self) -> None:
        """Close the socket and release every block."""
        self.channel.close()
        self.exported.clear()
        self.imported.clear()
