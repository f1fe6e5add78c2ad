"""The messages between a worker and its handler process: a head, block numbers and a payload.

Each message carries the housekeeping of the shared blocks with it: which are new (with their
descriptors), which go back to the other side, which are disowned. A payload too long for the socket
lies in a block. Tensors are never in a message; nothing is ever unpickled. What payloads hold is the
business of payloads.py.

Every number that arrives is checked before memory is touched: the other side runs user code. What
does not add up raises `FrameError`.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from ksrv.engine.executors.blocks import BlockError, OwnBlocks, PeerBlocks
from ksrv.engine.executors.channel import Channel, ChannelError, close_all


class Kind(IntEnum):
    """What a message is about; the child's messages begin at 16, its event messages at 32.

    Events (log records, metrics) have a socket of their own, so that they come home while nothing
    runs and never stand in the way of an answer.
    """

    LOAD = 1
    RUN = 2
    CLOSE = 3
    LOADED = 16
    ANSWER = 17
    FAILED = 18
    CHUNK = 19
    LOG = 32
    METRICS = 33


class FrameError(ChannelError):
    """A message whose numbers do not add up."""


_HEAD = struct.Struct("<4sBBHHHQQ")
"""Magic, kind, flags, announced, returned, retired, sequence, length of the payload."""
_ANNOUNCED = struct.Struct("<QQ")
_SPILLED = struct.Struct("<QQ")
_MAGIC = b"ksv1"
_IN_BLOCK = 1
_LENIENT = 2
_INLINE_PAYLOAD = 64 * 1024
_NUMBERS = 2048
_PAYLOAD_LIMIT = 1 << 32


@dataclass(slots=True)
class Frame:
    """A message that was received and whose blocks were taken in.

    Attributes:
        kind: What it is about.
        sequence: Of the batch that it belongs to; 0 outside of one.
        payload: Its payload, valid until the next message is received.
        lenient: Whether the JSON in it is the standard library's, with NaN and lone surrogates.
    """

    kind: Kind
    sequence: int
    payload: memoryview
    lenient: bool = False


@dataclass(slots=True)
class Link:
    """A channel with the blocks of both sides: what turns payloads into messages and back.

    Attributes:
        channel: The socket.
        own: The blocks of this side.
        peer: The blocks of the other side.
    """

    channel: Channel
    own: OwnBlocks = field(default_factory=OwnBlocks)
    peer: PeerBlocks = field(default_factory=PeerBlocks)
    _unsent_returns: list[int] = field(default_factory=list)
    _unsent_retired: list[int] = field(default_factory=list)

    def send(
        self,
        kind: Kind,
        payload: bytes,
        *,
        sequence: int = 0,
        numbers: Sequence[int] = (),
        lenient: bool = False,
        wait: bool = True,
    ) -> None:
        """Send a message.

        Args:
            kind: What it is about.
            payload: Records and JSON.
            sequence: Of the batch that it belongs to.
            numbers: The blocks of this side that the payload refers to.
            lenient: Whether the JSON is the standard library's.
            wait: Whether to wait for room in the socket.

        Raises:
            ChannelClosed: Nobody can receive it.
            MemoryError: There is no memory for a long payload.
        """
        flags = _LENIENT if lenient else 0
        tail = payload
        if len(payload) > _INLINE_PAYLOAD:
            flags |= _IN_BLOCK
            block = self.own.lease(len(payload))
            memoryview(block)[: len(payload)] = payload
            number = self.own.number_of(block)
            numbers = [*numbers, number]
            tail = _SPILLED.pack(number, 0)
        announced = self.own.lend(numbers)
        returned = self._unsent_returns + self.peer.unused()
        retired = self._unsent_retired + self.own.retired(numbers)
        self._unsent_returns = returned[_NUMBERS:]
        self._unsent_retired = retired[_NUMBERS:]
        del returned[_NUMBERS:], retired[_NUMBERS:]
        parts = [
            _HEAD.pack(
                _MAGIC,
                kind,
                flags,
                len(announced),
                len(returned),
                len(retired),
                sequence,
                len(payload),
            )
        ]
        if announced:
            parts += [_ANNOUNCED.pack(number, size) for number, size, _ in announced]
        if returned:
            parts.append(_numbers(len(returned)).pack(*returned))
        if retired:
            parts.append(_numbers(len(retired)).pack(*retired))
        parts.append(tail)
        self.channel.send(b"".join(parts), [fd for _, _, fd in announced], wait=wait)

    def receive(self, deadline_ns: int | None = None) -> Frame:
        """Wait for a message and take in the blocks that came with it.

        Args:
            deadline_ns: `time.monotonic_ns` at which the wait ends, or None.

        Raises:
            ChannelClosed: No message will come any more.
            TimeoutError: The deadline passed.
            ChannelError: The message does not add up.
        """
        message, descriptors = self.channel.receive(deadline_ns)
        try:
            return self._parse(message, descriptors)
        except (BlockError, struct.error, ValueError) as error:
            raise FrameError(f"a message of the other side is malformed: {error}") from error
        finally:
            close_all(descriptors)

    def _parse(self, message: memoryview, descriptors: list[int]) -> Frame:
        magic, kind, flags, announced, returned, retired, sequence, length = _HEAD.unpack_from(
            message
        )
        if magic != _MAGIC or length > _PAYLOAD_LIMIT:
            raise ValueError("its head is not one")
        if announced != len(descriptors):
            raise ValueError(f"it announces {announced} blocks with {len(descriptors)} descriptors")
        at = _HEAD.size
        for _ in range(announced):
            number, size = _ANNOUNCED.unpack_from(message, at)
            self.peer.adopt(number, size, descriptors.pop(0))
            at += _ANNOUNCED.size
        if returned:
            self.own.returned(_numbers(returned).unpack_from(message, at))
            at += 8 * returned
        if retired:
            gone: Sequence[int] = _numbers(retired).unpack_from(message, at)
            at += 8 * retired
        else:
            gone = ()
        payload = message[at:]
        if flags & _IN_BLOCK:
            number, offset = _SPILLED.unpack_from(payload)
            # Copied, so that checking and reading see the same bytes whatever the other side does.
            block = self.peer.part(number, offset, length)
            payload = memoryview(bytes(memoryview(block)[offset : offset + length]))
        elif len(payload) != length:
            raise ValueError(f"its payload has {len(payload)} bytes and should have {length}")
        self.peer.forget(gone)
        return Frame(Kind(kind), sequence, payload, bool(flags & _LENIENT))

    def close(self) -> None:
        """Close the socket and let go of every block."""
        self.channel.close()
        self.own.clear()
        self.peer.clear()


def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}Q")
