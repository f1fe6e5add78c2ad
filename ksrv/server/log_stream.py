"""Streams over standard output and error whose `write` never blocks.

If a log collector hangs, its pipe is full, and a blocking write would stop every request that logs something. So a line
is written at once if there is room for it. Otherwise it is queued for a separate thread. At most `WAITING_BYTES` are
queued; further lines are dropped. A warning in the log reports later how many lines were dropped, and `lost_lines`
counts them for the metrics.
"""

import atexit
import errno
import logging
import os
import stat
import threading
from collections import deque
from typing import TextIO

log = logging.getLogger(__name__)

WAITING_BYTES = 1 << 20
"""The most bytes that a stream queues while the reader takes nothing."""

END_SECONDS = 1.0
"""Longest wait of an ending process for the reader, in seconds."""

_NO_NOWAIT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""The errors of descriptors or kernels that do not know RWF_NOWAIT."""


class LogStream:
    """A text stream onto a descriptor, for `logging.StreamHandler` and `print`.

    Attributes:
        lost_lines: How many lines were dropped so far.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.start_anew()

    def start_anew(self) -> None:
        """Drop the queue: after a fork, the parent writes the queued lines, and its thread does not exist here."""
        self._lock = threading.RLock()  # a signal handler may log while its thread is in `write`
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self.lost_lines = 0
        self._reported_lines = 0
        self._writer: threading.Thread | None = None

    def write(self, text: str) -> int:
        """Write a text, or queue it until there is room."""
        data = text.encode("utf-8", "backslashreplace")
        lost = 0
        with self._lock:
            if self._waiting:
                self._keep(data)
            elif (written := self._write_at_once(data)) is None:
                self._lose(data)
            elif written < len(data):
                self._keep(data[written:])
            else:
                lost = self._unreported()
        _report(lost)
        return len(text)

    def flush(self) -> None:
        """Do nothing: `logging` calls this after each line."""

    def drain(self, seconds: float) -> None:
        """Wait until the queue is written, but at most `seconds`."""
        with self._lock:
            writer = self._writer
        if writer is not None:
            writer.join(seconds)

    def _write_at_once(self, data: bytes) -> int | None:
        """Write without blocking. Return how many bytes were written, or None if the descriptor fails."""
        try:
            return os.pwritev(self._descriptor, [data], -1, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno not in _NO_NOWAIT:
                return None
        # RWF_NOWAIT does not work for files, terminals, and pipes before Linux 6.4. Only pipes and sockets have a
        # reader that may hang: 0 leaves their bytes to the thread.
        try:
            mode = os.fstat(self._descriptor).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                return 0
            return os.write(self._descriptor, data)
        except OSError:  # such as a full disk
            return None

    def _keep(self, data: bytes) -> None:
        if self._waiting_bytes + len(data) > WAITING_BYTES:
            self._lose(data)
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._writer is None:
            writer = threading.Thread(target=self._write_rest, name="ksrv-log", daemon=True)
            try:
                writer.start()
            except RuntimeError:  # the system has no thread now: the next line tries again
                return
            self._writer = writer

    def _write_rest(self) -> None:
        """Write the queue, however long the reader takes; then end the thread."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._writer = None
                    break
                data = self._waiting[0]
            written = self._write_all(data)
            with self._lock:
                self._waiting.popleft()
                self._waiting_bytes -= len(data)
                lost = self._unreported() if written else 0
                if not written:
                    self._lose(data)
            _report(lost)

    def _lose(self, data: bytes) -> None:
        self.lost_lines += max(data.count(b"\n"), 1)

    def _unreported(self) -> int:
        """Return how many lines were dropped since the last call."""
        lost = self.lost_lines - self._reported_lines
        self._reported_lines = self.lost_lines
        return lost

    def _write_all(self, data: bytes) -> bool:
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            return False
        return True


def _report(lost: int) -> None:
    # Call this without a stream's lock. The lock order is handler, then stream: logging holds a handler's lock
    # while the handler writes to the stream.
    if lost:
        log.warning("%d lines of the log are lost: nothing took them in time", lost)


_streams: dict[int, LogStream] = {}


def log_stream(stream: TextIO) -> LogStream | TextIO:
    """Return the stream onto the descriptor of standard output or error.

    Args:
        stream: `sys.stdout` or `sys.stderr`; a replacement of them is returned as it is.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return stream
    if descriptor not in (1, 2):
        return stream
    return _streams.setdefault(descriptor, LogStream(descriptor))


def lost_lines() -> int:
    """Return how many lines this process has dropped, of standard output and error."""
    return sum(stream.lost_lines for stream in list(_streams.values()))


def drain() -> None:
    """Give the readers of all streams some time before the process ends."""
    for stream in list(_streams.values()):
        stream.drain(END_SECONDS)


def _start_anew() -> None:
    for stream in _streams.values():
        stream.start_anew()


os.register_at_fork(after_in_child=_start_anew)
atexit.register(drain)
