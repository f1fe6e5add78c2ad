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

LOGGER = logging.getLogger("ksrv.handler")

LINE_BYTES = 8 * 1024
"""Longer lines are cut into several."""
LINES_PER_SECOND = 200
BURST_LINES = 2000
"""How many lines may be logged at once, after a time without lines."""
REQUEST_ID_BYTES = 128
"""Longer request ids are cut."""


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
        self._dropped = 0

    def started(self, pid: int) -> None:
        """Note the process id of a new process."""
        self._fields["handler_pid"] = pid

    def say(self, level: int, text: str) -> None:
        """Log something about the process."""
        self._emit(LOGGER.name, level, text)

    def line(self, level: int, text: str) -> None:
        """Log a line that the process wrote, unless there are too many."""
        if self._allowed():
            self._emit(LOGGER.name, level, text)

    def record(self, note: LogMessage) -> None:
        """Log a record of the process's logging, unless there are too many."""
        level = min(max(note.level, logging.DEBUG), logging.CRITICAL)
        if self._allowed():
            text, *trace = note.message.split("\n")
            below = "\n".join(line.removeprefix(TRACEBACK_INDENT) for line in trace)
            ids = [one[:REQUEST_ID_BYTES] for one in note.request_ids[:SHOWN_IDS]]
            fields = self._fields | {"request_ids": ids} if ids else self._fields
            self._emit(note.name[:256], level, text, below, fields)

    def _allowed(self) -> bool:
        """Take a token for a line; count the line as dropped if no token is left."""
        now = time.monotonic()
        self._tokens = min(BURST_LINES, self._tokens + (now - self._filled) * LINES_PER_SECOND)
        self._filled = now
        if self._tokens < 1:
            self._dropped += 1
            return False
        self._tokens -= 1
        if self._dropped:
            self.flush()
        return True

    def flush(self) -> None:
        """Log how many lines were left out since the last time."""
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._emit(
                LOGGER.name,
                logging.WARNING,
                f"{dropped} lines were left out, because the handler wrote more than"
                f" {LINES_PER_SECOND} a second",
            )

    def _emit(
        self,
        name: str,
        level: int,
        text: str,
        trace: str = "",
        fields: dict[str, Any] | None = None,
    ) -> None:
        if not LOGGER.isEnabledFor(level):
            return
        record = LOGGER.makeRecord(
            name,
            level,
            "",
            0,
            "[%s pid %s] %s",
            (self._label, self._fields["handler_pid"], text),
            None,
            extra=fields or self._fields,
        )
        record.exc_text = trace or None
        LOGGER.handle(record)


class LineSplitter:
    """Splits the bytes of a pipe into lines, and logs each line."""

    def __init__(self, log: ProcessLog, level: int) -> None:
        self._log = log
        self._level = level
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Log the lines that `data` completes."""
        *lines, rest = (self._rest + data).split(b"\n")
        while len(rest) > LINE_BYTES:
            lines.append(rest[:LINE_BYTES])
            rest = rest[LINE_BYTES:]
        self._rest = rest
        for line in lines:
            self._write(line)

    def finish(self) -> None:
        """Log the rest after the last line break."""
        if self._rest:
            self._write(self._rest)
            self._rest = b""

    def _write(self, line: bytes) -> None:
        text = line[:LINE_BYTES].decode("utf-8", "backslashreplace").rstrip()
        if text:
            self._log.line(self._level, text)
