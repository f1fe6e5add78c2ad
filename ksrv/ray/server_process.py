"""Runs the server of one replica: `ksrv serve` as a child process, which listens on free ports of its node."""

import collections
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from ksrv.server.credentials import read_tokens
from ksrv.server.launch.child_server import ChildServer

_POLL_SECONDS = 0.05
_KEPT_LINES = 30
"""The last lines of the server's output, which are shown in errors."""
SETTLE_SECONDS = 10.0
"""How long a server may still be unready after it has loaded its models."""


class ServerEnded(RuntimeError):
    """The server's process ended by itself, or did not get ready in time."""


class ServerProcess(ChildServer):
    """Runs `ksrv serve` until `stop`, and ends it when this process dies. A thread reads its output (`_run`).

    `ChildServer.spawn` sets `process` and then `_status`, the reader of the server's reports. `_status` is None until
    the process has started.

    Args:
        models: The paths for `ksrv serve`.
        settings: The settings of `ksrv serve`, nested settings as mappings.
    """

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._models = list(models)
        self._lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._changed = threading.Condition()
        self._ended: int | None = None  # the exit status
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="ksrv server", daemon=True)

    def authorization(self) -> dict[str, str]:
        """Return the request header with which this process may read the server's metrics.

        Raises:
            OSError: The token file cannot be read.
        """
        file = self._settings.get("token_file")
        if file is None:
            return {}
        tokens = read_tokens(file)
        # Without a token in the file, the server keeps its old tokens, and refuses this request.
        return {"Authorization": f"Bearer {tokens[0]}"} if tokens else {}

    # ---- the process ----------------------------------------------------------------------------

    def start(self, timeout: float) -> None:
        """Start the server and wait until its models are ready.

        Args:
            timeout: Seconds that this may take.

        Raises:
            ServerEnded: The server ended, or took too long. The text contains its last lines of output.
        """
        self._thread.start()
        deadline = time.monotonic() + timeout
        with self._changed:
            self._changed.wait_for(lambda: self._status is not None, timeout)
        while not self.ready():
            self._check_process()
            loaded = self._status is not None and self._status.loaded
            if loaded:
                deadline = min(deadline, time.monotonic() + SETTLE_SECONDS)
            if time.monotonic() > deadline:
                self.stop(0)
                why = f"the server is not ready after {timeout:g} s"
                if loaded:
                    why = "the models did not get ready"
                raise ServerEnded(f"{why}:\n{self._tail()}")
            time.sleep(_POLL_SECONDS)

    def _run(self) -> None:
        """Start the process and read its output. Runs on a separate thread, with which the kernel ends the process."""
        serve = [sys.executable, "-P", "-m", "ksrv", "serve", "--config"]
        self.spawn(
            lambda path: [*serve, path, *self._models],
            environment={},
            ends_with_thread=True,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        process = self.process
        with self._changed:
            stopped_early = self._stopping
            self._changed.notify_all()
        if stopped_early:
            process.terminate()
        assert process.stdout is not None
        for line in process.stdout:
            self._take_line(line.rstrip("\n"))
        status = process.wait()
        with self._changed:
            self._ended = status
            self._changed.notify_all()

    def _take_line(self, line: str) -> None:
        """Take one line of the server's output, which is also written to the replica's log."""
        print(line, file=sys.stderr, flush=True)
        with self._changed:
            self._lines.append(line)

    def _tail(self) -> str:
        return "\n".join(self._lines)

    def ready(self) -> bool:
        """Whether the server runs and its models serve; see `is_ready`."""
        return self._ended is None and self.is_ready()

    def get(self, path: str) -> bytes:
        """Return the body of the server's answer to a GET with the server's token.

        Args:
            path: The path, such as "/metrics".

        Raises:
            OSError: The server does not answer, or not with a 2xx.
        """
        status, body = self.request(path, self.authorization())
        if status != HTTPStatus.OK:
            raise OSError(f"the server answered {status} to {path}")
        return body

    def refusal(self, authorization: str | None, client: str) -> tuple[int, bytes] | None:
        """Return the status and body with which the server refuses its metadata to a caller, or None.

        Args:
            authorization: The caller's `Authorization`.
            client: The caller's address. Without it, the server would treat the caller as a program on this machine.

        Raises:
            OSError: The server does not answer.
        """
        if not self.http:
            return None
        headers = {"X-Forwarded-For": client}
        if authorization is not None:
            headers["Authorization"] = authorization
        status, body = self.request("/v2", headers)
        return None if status == HTTPStatus.OK else (status, body)

    def check(self) -> None:
        """Return if the process runs and answers.

        Raises:
            ServerEnded: The process has ended.
            OSError: The server does not answer.
        """
        self._check_process()
        if self.can_be_asked:
            # Any answer proves that the server lives. This route needs no token, whose file may just be replaced.
            self.request("/v2/health/live")

    def _check_process(self) -> None:
        """Raise ServerEnded if the process has ended. `_run` may not know yet, if children keep its output open."""
        status = self._ended
        if status is None and self._status is not None:
            status = self.process.poll()
        if status is not None:
            raise ServerEnded(f"the server ended with status {status}:\n{self._tail()}")

    def reload(self) -> None:
        """Make the server read models, tokens and certificates again, by SIGHUP; no request fails."""
        if self._status is not None and self._ended is None:
            self.process.send_signal(signal.SIGHUP)

    def stop(self, timeout: float) -> None:
        """End the server: it drains as on SIGTERM, and is killed when it takes too long.

        Args:
            timeout: Seconds that draining may take.
        """
        with self._changed:
            self._stopping = True
            started = self._status is not None
        if not started or not self._thread.is_alive():
            return
        self.process.terminate()
        with self._changed:
            ended = self._changed.wait_for(lambda: self._ended is not None, timeout)
        if not ended:
            self.kill()
