"""The access log of the HTTP server's answers: records become lines in batches, on a thread of its own.

gunicorn's logger formats a line from its own request and response objects; the two classes here have
the attributes that it reads, with the meaning that they have there.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ksrv._native.server.exchange import HeadFields
from ksrv._native.server.server import Address, HttpServer
from ksrv.server.rest.responses import status_line

BATCH_SECONDS = 0.25


@dataclass(frozen=True)
class LoggedRequest:
    """The attributes of a request that gunicorn's logger reads."""

    headers: list[tuple[str, str]]


@dataclass(frozen=True)
class LoggedResponse:
    """The attributes of a response that gunicorn's logger reads."""

    status: str
    sent: int
    headers: list[tuple[str, str]] = field(default_factory=list)


def _environ(head: bytes, peer: Address) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return what WSGI would say of a head, and its header fields."""
    line = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    method, target, protocol = line if len(line) == 3 else ("-", "-", "-")
    fields = list(HeadFields(head).items()) if head else []
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "RAW_URI": target,
        "PATH_INFO": target,
        "QUERY_STRING": "",
        "SERVER_PROTOCOL": protocol,
        "REMOTE_ADDR": peer if isinstance(peer, str) else peer[0],
    }
    for name, value in fields:
        environ[f"HTTP_{name.upper().replace('-', '_')}"] = value
    return environ, [(name.upper(), value) for name, value in fields]


def write_records(logger: Any, records: Iterable[tuple[Any, ...]]) -> None:
    """Write the HTTP server's records with gunicorn's logger.

    Args:
        logger: gunicorn's logger.
        records: The records that `HttpServer.records` returned.
    """
    for _, seconds, status, sent, _, peer, head in records:
        environ, fields = _environ(head, peer)
        response = LoggedResponse(status_line(status), sent)
        logger.access(response, LoggedRequest(fields), environ, timedelta(seconds=seconds))


class AccessLog(threading.Thread):
    """Writes the records of an HTTP server until it is closed.

    Args:
        HTTP server: Where the records come from.
        logger: gunicorn's logger.
    """

    def __init__(self, http_server: HttpServer, logger: Any) -> None:
        super().__init__(name="ksrv-access-log", daemon=True)
        self._http_server = http_server
        self._logger = logger
        self._closed = threading.Event()

    def run(self) -> None:
        """Write the records until `close`, and the rest of them then."""
        while not self._closed.wait(BATCH_SECONDS):
            write_records(self._logger, self._http_server.records())
        write_records(self._logger, self._http_server.records())

    def close(self) -> None:
        """Write the rest and end the thread."""
        self._closed.set()
        self.join()
