"""`ksrv serve` as a child process, for tests (`ksrv.testing`) and replicas of Ray Serve (`ksrv.ray`)."""

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from ksrv.installation import with_ksrv
from ksrv.server.launch.memory_file import memory_file, path_of
from ksrv.server.launch.parent_death import ending_with_parent
from ksrv.server.launch.status_lines import StatusReader

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
ANSWER_SECONDS = 10.0
"""Seconds that an answer of the server may take."""


class ChildServer:
    """A server in a child process, what it reports about itself, and GET requests to it.

    Args:
        settings: The settings of `ksrv serve`, nested settings as mappings.

    Attributes:
        process: The master process, the leader of a new session.
        http: The HTTP address as HOST:PORT or unix:PATH; "" before the server listens, and if HTTP is off.
        grpc: The gRPC address as HOST:PORT; "" before the server listens, and if gRPC is off.
    """

    process: "subprocess.Popen[Any]"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._status: StatusReader | None = None
        self._tls: ssl.SSLContext | None = None
        self._tls_read: tuple[int, int] | None = None  # inode and time of the certificate file
        self.http = ""
        self.grpc = ""

    @property
    def url(self) -> str:
        """The HTTP address as a URL."""
        return f"{'https' if self._settings.get('tls_cert') else 'http'}://{self.http}"

    @property
    def pid(self) -> int:
        """The process id of the master."""
        return self.process.pid

    def spawn(
        self,
        command_of: Callable[[str], list[str]],
        *,
        environment: Mapping[str, str],
        ends_with_thread: bool,
        **popen: Any,
    ) -> None:
        """Start the process.

        The settings reach it as a file in memory. `KSRV_*` variables of this process do not, because they
        would win over the file.

        Args:
            command_of: Returns the command for the path of the settings file.
            environment: Variables added to the variables of this process.
            ends_with_thread: Whether the kernel ends the server with the thread that calls this.
            popen: How the output is redirected and read; see `subprocess.Popen`.

        Raises:
            OSError: The process cannot be started.
        """
        status = StatusReader()
        settings = {**self._settings, "status_fd": status.descriptor}
        file = memory_file(json.dumps(settings).encode())
        descriptors = [file, status.descriptor]
        try:
            command, variables = command_of(path_of(file)), variables_with(environment)
            self.process = spawn(
                command, variables, descriptors, ends_with_thread=ends_with_thread, **popen
            )
        except BaseException:
            status.close()
            raise
        finally:
            os.close(file)
            status.inherited()
        self._status = status

    def update(self) -> StatusReader | None:
        """Read what the server has reported until now. Return None before it was started."""
        if self._status is None:
            return None
        self._status.update()
        if self._status.listens and not (self.http or self.grpc):
            self.http, self.grpc = self._status.http, self._status.grpc
        return self._status

    @property
    def can_be_asked(self) -> bool:
        """Whether this process can call the server: it has no certificate for a server that asks clients for one."""
        return bool(self.http) and not self._settings.get("tls_client_ca")

    def is_ready(self) -> bool:
        """Whether the server's models serve. If it cannot be asked: whether it has tried to load them."""
        status = self.update()
        if status is None or not status.listens:
            return False
        if not self.can_be_asked:
            return status.loaded
        try:
            return self.request("/v2/health/ready")[0] == HTTPStatus.OK
        except OSError:
            return False

    def request(self, path: str, headers: Mapping[str, str] = NO_HEADERS) -> tuple[int, bytes]:
        """Return the status and body of a GET request.

        Raises:
            OSError: The server does not answer.
        """
        connection = http.client.HTTPConnection("localhost")
        connected = self._connect()
        try:
            if (context := self.tls_context()) is not None:
                connected = context.wrap_socket(connected)
            connection.sock = connected
            connection.request("GET", path, headers=dict(headers))
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:  # the server ended in the middle of an answer
            raise OSError(f"the server's answer to {path} is broken: {error!r}") from error
        finally:
            connected.close()

    def _connect(self) -> socket.socket:
        if not self.http.startswith("unix:"):
            host, _, port = self.http.rpartition(":")
            return socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS)
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(ANSWER_SECONDS)
        try:
            connected.connect(self.http.removeprefix("unix:"))
        except OSError:
            connected.close()
            raise
        return connected

    def tls_context(self) -> ssl.SSLContext | None:
        """Return a context that trusts the server's certificate, whatever name it is for; None without TLS.

        Earlier certificates of the file stay trusted: the server has the old certificate until it reloads,
        and its replica must not count as dead meanwhile.

        Raises:
            OSError: The certificate cannot be read, and was not read before.
        """
        certificate = self._settings.get("tls_cert")
        if certificate is None:
            return None
        context = self._tls
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the file need not hold the root
        try:
            found = os.stat(certificate)
            if (read := (found.st_ino, found.st_mtime_ns)) != self._tls_read:
                context.load_verify_locations(cafile=certificate)
                self._tls, self._tls_read = context, read
        except OSError:  # or ssl.SSLError, a subclass: the file is just being replaced
            if self._tls is None:
                raise
        return context

    def kill(self) -> None:
        """Kill the master and every process that it started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            self.process.wait()


def variables_with(added: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server: this process's without `KSRV_*`, and what is added."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("KSRV_")}
    variables = {**own, "PYTHONUNBUFFERED": "1", **added}
    variables["PYTHONPATH"] = with_ksrv(variables.get("PYTHONPATH", ""))
    return variables


def spawn(
    command: list[str],
    variables: Mapping[str, str],
    descriptors: Sequence[int],
    *,
    ends_with_thread: bool,
    **popen: Any,
) -> "subprocess.Popen[Any]":
    """Start the process of a server.

    Args:
        command: The command.
        variables: Its environment.
        descriptors: The descriptors that it inherits.
        ends_with_thread: See `ChildServer.spawn`.
        popen: See `ChildServer.spawn`.
    """
    return subprocess.Popen(
        ending_with_parent(command) if ends_with_thread else command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        env=variables,
        pass_fds=descriptors,
        start_new_session=True,
        **popen,
    )
