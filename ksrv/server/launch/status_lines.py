"""Lines of JSON by which a server reports its addresses, and the end of loading, to the program that started it.

    {"event": "listening", "pid": 7, "http": ["http://127.0.0.1:8080"], "grpc": ["127.0.0.1:9000"]}
    {"event": "loaded", "ready": true}

The setting `status_fd` names the descriptor. The first line is sent before the models are loaded, the second
when the first worker has tried all of them.
"""

import json
import logging
import os
from collections.abc import Sequence
from typing import Any

from ksrv.server.settings import SettingsError

log = logging.getLogger(__name__)

_READ_BYTES = 65536


def check_descriptor(descriptor: int) -> None:
    """Refuse a descriptor that this process was not given.

    Descriptors that Python and the native core open themselves are not inheritable, so a wrong number never
    writes into one of their files or sockets.

    Args:
        descriptor: The value of `status_fd`.

    Raises:
        SettingsError: It is not open, or this process has opened it itself.
    """
    try:
        given = os.get_inheritable(descriptor)
    except (OSError, OverflowError):
        given = False
    if not given:
        raise SettingsError(
            f"setting 'status_fd' cannot be {descriptor}: the process was started without that "
            f"descriptor; a shell opens one with {descriptor}>FILE"
        )


def _write(descriptor: int, **line: Any) -> None:
    """Write a line at once; a reader that is gone costs a warning."""
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    except OSError as error:
        log.warning("the descriptor %d of 'status_fd' cannot be written: %s", descriptor, error)


def report_addresses(descriptor: int, http: Sequence[str], grpc: Sequence[str]) -> None:
    """Report the addresses of the server.

    Args:
        descriptor: The value of `status_fd`.
        http: The URLs of HTTP; empty if HTTP is off.
        grpc: The addresses of gRPC as HOST:PORT or unix:PATH; empty if gRPC is off.
    """
    _write(descriptor, event="listening", pid=os.getpid(), http=list(http), grpc=list(grpc))


def report_loaded(descriptor: int, *, ready: bool) -> None:
    """Report that a worker has tried to load all models.

    Args:
        descriptor: The value of `status_fd`.
        ready: Whether the worker serves, as the readiness routes say.
    """
    _write(descriptor, event="loaded", ready=ready)


class StatusReader:
    """The other end of the descriptor, in the program that starts the server.

    Attributes:
        descriptor: The end for the server, until `inherited` is called.
        listens: Whether the server has reported its addresses.
        http: The HTTP address as HOST:PORT, "" if HTTP is off.
        grpc: The gRPC address as HOST:PORT, "" if gRPC is off.
        loaded: Whether the server has tried to load all of its models.
        ready: Whether the readiness routes answered "ready" when all models had been tried.
    """

    def __init__(self) -> None:
        reader, self.descriptor = os.pipe()
        os.set_blocking(reader, False)
        self._reader = open(reader, "rb", buffering=0)  # noqa: SIM115
        self._begun = b""  # the beginning of a line whose end was not read yet
        self.listens = False
        self.loaded = False
        self.ready = False
        self.http = ""
        self.grpc = ""

    def inherited(self) -> None:
        """Close the server's end here, as soon as the server has its copy."""
        os.close(self.descriptor)

    def update(self) -> None:
        """Take what the server has written until now, without waiting."""
        while content := self._reader.read(_READ_BYTES):
            *lines, self._begun = (self._begun + content).split(b"\n")
            for line in lines:
                self._take_event(json.loads(line))

    def _take_event(self, line: dict[str, Any]) -> None:
        if line["event"] == "listening":
            first = [*line["http"], ""][0]
            self.http = first.rpartition("//")[2]
            self.grpc = [*line["grpc"], ""][0]
            self.listens = True
        elif line["event"] == "loaded":
            self.loaded = True
            self.ready = line["ready"]

    def close(self) -> None:
        """Close this end."""
        self._reader.close()
