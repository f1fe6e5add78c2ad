"""The log on stderr, as text or JSON lines: of ksrv's loggers, gunicorn's, and any logger that a handler uses."""

import io
import logging
import re
import sys
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import orjson
from gunicorn.glogging import Logger, SafeAtoms

from ksrv.errors import quote
from ksrv.handlers.diagnostics.loggers import fields_of, label_of
from ksrv.observe.log_text import RecordFormatter, in_quotes
from ksrv.server.http.callers import TrustedProxies, token_digest
from ksrv.server.log_stream import log_stream
from ksrv.server.settings import ServerSettings

TEXT_FORMAT = "%(asctime)s [%(process)d] %(levelname)s %(name)s: %(label)s%(message)s"

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "label"}


class NameModels(logging.Filter):
    """Adds model, version and instance to what a handler in this process logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        fields = {} if hasattr(record, "model") else fields_of(record.name)
        if fields:
            vars(record).update(fields, label=f"[{label_of(fields)}] ")
        return True


class JsonFormatter(logging.Formatter):
    """Makes one line of JSON of a record, so that text from a client cannot forge a second record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        extras = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        line |= {name: value for name, value in extras.items() if not name.startswith("_")}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:  # made in another process
            line["exception"] = record.exc_text
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class PrintedRecords(io.TextIOBase):
    """Standard output of a server whose log is JSON. Each line that ksrv or a handler prints becomes a record."""

    def __init__(self) -> None:
        self._log = logging.getLogger("ksrv.stdout")
        self._begun = threading.local()

    def write(self, text: str) -> int:
        """Log the lines that end here, and keep what follows until its line ends."""
        *lines, rest = (getattr(self._begun, "text", "") + text).split("\n")
        self._begun.text = rest
        for line in lines:
            if line.strip():
                self._log.info("%s", line)
        return len(text)


def make_formatter(settings: ServerSettings) -> logging.Formatter:
    """Return the formatter that the settings name."""
    if settings.log_format == "json":
        return JsonFormatter()
    return RecordFormatter(TEXT_FORMAT, defaults={"label": ""})


def configure(settings: ServerSettings) -> None:
    """Send all records from the level `log_level` on to stderr, in the form `log_format`.

    If the form is JSON, the output of this process and Python's warnings become records too.

    Handlers may log under any name, so this configures the root as well as ksrv's loggers; a
    root that is configured already (gunicorn's `logconfig`) stays as it is.
    """
    handler = logging.StreamHandler(log_stream(sys.stderr))
    handler.setFormatter(make_formatter(settings))
    handler.addFilter(NameModels())
    log, root = logging.getLogger("ksrv"), logging.getLogger()
    log.propagate = False
    for logger in (log, root) if not root.handlers else (log,):
        logger.handlers = [handler]
        logger.setLevel(settings.log_level.upper())
    if settings.log_format == "json":
        sys.stdout = PrintedRecords()
        logging.captureWarnings(True)


ACCESS_FORMAT = '%(h)s %(l)s %(u)s %(t)s "%(r)s" %(s)s %(b)s "%(f)s" "%(a)s" %({x-request-id}o)s'
"""gunicorn's line, followed by the request's id."""

_MODEL = re.compile(
    r"/(?:v2/models|v2/repository/models|predictions|explanations)/(?P<model>[^/?]+)"
    r"(?:/versions/(?P<version>[^/?]+))?"
)
_STAGE = re.compile(r"([a-z_]+);dur=([0-9.]+)")


def access_fields(
    resp: Any, environ: Mapping[str, Any], took: timedelta, caller: Mapping[str, str]
) -> dict[str, Any]:
    """Return the fields of an access log record.

    Args:
        resp: The response as gunicorn's logger sees it.
        caller: The caller's address as `TrustedProxies.caller` returns it.
    """
    headers = {name.lower(): str(value) for name, value in resp.headers}
    status = resp.status if isinstance(resp.status, int) else str(resp.status).split(None, 1)[0]
    path = str(environ.get("RAW_URI", ""))
    fields: dict[str, Any] = {
        "request_id": headers.get("x-request-id", ""),
        **caller,
        "token_digest": token_digest(environ.get("HTTP_AUTHORIZATION")),
        "protocol": environ.get("SERVER_PROTOCOL", ""),
        "method": environ.get("REQUEST_METHOD", ""),
        "path": path,
        "status": int(status),
        "bytes": getattr(resp, "sent", None) or 0,
        "duration_ms": round(took.total_seconds() * 1000, 3),
        "user_agent": environ.get("HTTP_USER_AGENT", ""),
    }
    found = _MODEL.match(path)
    if found is not None:
        fields |= {name: unquote(text) for name, text in found.groupdict().items() if text}
    stages = _STAGE.findall(headers.get("server-timing", ""))
    return fields | {f"{name}_ms": float(duration) for name, duration in stages}


class QuotedAtoms(SafeAtoms):  # type: ignore[misc]
    """The parts of an access log line, escaped so that a client cannot end the quotes around its text.

    gunicorn escapes quotes and leaves backslashes, so that a backslash at the end of a value would escape the next
    quote.

    Args:
        atoms: The parts by the names of gunicorn's format.
    """

    def __init__(self, atoms: dict[str, Any]) -> None:
        dict.__init__(
            self,
            ((key, in_quotes(raw) if isinstance(raw, str) else raw) for key, raw in atoms.items()),
        )


_ALSO_LOGGED_BY_KSRV = frozenset(
    {"Starting gunicorn %s", "Listening at: %s (%s)", "Using worker: %s"}
)


def gunicorn_logger(settings: ServerSettings) -> type[Logger]:
    """Return a logger class for gunicorn whose records look like ksrv's."""
    proxies = TrustedProxies.of(settings)

    class KsrvLogger(Logger):  # type: ignore[misc]
        """gunicorn's logger with ksrv's formatter."""

        atoms_wrapper_class = QuotedAtoms

        def info(self, msg: str, *args: Any, **kwargs: Any) -> None:
            """Log a message; at the level debug if the lines at ksrv's start already say the same."""
            level = logging.DEBUG if msg in _ALSO_LOGGED_BY_KSRV else logging.INFO
            self.error_log.log(level, msg, *args, **kwargs)

        def _set_handler(self, log: logging.Logger, output: str, *_: Any, **__: Any) -> None:
            # gunicorn would write the access log to standard output; ksrv writes all logs to stderr.
            super()._set_handler(log, output, make_formatter(settings), log_stream(sys.stderr))

        def access(
            self, resp: Any, req: Any, environ: dict[str, Any], request_time: timedelta
        ) -> None:
            """Write the line of an answer in gunicorn's format, or a record with fields if the log is JSON."""
            caller = proxies.caller_of(environ)
            if settings.log_format == "json" and self.access_log_enabled:
                fields = access_fields(resp, environ, request_time, caller)
                text = "%s %s %s"
                shown = (fields["method"], quote(fields["path"])[1:-1], fields["status"])
                self.access_log.info(text, *shown, extra=fields)
            else:
                super().access(resp, req, environ | {"REMOTE_ADDR": caller["peer"]}, request_time)

    return KsrvLogger
