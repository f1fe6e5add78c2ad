"""The route that shows and changes what is logged: the part of Triton's logging extension that is safe.

Levels may change while the server runs; files may not, because a client would then say where the server writes.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import falcon

from ksrv.errors import InvalidRequest, quote
from ksrv.server.rest.responses import send_json

LEVELS = {"log_error": "error", "log_warning": "warning", "log_info": "info"}
"""Triton's switches, and the level at which the log begins while they are on."""

FIXED = ("log_file", "log_format")

ReadDocument = Callable[[falcon.Request], Mapping[str, Any]]


def set_level(name: str) -> None:
    """Begin the log at another level, in this process.

    Args:
        name: "debug", "info", "warning" or "error".
    """
    for logger in (logging.getLogger("ksrv"), logging.getLogger()):
        logger.setLevel(name.upper())


def current() -> dict[str, Any]:
    """Return the settings of the log in Triton's form."""
    level = logging.getLogger("ksrv").getEffectiveLevel()
    return {
        "log_file": "",
        "log_info": level <= logging.INFO,
        "log_warning": level <= logging.WARNING,
        "log_error": level <= logging.ERROR,
        "log_verbose_level": int(level <= logging.DEBUG),
        "log_format": "default",
    }


def level_of(document: Mapping[str, Any]) -> str:
    """Return the level that a document asks for, where it leaves the others as they are.

    Args:
        document: The settings to change.

    Raises:
        InvalidRequest: It asks for what cannot be, or may not change here.
    """
    wanted = current()
    for name, value in document.items():
        if name in FIXED:
            raise InvalidRequest(
                f"setting {quote(name)} cannot be changed by a call: the server's own settings say"
                " where and in what form it logs"
            )
        if name in LEVELS:
            if not isinstance(value, bool):
                raise InvalidRequest(f"setting {quote(name)} must be true or false")
        elif name == "log_verbose_level":
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1_000_000:
                raise InvalidRequest(f"setting {quote(name)} must be a number of at least 0")
        else:
            raise InvalidRequest(f"there is no log setting {quote(name)}")
        wanted[name] = value
    if wanted["log_verbose_level"]:
        return "debug"
    for name in ("log_info", "log_warning", "log_error"):
        if wanted[name]:
            return LEVELS[name]
    raise InvalidRequest(
        "errors are always logged: one of log_error, log_warning, log_info is true"
    )


class LoggingResource:
    """GET and POST /v2/logging.

    Args:
        read_document: Reads a JSON object.
        change: Carries a new level out, in every worker.
    """

    def __init__(self, read_document: ReadDocument, change: Callable[[str], None]) -> None:
        self._read_document = read_document
        self._change = change

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer the settings."""
        send_json(resp, current())

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Change the level, and answer the settings."""
        self._change(level_of(self._read_document(req)))
        send_json(resp, current())
