"""Starts gunicorn with the HTTP server in front of the echo service, for the HTTP server's tests."""

import json
import os
import re
import signal
import socket
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ksrv.server.launch import child_server
from tests.support.certificates import self_signed
from tests.support.native.echo_service import write_models
from tests.support.wire.http_reader import read_all

CONFIGURATION = """
from tests.support.native.echo_service import post_worker_init
http_parser = "python"
control_socket_disable = True
worker_class = "{worker_class}"
"""

NATIVE = "ksrv.server.worker:KsrvWorker"


class GunicornServer:
    """A gunicorn master with its workers, on a free port; used as a context."""

    def __init__(
        self,
        folder: Path,
        *,
        worker_class: Any = NATIVE,
        settings: Any = None,
        gil: Any = None,
        bind: str = "127.0.0.1:0",
        **options: Any,
    ) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._bind = bind
        text = CONFIGURATION.format(worker_class=worker_class)
        text += "".join(f"{name} = {value!r}\n" for name, value in options.items())
        (self._folder / "gunicorn_conf.py").write_text(text)
        write_models(self._folder / "models")
        self._environment = child_server.variables_with(
            {
                "SERVER_TEST_MODELS": str(self._folder / "models"),
                "SERVER_TEST_SETTINGS": json.dumps(settings or {}),
            }
        )
        if gil:
            self._environment["SERVER_TEST_GIL"] = str(gil)

    @property
    def log(self) -> Any:
        return (self._folder / "log").read_text(errors="replace")

    def start(self) -> Any:
        with (self._folder / "log").open("wb") as output:
            self.process = child_server.spawn(
                [
                    sys.executable, "-P", "-m", "gunicorn", "-c", str(self._folder / "gunicorn_conf.py"),
                    "-b", self._bind, "tests.support.native.echo_service:service",
                ],
                self._environment, [], ends_with_thread=False, stdout=output,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            found = re.search(r"Listening at: (\S+)", self.log)
            if found and self._answers(found[1]):
                return self
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"gunicorn did not start:\n{self.log}")
            time.sleep(0.02)

    def _answers(self, listening: Any) -> bool:
        if listening.startswith("unix:"):
            self.family, self.address = socket.AF_UNIX, listening.removeprefix("unix:")
        else:
            host, _, port = listening.split("//", 1)[1].rpartition(":")
            self.family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
            self.address = (host.strip("[]"), int(port))
        try:
            with self.connect() as client:
                client.sendall(b"GET /pid HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                return bool(client.recv(1))
        except OSError:
            return False

    def connect(self, timeout: float = 20) -> Any:
        client = socket.socket(self.family, socket.SOCK_STREAM)
        client.settimeout(timeout)
        try:
            client.connect(self.address)
        except OSError:
            client.close()
            raise
        return client

    @property
    def url(self) -> Any:
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def exchange(self, data: Any) -> Any:
        """Send bytes on a new connection and return everything until the server closes it."""
        with self.connect() as client:
            client.sendall(data)
            # Of the descriptor: a socket with TLS would read no more.
            with socket.socket(fileno=os.dup(client.fileno())) as same:
                same.shutdown(socket.SHUT_WR)
            return read_all(client)

    def counters(self) -> Any:
        """Counters of the HTTP server in the worker that answers."""
        answer = self.exchange(b"GET /counters HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return json.loads(answer.partition(b"\r\n\r\n")[2])

    def stop(self, timeout: float = 30) -> Any:
        """End the server with SIGTERM; return the master's exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def __enter__(self) -> Any:
        return self.start()

    def __exit__(self, kind: str, error: Any, trace: Any) -> None:
        try:
            status = self.stop() if self.process.poll() is None else self.process.returncode
            assert error is not None or status == 0, f"gunicorn ended with {status}:\n{self.log}"
        finally:
            self.kill()


class TlsServer(GunicornServer):
    """A server with TLS, which is up once it completes a handshake."""

    def __init__(self, folder: Path, *, hook: str = "", **options: Any) -> None:
        key, cert = self_signed(folder)
        self.context = ssl.create_default_context(cafile=cert)
        super().__init__(folder, keyfile=str(key), certfile=str(cert), **options)
        with (folder / "gunicorn_conf.py").open("a") as file:
            file.write(hook)

    def connect(self, timeout: float = 20) -> Any:
        plain = super().connect(timeout)
        try:
            return self.context.wrap_socket(plain, server_hostname="127.0.0.1")
        except OSError:
            plain.close()
            raise

    @property
    def url(self) -> Any:
        return super().url.replace("http://", "https://")


def assert_no_answer(client: Any, seconds: float = 0.3) -> None:
    """See that nothing comes for a while."""
    before = client.gettimeout()
    client.settimeout(seconds)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(before)


def infer_head(json_length: Any, length: int, *fields: Any, model: str = "add") -> Any:
    """The head of an infer request; without a JSON length the whole body is JSON."""
    lines = [
        f"POST /v2/models/{model}/infer HTTP/1.1",
        "Host: x",
        *fields,
        f"Content-Length: {length}",
    ]
    if json_length is not None:
        lines.append(f"Inference-Header-Content-Length: {json_length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def infer(count: int = 16, *fields: Any, model: str = "add", **parameters: Any) -> Any:
    """A whole infer request for FP32 [1, count], in and out as binary."""
    document = {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, count],
             "parameters": {"binary_data_size": 4 * count}}
        ],
        "parameters": {"binary_data_output": True, **parameters},
    }  # fmt: skip
    text = json.dumps(document).encode()
    body = text + bytes(range(256)) * (4 * count // 256) + bytes(range(4 * count % 256))
    return infer_head(len(text), len(body), *fields, model=model) + body
