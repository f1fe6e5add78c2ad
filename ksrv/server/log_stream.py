"""Standard output and error as streams that keep nobody waiting, whoever reads them or does not.

A log collector that hangs leaves a full pipe, and a write to it would hold up every request that has
something to log. A line is written at once if there is room for it. Otherwise it waits for a separate
thread: at most `WAITING_BYTES` of lines wait, and further lines are dropped. The next written line
reports how many, and `lost_lines` counts them for the metrics, which no reader of the log can hold up.
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
"""Bytes of lines that wait for the reader at most, in one process."""

END_SECONDS = 1.0
"""Seconds that the end of a process waits for the reader at most."""

_NO_SUCH_WRITE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class LogStream:
    """A text stream onto a descriptor, for `logging.StreamHandler` and `print`.

    Attributes:
        lost_lines: How many lines were dropped so far.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.start_anew()

    def start_anew(self) -> None:
        """Forget what waits: after a fork it is the parent's, and so is the thread."""
        self._lock = threading.RLock()  # a signal's handler may log while this thread does
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self.lost_lines = 0
        self._reported_lines = 0
        self._writer: threading.Thread | None = None

    def write(self, text: str) -> int:
        """Write a text, or keep it until there is room."""
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
        """Wait until nothing waits any more.

        Args:
            seconds: How long this may take.
        """
        with self._lock:
            writer = self._writer
        if writer is not None:
            writer.join(seconds)

    def _write_at_once(self, data: bytes) -> int | None:
        """Write as much as there is room for, and return how much that was; None if it cannot be written."""
        try:
            return os.pwritev(self._descriptor, [data], -1, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno not in _NO_SUCH_WRITE:
                return None
        # Files, terminals, and pipes before Linux 6.4. Only pipes and sockets have a reader who may hang.
        try:
            mode = os.fstat(self._descriptor).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                return 0
            return os.write(self._descriptor, data)
        except OSError:  # no room on the disk, for one
            return None

    def _keep(self, data: bytes) -> None:
        if self._waiting_bytes + len(data) > WAITING_BYTES:
            self._lose(data)
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_rest, name="ksrv-log", daemon=True)
            self._writer.start()

    def _write_rest(self) -> None:
        """Write what waits, however long the reader takes."""
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
                if written:
                    lost = self._unreported()
                else:
                    lost = 0
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
    # Without a stream's lock: this takes that of a handler, which holds it while it takes a stream's.
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
