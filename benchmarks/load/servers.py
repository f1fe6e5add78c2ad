"""The servers of the load benchmark: a bare C server, and ksrv under its worker class and gunicorn's."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TICK = os.sysconf("SC_CLK_TCK")

HANDLER = """
import numpy as np
from ksrv import BaseHandler

CONSTANT = np.zeros((1, 10), np.float32)


class Answer(BaseHandler):
    def inference(self, x):
        return {{"y": {expression}}}
"""

MODEL = """
handler: handler.py
timeout_ms: 60000
inputs: [{{name: x, datatype: FP32, shape: [-1, {inputs}]}}]
outputs: [{{name: y, datatype: FP32, shape: [-1, {outputs}]}}]
{more}
"""

MODELS = {
    "w1": ("16", "16", "x", ""),
    "batched": ("16", "16", "x", "batching: {max_batch_size: 64, max_delay_ms: 0}"),
    "w2": ("224, 224, 3", "10", "x.reshape(len(x), -1)[:, :10]", ""),
    "w2-constant": ("224, 224, 3", "10", "CONSTANT", ""),
    "w4": ("16777216", "16777216", "x", ""),
}


def write_models(folder: Path) -> None:
    """Write the benchmark's models into a repository folder."""
    for name, (inputs, outputs, expression, more) in MODELS.items():
        model = folder / name
        model.mkdir(parents=True)
        (model / "model.yaml").write_text(MODEL.format(inputs=inputs, outputs=outputs, more=more))
        (model / "handler.py").write_text(HANDLER.format(expression=expression))


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class LoadedServer:
    """A server process whose CPU time and memory can be read.

    Args:
        name: Its name in the table.
        command: How it is started; `{port}` is replaced by its port.
    """

    def __init__(
        self, name: str, command: list[str], environment: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self.port = free_port()
        self._command = [part.replace("{port}", str(self.port)) for part in command]
        self._environment = os.environ | (environment or {})

    def start(self, path: str | None) -> None:
        """Start it and wait until it accepts, or answers `path` with 200."""
        self.process = subprocess.Popen(
            self._command,
            env=self._environment,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                if path is None:
                    socket.create_connection(("127.0.0.1", self.port), 1).close()
                else:
                    urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} did not start: {self._command}") from None
                time.sleep(0.05)

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(60)

    def kill(self) -> None:
        """End it and its workers at once."""
        for pid in self._processes():
            os.kill(pid, signal.SIGKILL)
        self.process.wait(60)

    def _processes(self) -> list[int]:
        found, left = [], [self.process.pid]
        while left:
            pid = left.pop()
            found.append(pid)
            # Handler processes are children of the threads that watch them.
            for task in Path(f"/proc/{pid}/task").iterdir():
                left += [int(child) for child in (task / "children").read_text().split()]
        return found

    def cpu_seconds(self) -> float:
        """User and system time of all its processes."""
        return sum(self.user_and_system_seconds())

    def user_and_system_seconds(self) -> tuple[float, float]:
        """The two parts of `cpu_seconds`."""
        user = system = 0
        for pid in self._processes():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            user += int(fields[11])
            system += int(fields[12])
        return user / TICK, system / TICK

    def forget_peak(self) -> None:
        """Have `VmHWM` begin anew at what is held now."""
        for pid in self._processes():
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def memory(self, key: str) -> int:
        """Bytes of `VmRSS` or `VmHWM` of the process that holds most."""
        most = 0
        for pid in self._processes():
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith(key + ":"):
                    most = max(most, int(line.split()[1]) * 1024)
        return most

    def reset_peak(self) -> None:
        """Forget the peak of memory that was seen so far."""
        for pid in self._processes():
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def bare(
    answer_bytes: int,
    *,
    echo: bool = False,
    busy_ns: int = 0,
    tls: tuple[Path, Path] | None = None,
) -> LoadedServer:
    """The limit: `bare.c`, compiled when it is not yet; see there for `echo` and `busy_ns`.

    Args:
        answer_bytes: The bytes of an answer's tensor.
        tls: The files of its key and its certificate; None serves without TLS.
    """
    kind = "-tls" if tls else ""
    binary = Path(tempfile.gettempdir()) / f"ksrv-bare{kind}-{os.getuid()}"
    source = HERE / "bare.c"
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        with_tls = ["-DWITH_TLS", "-lssl", "-lcrypto"] if tls else []
        subprocess.run(["cc", "-O2", "-o", str(binary), str(source), *with_tls], check=True)
    more = ["echo"] if echo else [str(busy_ns)] if busy_ns else []
    if tls:
        more = [str(file) for file in tls]
    name = f"bare C busy for {busy_ns / 1000:.1f} us" if busy_ns else f"bare C{kind}"
    return LoadedServer(name, [str(binary), "{port}", str(answer_bytes), *more])


def ksrv(models: Path, worker: str, name: str, **environment: str) -> LoadedServer:
    """ksrv with a gunicorn worker class."""
    command = [
        sys.executable, "-m", "ksrv", "serve", str(models), "--http", "127.0.0.1:{port}",
        "--grpc", "off", "--drain-delay", "0", "--worker-class", worker,
    ]  # fmt: skip
    return LoadedServer(name, command, environment)
