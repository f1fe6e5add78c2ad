"""The access log of the native servers: records become lines in batches, on a separate thread.

The native servers have no request and response objects like gunicorn's. So this module makes stand-ins that have the
attributes which gunicorn's logger reads.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from ksrv._native.server.exchange import HeadFields
from ksrv._native.server.server import Address, HttpServer
from ksrv.errors import quote
from ksrv.server.http.answers import status_line
from ksrv.server.http.callers import TrustedProxies, token_digest
from ksrv.server.http.environ import field_keys

log = logging.getLogger("gunicorn.access")

BATCH_SECONDS = 0.25
"""Seconds between two batches of lines."""


def _environ(head: bytes, peer: Address) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return the WSGI environment that gunicorn's logger reads, and the header fields of a head."""
    line = head.lstrip(b"\r\n").split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    method, target, protocol = line if len(line) == 3 else ("-", "-", "-")
    fields = HeadFields(head) if head else {}
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "RAW_URI": target,
        "PATH_INFO": target,
        "QUERY_STRING": "",
        "SERVER_PROTOCOL": protocol,
        "REMOTE_ADDR": peer if isinstance(peer, str) else peer[0],
        **field_keys(fields),
    }
    return environ, [(name.upper(), value) for name, value in fields.items()]


def write_records(logger: Any, records: Iterable[tuple[Any, ...]]) -> None:
    """Write the HTTP server's records with gunicorn's logger.

    Args:
        records: The records that `HttpServer.records` returned.
    """
    for seconds, status, sent, peer, head, request_id, timing in records:
        environ, fields = _environ(head, peer)
        shown = [("x-request-id", request_id), *([("server-timing", timing)] if timing else [])]
        response = SimpleNamespace(status=status_line(status), sent=sent, headers=shown)
        request = SimpleNamespace(headers=fields)
        logger.access(response, request, environ, timedelta(seconds=seconds))


def write_calls(
    records: Iterable[tuple[str, float, str, int, str, str, str, str, bytes]],
    proxies: TrustedProxies,
) -> None:
    """Write the gRPC server's records.

    Args:
        records: The records that `GrpcServer.records` returned.
        proxies: The proxies that may name the client of a call.
    """
    for path, seconds, status, sent, peer, request_id, model, version, lines in records:
        # A head, whose request line is empty.
        metadata = HeadFields(b"\r\n" + lines + b"\r\n") if lines else {}
        caller = proxies.caller(peer, metadata)
        fields: dict[str, Any] = {
            "request_id": request_id,
            **caller,
            "token_digest": token_digest(metadata.get("authorization")),
            "protocol": "gRPC",
            "method": path,
            "status": status,
            "bytes": sent,
            "duration_ms": round(seconds * 1000, 3),
        }
        if model:
            fields |= {"model": model, "version": version}
        stamp = time.strftime("[%d/%b/%Y:%H:%M:%S %z]")
        log.info(
            '%s - - %s "gRPC %s" %s %d %.6f %s',
            caller["peer"] or "-",
            stamp,
            quote(path)[1:-1].replace('"', r"\""),  # because the line puts it between double quotes
            status,
            sent,
            seconds,
            request_id,
            extra=fields,
        )


class RecordWriter(threading.Thread):
    """Writes the records of a native server until it is closed.

    Args:
        write: Writes the records that were made since the last call.
    """

    def __init__(self, name: str, write: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._write = write
        self._closed = threading.Event()

    def run(self) -> None:
        """Write the records in batches until `close` is called; then write the last batch."""
        while not self._closed.wait(BATCH_SECONDS):
            self._write()
        self._write()

    def close(self) -> None:
        """Write the rest and end the thread."""
        self._closed.set()
        self.join()


def access_log_of(http_server: HttpServer, logger: Any) -> RecordWriter:
    """Return the thread that writes the HTTP server's records."""
    return RecordWriter("ksrv-access-log", lambda: write_records(logger, http_server.records()))
