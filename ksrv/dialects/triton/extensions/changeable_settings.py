"""The extensions logging and trace: calls that show and change the log level and the rate of traces.

A change applies to every worker: `ServerParts.change_setting` has each worker call `apply`. A call cannot change the
path of a file, because a client could then choose where the server writes.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ksrv._native.grpc.grpc_call import Call
from ksrv.dialects.triton.extensions.trace_settings import (
    TraceSetting,
    full_setting,
    own_setting,
    set_setting,
)
from ksrv.engine.processes import process
from ksrv.errors import InvalidRequest, quote
from ksrv.observe import tracing
from ksrv.protocol.documents import read_document
from ksrv.protocol.openapi import Operation
from ksrv.protocol.protobuf import message_class
from ksrv.server.grpc.calls import Behavior
from ksrv.server.rest.json_resource import DocumentReader, JsonResource
from ksrv.server.rest.route_guard import MODEL, Needs
from ksrv.server.shared.parts import ServerParts, SettingChange

if TYPE_CHECKING:
    import falcon

LEVELS = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
"""The log level for each of Triton's switches. The first switch that is on decides."""

FIXED = ("log_file", "log_format")
"""Log settings that no call can change."""
_TRACE_FIXED = ("trace_file", "trace_count", "log_frequency", "trace_mode", "trace_config")
"""Trace settings that no call can change."""
MOST_RATE = 2**31 - 1

LOG, TRACE = "triton.log", "triton.trace"
"""The names of the settings in `SettingChange`."""


def apply(change: SettingChange) -> None:
    """Apply a change of these settings to this worker and its handler processes; ignore other changes."""
    if change.name == TRACE:
        set_setting(change.model, change.value)
    elif change.name == LOG:
        for logger in (logging.getLogger("ksrv"), logging.getLogger()):
            logger.setLevel(change.value.upper())
        process.send_log_level()


class LogSettings(msgspec.Struct):
    """The settings of the log, in the form of Triton's extension."""

    log_file: str = ""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    log_format: str = "default"


class TraceSettings(msgspec.Struct):
    """The settings of traces, in the form of Triton's extension."""

    trace_level: (
        Annotated[list[Literal["OFF", "TIMESTAMPS"]], Meta(min_length=1, max_length=1)] | None
    ) = None
    trace_rate: Annotated[str, Meta(pattern="^[1-9][0-9]{0,8}$")] | None = None


class ChangeableSettings:
    """The calls of both extensions, over REST and gRPC."""

    def __init__(self, parts: ServerParts) -> None:
        self._change = parts.change_setting
        self._engine = parts.engine

    def log(self, document: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the settings of the log, after a change if a document is given.

        Args:
            document: The settings to change; others are kept.

        Raises:
            InvalidRequest: A setting is unknown, has a wrong value, or may not change here.
        """
        if document:
            self._change(SettingChange(LOG, "", _level_of(document)))
        return _log_settings()

    def trace(self, document: Mapping[str, Any] | None = None, name: str = "") -> dict[str, Any]:
        """Return the trace settings, after a change if a document is given.

        Args:
            document: The settings to change; null removes a setting of the model.
            name: The model; "" for all models without special settings.

        Raises:
            InvalidRequest: A setting is unknown, has a wrong value, or may not change here.
            NotFound: The model is unknown.
        """
        if name:
            self._engine.spec(name)  # raises NotFound
        if document:
            self._change(SettingChange(TRACE, name, _trace_of(name, document)))
        return _trace_settings(name)

    def add_routes(self, app: "falcon.App[Any, Any]", read_document: DocumentReader) -> None:
        """Add the REST routes to an app."""
        log = JsonResource(self.log, self.log, read_document)
        described = {
            "get": Operation("The log settings", "server", LogSettings),
            "post": Operation("Change the log settings", "server", LogSettings, LogSettings),
        }
        app.add_route("/v2/logging", log, needs=Needs.CONTROL, described=described)
        trace = JsonResource(partial(self.trace, None), self.trace, read_document)
        for path, tag in ("/v2/trace/setting", "server"), (MODEL + "/trace/setting", ""):
            described = {
                "get": Operation("The trace settings", tag, TraceSettings),
                "post": Operation("Change the trace settings", tag, TraceSettings, TraceSettings),
            }
            app.add_route(path, trace, needs=Needs.CONTROL, described=described)

    def calls(self) -> dict[str, Behavior]:
        """Return the gRPC calls by name."""
        return {"LogSettings": self._log_call, "TraceSetting": self._trace_call}

    def _log_call(self, request: Any, call: Call) -> Any:
        document = {
            name: getattr(value, value.WhichOneof("parameter_choice") or "bool_param")
            for name, value in request.settings.items()
        }
        answer = message_class("inference.LogSettingsResponse")()
        for name, value in self.log(document).items():
            kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
            setattr(answer.settings[name], kind, value)
        return answer

    def _trace_call(self, request: Any, call: Call) -> Any:
        # A setting without a value is reset to its value at the start of the server.
        document = {
            name: _one_or_all(list(value.value)) for name, value in request.settings.items()
        }
        answer = message_class("inference.TraceSettingResponse")()
        for name, value in self.trace(document, request.model_name).items():
            answer.settings[name].value.extend([value] if isinstance(value, str) else value)
        return answer


def _one_or_all(values: list[str]) -> str | list[str] | None:
    if len(values) > 1:
        return values
    return values[0] if values else None


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
    """Return the log level that a document asks for.

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
    """Return the trace settings of a model, or of all models for "", in Triton's form."""
    found = full_setting(model)
    return {
        "trace_level": ["TIMESTAMPS" if tracing.is_on() and found.enabled else "OFF"],
        "trace_rate": str(found.rate),
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "opentelemetry",
    }


def _trace_of(model: str, document: Mapping[str, Any]) -> TraceSetting:
    """Return the trace settings of a model with the changes in a document."""
    if not tracing.is_on():
        raise InvalidRequest("this server traces nothing; start it with --trace otlp")
    wanted = own_setting(model)
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
