"""The server of one replica: `ksrv serve` as a child process on free ports of its node."""

import collections
import http.client
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from ksrv.server.launch import child_server
from ksrv.server.launch.status_lines import StatusReader

_POLL_SECONDS = 0.05
_ANSWER_SECONDS = 5.0
_KEPT_LINES = 30
SETTLE_SECONDS = 10.0
"""How long a server may be unready after it has loaded its models."""


class ServerEnded(RuntimeError):
    """The server's process ended without being asked to, or did not get ready in time."""


class ServerProcess:
    """Runs `ksrv serve` until `stop`, and ends it when this process dies.

    Args:
        settings: The settings of `ksrv serve`, nested settings as mappings.

    Attributes:
        http: The HTTP address as HOST:PORT, "" if HTTP is off.
        grpc: The gRPC address as HOST:PORT, "" if gRPC is off.
    """

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        self._models = list(models)
        self._settings = dict(settings)
        self._lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._changed = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._status: int | None = None
        self._stopping = False
        self._told: StatusReader | None = None
        self._tls: ssl.SSLContext | None = None
        self._tls_read: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._run, name="ksrv server", daemon=True)

    @property
    def http(self) -> str:
        """The HTTP address as HOST:PORT, "" where HTTP is off."""
        return "" if self._told is None else self._told.http

    @property
    def grpc(self) -> str:
        """The gRPC address as HOST:PORT, "" where gRPC is off."""
        return "" if self._told is None else self._told.grpc

    @property
    def url(self) -> str:
        """The HTTP address as a URL."""
        return f"{'https' if self._settings.get('tls_cert') else 'http'}://{self.http}"

    @property
    def pid(self) -> int | None:
        """The process id of the server's master, or None before it runs."""
        return None if self._process is None else self._process.pid

    @property
    def needs_client_certificate(self) -> bool:
        """Whether not even this process can call the server."""
        return bool(self._settings.get("tls_client_ca"))

    def tls_context(self) -> ssl.SSLContext | None:
        """Return a context that trusts the server's certificate, whatever name it is for; None without TLS.

        Earlier certificates of the file stay trusted: the server has the old certificate until it reloads,
        and its replica must not count as dead meanwhile.

        Raises:
            OSError: The certificate cannot be read, and never could.
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
        except OSError:  # ssl.SSLError is one; the file is being replaced
            if self._tls is None:
                raise
        return context

    def authorization(self) -> dict[str, str]:
        """Return the header with which this process reads the server's metrics.

        Raises:
            OSError: The token file cannot be read.
        """
        file = self._settings.get("token_file")
        if file is None:
            return {}
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        tokens = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        # The server refuses a file without a token, and keeps the tokens that it has.
        return {"Authorization": f"Bearer {tokens[0]}"} if tokens else {}

    # ---- the process ----------------------------------------------------------------------------

    def start(self, timeout: float) -> None:
        """Start the server and wait until its models are ready.

        Args:
            timeout: Seconds that this may take.

        Raises:
            ServerEnded: It ended, or took too long; the text holds its last lines.
        """
        self._thread.start()
        deadline = time.monotonic() + timeout
        with self._changed:
            self._changed.wait_for(lambda: self._told is not None, timeout)
        while not self.ready():
            self._check_process()
            if self._loaded:
                deadline = min(deadline, time.monotonic() + SETTLE_SECONDS)
            if time.monotonic() > deadline:
                self.stop(0)
                why = f"the server is not ready after {timeout:g} s"
                if self._loaded:
                    why = "the models did not get ready"
                raise ServerEnded(f"{why}:\n{self._tail()}")
            time.sleep(_POLL_SECONDS)

    def _run(self) -> None:
        """Start the process and read its output; the process lives no longer than this thread."""
        serve = [sys.executable, "-P", "-m", "ksrv", "serve", "--config"]
        started = child_server.start(
            lambda path: [*serve, path, *self._models],
            self._settings,
            environment={},
            ends_with_thread=True,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        process = started.process
        with self._changed:
            self._process = process
            self._told = started.status
            stopped_early = self._stopping
            self._changed.notify_all()
        if stopped_early:
            process.terminate()
        assert process.stdout is not None
        for line in process.stdout:
            self._take_line(line.rstrip("\n"))
        status = process.wait()
        with self._changed:
            self._status = status
            self._changed.notify_all()

    def _take_line(self, line: str) -> None:
        """Take one line of the server's output, which is also written to the replica's log."""
        print(line, file=sys.stderr, flush=True)
        with self._changed:
            self._lines.append(line)

    @property
    def _loaded(self) -> bool:
        return self._told is not None and self._told.loaded

    def _tail(self) -> str:
        return "\n".join(self._lines)

    def ready(self) -> bool:
        """Whether the server says that its models serve; where it cannot be asked, whether they loaded."""
        if self._told is None or self._status is not None:
            return False
        self._told.update()
        if not self._told.listens:
            return False
        if not self.http or self.needs_client_certificate:
            return self._loaded
        try:
            self._body("/v2/health/ready", {})
        except OSError:
            return False
        return True

    def get(self, path: str) -> bytes:
        """Return the body of a GET of the server's, with the server's token.

        Args:
            path: The path, such as "/metrics".

        Raises:
            OSError: The server does not answer, or not with a 2xx.
        """
        return self._body(path, self.authorization())

    def _body(self, path: str, headers: Mapping[str, str]) -> bytes:
        status, body = self._get(path, headers)
        if status != HTTPStatus.OK:
            raise OSError(f"the server answered {status} to {path}")
        return body

    def refusal(self, authorization: str | None, client: str) -> tuple[int, bytes] | None:
        """Return the status and body with which the server refuses its metadata to a caller, or None.

        Args:
            authorization: The caller's `Authorization`.
            client: The caller's address. Without it the caller would have the rights of this machine.

        Raises:
            OSError: The server does not answer.
        """
        if not self.http:
            return None
        headers = {"X-Forwarded-For": client}
        if authorization is not None:
            headers["Authorization"] = authorization
        status, body = self._get("/v2", headers)
        return None if status == HTTPStatus.OK else (status, body)

    def _get(self, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.http, timeout=_ANSWER_SECONDS)
        if (tls := self.tls_context()) is not None:
            connection = http.client.HTTPSConnection(
                self.http, timeout=_ANSWER_SECONDS, context=tls
            )
        try:
            connection.request("GET", path, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:  # its end in the middle of an answer
            raise OSError(f"the server's answer to {path} is broken: {error!r}") from error
        finally:
            connection.close()

    def check(self) -> None:
        """Return while the process runs and answers.

        Raises:
            ServerEnded: It ended.
            OSError: It does not answer.
        """
        self._check_process()
        if self.http and not self.needs_client_certificate:
            # Any answer will do. This route needs no token, whose file may just be replaced.
            self._get("/v2/health/live", {})

    def _check_process(self) -> None:
        """Raise ServerEnded when the process has ended, though its children may hold its output open."""
        status = self._status
        if status is None and self._process is not None:
            status = self._process.poll()
        if status is not None:
            raise ServerEnded(f"the server ended with status {status}:\n{self._tail()}")

    def reload(self) -> None:
        """Have the server read models, tokens and certificates anew, as on SIGHUP; no request fails."""
        if self._process is not None and self._status is None:
            self._process.send_signal(signal.SIGHUP)

    def stop(self, timeout: float) -> None:
        """End the server: it drains as on SIGTERM, and is killed when it takes too long.

        Args:
            timeout: Seconds that draining may take.
        """
        with self._changed:
            self._stopping = True
            process = self._process
        if process is None or not self._thread.is_alive():
            return
        process.terminate()
        with self._changed:
            ended = self._changed.wait_for(lambda: self._status is not None, timeout)
        if not ended:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
