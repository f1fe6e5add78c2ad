"""The settings that a call may change while the server runs: the log's level, and what is traced.

Both have the form of Triton's extensions, of which they are the safe part: levels and rates may change;
files may not, because a client would then say where the server writes.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ksrv.engine.processes import process
from ksrv.errors import InvalidRequest, quote
from ksrv.observe import tracing
from ksrv.protocol.documents import LogSettings, read_document

Kind = Literal["level", "trace"]

LEVELS = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
"""Triton's switches, and the level at which the log begins. The first that is on decides."""

FIXED = ("log_file", "log_format")

_TRACE_FIXED = ("trace_file", "trace_count", "log_frequency", "trace_mode", "trace_config")
MOST_RATE = 2**31 - 1


class TraceChange(msgspec.Struct):
    """A change of the trace settings.

    Attributes:
        model: The model; "" for all models without special settings.
        setting: The new settings.
    """

    model: str
    setting: tracing.TraceSetting


def apply(kind: Kind, text: str) -> None:
    """Carry out a change in this process and its handler processes.

    Args:
        text: The log's level ("debug", "info", "warning" or "error"), or a `TraceChange` as JSON.
    """
    if kind == "level":
        for logger in (logging.getLogger("ksrv"), logging.getLogger()):
            logger.setLevel(text.upper())
        process.send_log_level()
    else:
        change = msgspec.json.decode(text, type=TraceChange)
        tracing.set_setting(change.model, change.setting)


def traced_model(text: str) -> str:
    """Return the model whose trace settings a change is for, "" for all models without special settings."""
    return msgspec.json.decode(text, type=TraceChange).model


@dataclass(frozen=True)
class ChangeableSettings:
    """The settings as one worker shows and changes them.

    Attributes:
        change: Carries a change out, in every worker.
    """

    change: Callable[[Kind, str], None] = apply

    def log(self, document: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the settings of the log, after a change if a document is given.

        Args:
            document: The settings to change; the others stay as they are.

        Raises:
            InvalidRequest: A setting is unknown, has a wrong value, or may not change here.
        """
        if document:
            self.change("level", _level_of(document))
        return _log_settings()

    def trace(self, model: str, document: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the trace settings, after a change if a document is given.

        Args:
            model: The model; "" for all models without special settings.
            document: The settings to change; null removes a setting of the model.

        Raises:
            InvalidRequest: A setting is unknown, has a wrong value, or may not change here.
        """
        if document:
            change = TraceChange(model, _trace_of(model, document))
            self.change("trace", msgspec.json.encode(change).decode())
        return _trace_settings(model)


def _log_settings() -> dict[str, Any]:
    """Return the settings of the log in Triton's form."""
    level = logging.getLogger("ksrv").getEffectiveLevel()
    settings = LogSettings(
        log_info=level <= logging.INFO,
        log_warning=level <= logging.WARNING,
        log_error=level <= logging.ERROR,
        log_verbose_level=int(level <= logging.DEBUG),
    )
    return msgspec.structs.asdict(settings)


def _level_of(document: Mapping[str, Any]) -> str:
    """Return the level in a document, if it changes no other setting of the log.

    Raises:
        InvalidRequest: A setting is unknown, has a wrong value, or may not change here.
    """
    now = _log_settings()
    for name in document:
        if name in FIXED:
            raise InvalidRequest(
                f"setting {quote(name)} cannot be changed by a call; start the server with another"
                " --log-format, or send its output elsewhere"
            )
        if name not in now:
            raise InvalidRequest(f"unknown log setting {quote(name)}")
    wanted = read_document({**now, **document}, LogSettings)
    if wanted.log_verbose_level:
        return "debug"
    for name, level in LEVELS.items():
        if getattr(wanted, name):
            return level
    raise InvalidRequest(
        "errors are always logged: one of log_error, log_warning, log_info is true"
    )


def _trace_settings(model: str) -> dict[str, Any]:
    """Return what is traced of a model, or of all, in Triton's form."""
    found = tracing.setting(model)
    return {
        "trace_level": ["TIMESTAMPS" if tracing.tracer() and found.enabled else "OFF"],
        "trace_rate": str(found.rate),
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "opentelemetry",
    }


def _trace_of(model: str, document: Mapping[str, Any]) -> tracing.TraceSetting:
    if tracing.tracer() is None:
        raise InvalidRequest("this server traces nothing; start it with --trace otlp")
    wanted = tracing.own_setting(model)
    for name, value in document.items():
        if name in _TRACE_FIXED:
            raise InvalidRequest(
                f"setting {quote(name)} cannot be changed by a call; the server's variables OTEL_..."
                " set where traces go"
            )
        if name == "trace_level":
            wanted.enabled = None if value is None else _is_traced_at(value)
        elif name == "trace_rate":
            wanted.rate = None if value is None else _rate_of(value)
        else:
            raise InvalidRequest(f"unknown trace setting {quote(name)}")
    return wanted


def _is_traced_at(levels: Any) -> bool:
    if levels in ("TIMESTAMPS", ["TIMESTAMPS"]):
        return True
    if levels in ("OFF", ["OFF"]):
        return False
    raise InvalidRequest('setting "trace_level" must be ["OFF"] or ["TIMESTAMPS"]')


def _rate_of(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_RATE:
        raise InvalidRequest(
            'setting "trace_rate" must be a number of requests, of which one is traced: at least 1'
        )
    return value
