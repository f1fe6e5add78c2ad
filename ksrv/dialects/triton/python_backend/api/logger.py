"""Logger: lets a model write to the server's log."""

import logging
from enum import Enum
from typing import ClassVar

from ksrv.dialects.triton.python_backend.api.model import running_model


class _Level(Enum):
    """The levels of Triton's log; VERBOSE is debug here."""

    INFO = logging.INFO
    WARNING = logging.WARNING
    ERROR = logging.ERROR
    VERBOSE = logging.DEBUG


class Logger:
    """Writes to the server's log, under the logger `ksrv.model.NAME`."""

    INFO: ClassVar[_Level] = _Level.INFO
    WARNING: ClassVar[_Level] = _Level.WARNING
    ERROR: ClassVar[_Level] = _Level.ERROR
    VERBOSE: ClassVar[_Level] = _Level.VERBOSE
    LogLevel: ClassVar[type[_Level]] = _Level

    @staticmethod
    def log(message: str, level: _Level = _Level.INFO) -> None:
        """Write a line.

        Args:
            message: The line.
            level: One of the levels, which are attributes of this class.
        """
        model = running_model()
        logging.getLogger(f"ksrv.model.{model.name}" if model else "ksrv.model").log(
            _Level(level).value,  # `level` may be a number
            "%s",
            message,
        )

    @staticmethod
    def log_info(message: str) -> None:
        """Write a line of the level info."""
        Logger.log(message, _Level.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        """Write a warning."""
        Logger.log(message, _Level.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        """Write an error."""
        Logger.log(message, _Level.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Write a line of the level debug."""
        Logger.log(message, _Level.VERBOSE)
