"""The settings that a call may change while the server runs: the log's level, and what is traced."""

import logging
from typing import TypeAlias

import msgspec

from ksrv.engine.processes import process
from ksrv.observe import tracing


class TraceChange(msgspec.Struct):
    """A change of the trace settings.

    Attributes:
        model: The model; "" for all models without special settings.
        setting: The new settings.
    """

    model: str
    setting: tracing.TraceSetting


SettingChange: TypeAlias = str | TraceChange
"""The log's new level ("debug", "info", "warning" or "error"), or a change of the trace settings."""


def apply(change: SettingChange) -> None:
    """Carry out a change in this process and its handler processes."""
    if isinstance(change, TraceChange):
        tracing.set_setting(change.model, change.setting)
        return
    for logger in (logging.getLogger("ksrv"), logging.getLogger()):
        logger.setLevel(change.upper())
    process.send_log_level()
