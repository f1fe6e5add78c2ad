"""Messages that several threads send over one link."""

import threading
from collections import deque
from contextlib import suppress

from ksrv._native.process.channel import Link
from ksrv.engine.processes.messages import EMPTY, Packed


class Outbox:
    """Sends the messages of one link, one after the other.

    Args:
        waits: Whether a sender waits for room in the socket. Otherwise a message that finds no room, and all
            messages after it, are kept until `flush`.

    Attributes:
        waiting: How many messages are kept until there is room.
        kept_bytes: The bytes of the kept messages: their payloads, and the blocks that their senders report.
    """

    def __init__(self, link: Link, *, waits: bool) -> None:
        self._link = link
        self._waits = waits
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, int, Packed, int]] = deque()
        self.waiting = 0
        self.kept_bytes = 0

    def count(self, kind: int) -> int:
        """Return how many messages of a kind are kept."""
        with self._lock:
            return sum(one[1] == kind for one in self._kept)

    def send(
        self, kind: int, packed: Packed = EMPTY, *, batch_number: int = 0, nbytes: int = 0
    ) -> None:
        """Send a message.

        Args:
            nbytes: The bytes of the tensors in its blocks.

        Raises:
            ChannelClosed: The other end is closed.
            MemoryError: No memory is left for a long payload.
        """
        with self._lock:
            if self._kept:
                self._send_kept()
            if self._kept or not self._sent(kind, packed, batch_number):
                nbytes += len(packed.payload)
                self._kept.append((nbytes, kind, packed, batch_number))
                self.waiting += 1
                self.kept_bytes += nbytes

    def flush(self) -> None:
        """Send the kept messages until the socket has no more room.

        Raises:
            ChannelClosed: The other end is closed.
        """
        with self._lock:
            self._send_kept()

    def _send_kept(self) -> None:
        with suppress(MemoryError):  # tried again, as if the socket had no room
            while self._kept and self._sent(*self._kept[0][1:]):
                self.waiting -= 1
                self.kept_bytes -= self._kept.popleft()[0]

    def _sent(self, kind: int, packed: Packed, batch_number: int) -> bool:
        payload, lenient, blocks = packed
        try:
            self._link.send(
                kind,
                payload,
                batch_number=batch_number,
                blocks=blocks,
                lenient=lenient,
                wait=self._waits,
            )
        except BlockingIOError:
            return False
        return True
