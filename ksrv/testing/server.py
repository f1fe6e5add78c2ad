"""A real server for tests: a separate process on free ports.

    with Server("models/") as server:  # or Server(Cats), a handler of this file
        requests.get(f"{server.url}/v2/health/ready")

The process is `ksrv serve`. Leaving the context ends it with SIGTERM and fails unless it ends
cleanly. A server that dies while it starts fails with its whole log.
"""

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ksrv.server.launch.child_server import ChildServer
from ksrv.server.script import Handler, settings_json, targets_of

_POLL_SECONDS = 0.02


class ServerFailed(AssertionError):
    """The server did not start, did not get ready, or did not end with status 0."""


class Server(ChildServer):
    """Runs `ksrv serve` while its context is open.

    Args:
        paths: A model repository, a model folder or file, a handler class or function, or several of these.
        wait_ready: Whether entering the context waits until the server is ready.
        start_timeout: The most seconds of the start.
        environment: Variables added to the process's environment.
        handler_settings: The keys of model.yaml for the only handler.
        settings: Any setting of `ksrv serve`, nested settings as mappings; both ports are 0 and the
            drain delay is 0 unless given.

    Attributes:
        process: The master process.
        targets: The paths that it serves.
        http: The HTTP address as HOST:PORT or unix:PATH; "" if HTTP is off.
        grpc: The gRPC address as HOST:PORT; "" if gRPC is off.

    Raises:
        CannotServe: A handler has no file or no name in it, or its settings are not plain values.
    """

    def __init__(
        self,
        paths: Handler | Sequence[Handler],
        *,
        wait_ready: bool = True,
        start_timeout: float = 60.0,
        environment: Mapping[str, str] | None = None,
        handler_settings: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        several = (paths,) if isinstance(paths, type | str | Path) or callable(paths) else paths
        given = handler_settings or {}
        self.targets = targets_of(several, given)
        if given:
            settings["model_settings"] = settings_json(given)
        super().__init__(
            {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0", "drain_delay": 0} | settings
        )
        self._wait_ready = wait_ready
        self._start_timeout = start_timeout
        self._environment = dict(environment or {})
        self._last_log: str | None = None

    @property
    def log(self) -> str:
        """The server's output so far, standard output and error."""
        if self._last_log is not None:
            return self._last_log
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._last_log is None and self.process.poll() is None

    def command(self, settings_file: Path) -> list[str]:
        """Return the command that starts the server.

        Args:
            settings_file: The file with the server's settings.
        """
        serve = [sys.executable, "-P", "-m", "ksrv", "serve"]
        return [*serve, "--config", str(settings_file), *self.targets]

    def start(self) -> None:
        """Start the process and wait for its addresses, and with `wait_ready` for readiness.

        Raises:
            ServerFailed: It died, a model cannot be loaded, or it took too long; the text holds its log.
        """
        self._last_log = None
        self._folder = tempfile.TemporaryDirectory(prefix="ksrv-test-")
        self._log_path = Path(self._folder.name) / "server.log"
        with self._log_path.open("wb") as output:
            self.http = self.grpc = ""
            self.spawn(
                lambda path: self.command(Path(path)),
                environment=self._environment,
                # If the test run is killed, its servers end, too. Only for the main thread: another
                # thread may end while the server is still needed.
                ends_with_thread=threading.current_thread() is threading.main_thread(),
                stdout=output,
            )
        self._deadline = time.monotonic() + self._start_timeout
        try:
            self._wait_for_addresses()
            if self._wait_ready:
                self._wait_until_ready(self._start_timeout, starts=True)
        except BaseException:
            self.kill()
            raise

    def _fail_if_dead(self) -> None:
        status = self.process.poll()
        if status is not None:
            raise ServerFailed(f"the server ended with status {status}:\n{self.log}")

    def _wait_for_addresses(self) -> None:
        while (status := self.update()) is None or not status.listens:
            self._fail_if_dead()
            if time.monotonic() > self._deadline:
                raise ServerFailed(f"the server told no addresses:\n{self.log}")
            time.sleep(_POLL_SECONDS)

    def get(self, path: str) -> tuple[int, bytes]:
        """Return the status and body of a GET request.

        Args:
            path: The path, such as "/v2".

        Raises:
            OSError: The server does not answer.
        """
        return self.request(path)

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until the server is ready; if this process cannot call it, until it has tried to load all models.

        Args:
            timeout: The most seconds to wait.

        Raises:
            ServerFailed: It died or took too long; the text holds its log.
        """
        self._wait_until_ready(timeout, starts=False)

    def _wait_until_ready(self, timeout: float, *, starts: bool) -> None:
        """Wait until the server is ready.

        Args:
            starts: Whether the server is being started. Then a model that cannot be loaded is a failure at once.
        """
        deadline = time.monotonic() + timeout
        while True:
            self._fail_if_dead()
            if self.is_ready():
                return
            status = self.update()
            if starts and status is not None and status.loaded and not status.ready:
                raise ServerFailed(
                    f"a model cannot be loaded, so the server is not ready:\n{self.log}"
                )
            if time.monotonic() > deadline:
                raise ServerFailed(f"the server is not ready after {timeout} s:\n{self.log}")
            time.sleep(_POLL_SECONDS)

    def wait_loaded(self) -> None:
        """Wait, without a limit, until the models are loaded.

        Raises:
            ServerFailed: It died, or a model cannot be loaded; the text holds the server's log.
        """
        while (status := self.update()) is None or not status.loaded:
            self._fail_if_dead()
            time.sleep(_POLL_SECONDS)
        if not status.ready:
            raise ServerFailed(f"a model cannot be loaded:\n{self.log}")

    def terminate(self, timeout: float = 60.0) -> int:
        """End the server with SIGTERM and return its exit status.

        Args:
            timeout: The most seconds to wait.

        Raises:
            ServerFailed: It did not end in time, and was killed.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            log = self.log
            self.kill()
            raise ServerFailed(f"the server did not end within {timeout} s:\n{log}") from error

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        status = self.close()
        if error is None and status != 0:
            raise ServerFailed(f"the server ended with status {status}:\n{self.log}")

    def close(self) -> int:
        """End the server with SIGTERM, delete its files, and return its exit status. `log` stays readable.

        Raises:
            ServerFailed: It did not end in time, and was killed.
        """
        if self._last_log is None:
            try:
                self.terminate()
            finally:
                self._last_log = self.log
                assert self._status is not None, "a server that was started has a status"
                self._status.close()
                self._folder.cleanup()
        return self.process.wait()
