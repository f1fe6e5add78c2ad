"""Writes the output lines and log records of a handler process into the worker's log.

Each entry names model, version, instance and process, as text and as fields of the record. A handler that prints
without end must not block, so its output is always read. But only a limited number of lines a second is logged (a token
bucket); before the next line, the log says how many lines were left out.
"""

import logging
import time
from typing import Any

from ksrv.engine.processes.messages import LogMessage
from ksrv.handlers.base_runner import SHOWN_IDS
from ksrv.handlers.diagnostics.loggers import label_of
from ksrv.observe.log_text import TRACEBACK_INDENT

log = logging.getLogger("ksrv.handler")

LINE_BYTES = 8 * 1024
"""Longer lines are logged in pieces of this size, each as a line."""
LINES_PER_SECOND = 200
BURST_LINES = 2000
"""How many lines may be logged at once, after a time without lines."""
LOGGER_NAME_CHARACTERS = 256
REQUEST_ID_CHARACTERS = 128
"""The rest of a longer request id is left out."""


class ProcessLog:
    """The log of one instance's handler process, and of the processes that replace it."""

    def __init__(self, model: str, version: str, instance: int) -> None:
        self._fields: dict[str, Any] = {
            "model": model,
            "version": version,
            "instance": instance,
            "handler_pid": 0,
        }
        self._label = label_of(self._fields)
        self._tokens = float(BURST_LINES)
        self._filled = time.monotonic()
        self._left_out = 0

    def started(self, pid: int) -> None:
        """Note the process id of a new process."""
        self._fields["handler_pid"] = pid

    def log_note(self, level: int, text: str) -> None:
        """Log something about the process."""
        self._emit(log.name, level, text)

    def log_line(self, level: int, text: str) -> None:
        """Log a line that the process wrote, unless there are too many."""
        if self._allowed():
            self._emit(log.name, level, text)

    def log_record(self, note: LogMessage) -> None:
        """Log a record of the process's logging, unless there are too many."""
        level = min(max(note.level, logging.DEBUG), logging.CRITICAL)
        if self._allowed():
            text, *more = note.message.split("\n")
            # The formatter indents these lines again.
            more_lines = "\n".join(line.removeprefix(TRACEBACK_INDENT) for line in more)
            shown = note.request_ids[:SHOWN_IDS]
            ids = [request_id[:REQUEST_ID_CHARACTERS] for request_id in shown]
            fields = self._fields | {"request_ids": ids} if ids else self._fields
            self._emit(note.name[:LOGGER_NAME_CHARACTERS], level, text, more_lines, fields)

    def _allowed(self) -> bool:
        """Take a token for a line, and log how many lines were left out before it. Without a token, count the line as
        left out.
        """
        now = time.monotonic()
        self._tokens = min(BURST_LINES, self._tokens + (now - self._filled) * LINES_PER_SECOND)
        self._filled = now
        if self._tokens < 1:
            self._left_out += 1
            return False
        self._tokens -= 1
        self.flush()
        return True

    def flush(self) -> None:
        """Log how many lines were left out since the last time."""
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            reason = f"because the handler wrote more than {LINES_PER_SECOND} a second"
            self.log_note(logging.WARNING, f"{left_out} lines were left out, {reason}")

    def _emit(
        self,
        name: str,
        level: int,
        text: str,
        more_lines: str = "",
        fields: dict[str, Any] | None = None,
    ) -> None:
        if not log.isEnabledFor(level):
            return
        values = (self._label, self._fields["handler_pid"], text)
        record = log.makeRecord(
            name, level, "", 0, "[%s pid %s] %s", values, None, extra=fields or self._fields
        )
        record.exc_text = more_lines or None  # The formatter writes it below the message.
        log.handle(record)


class LineSplitter:
    """Splits the bytes of a pipe into lines, and logs each line."""

    def __init__(self, log: ProcessLog, level: int) -> None:
        self._log = log
        self._level = level
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Log the lines that `data` completes, and the complete pieces of a longer line."""
        *lines, rest = (self._rest + data).split(b"\n")
        cut = max(len(rest) - 1, 0) // LINE_BYTES * LINE_BYTES
        self._rest = rest[cut:]
        for line in (*lines, rest[:cut]):
            self._write(line)

    def finish(self) -> None:
        """Log the rest after the last line break."""
        self._write(self._rest)
        self._rest = b""

    def _write(self, line: bytes) -> None:
        for start in range(0, len(line), LINE_BYTES):
            piece = line[start : start + LINE_BYTES]
            text = piece.decode("utf-8", "backslashreplace").rstrip()
            if text:
                self._log.log_line(self._level, text)
