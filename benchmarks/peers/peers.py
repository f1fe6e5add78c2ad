"""The servers of the comparison: how each is installed, started and asked, and what its processes take.

The best reasonable configuration of a peer on two cores is what its command and its file in `apps/` say.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import calls
import numpy as np
from calls import Call

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENVIRONMENTS = ROOT / ".venv-peers"
TICK = os.sysconf("SC_CLK_TCK")
ALIKE = ("numpy", "onnxruntime", "opencv-python-headless")
"""Packages of the models, in every environment."""


@dataclass(frozen=True)
class Peer:
    """A server.

    Attributes:
        name: Its name in tables.
        app: Its file in `apps/`, which is all its user writes.
        packages: The packages to install.
        command: How it is started. {python}, {bin}, {http}, {grpc}, {third} (another free port), {app}, {apps}, {folder} (for its
            files) are filled in; `tls` is appended if the server speaks TLS.
        tls: The options that have it speak TLS, with {key} and {certificate}.
        ready: The path that answers 200 once it serves.
        rest: Makes the request of a workload over HTTP, with this input; None if it has none.
        grpc: Makes the call of a workload over gRPC, with this input.
        grpc_tls: Whether its gRPC speaks TLS with these options.
        prepare: Writes what it needs into its folder, before it starts.
        about: Its configuration, in a sentence.
    """

    name: str
    app: str
    packages: tuple[str, ...]
    command: tuple[str, ...]
    ready: str
    rest: Callable[[str, np.ndarray], Call | None]
    about: str
    grpc: Callable[[str, np.ndarray], Call | None] = lambda workload, x: None
    tls: tuple[str, ...] = ()
    grpc_tls: bool = True
    prepare: Callable[["Peer", Path, int], None] | None = None

    @property
    def folder(self) -> Path:
        """Its environment."""
        return ENVIRONMENTS / self.app.split("_")[0]

    @property
    def python(self) -> Path:
        """The interpreter that runs it."""
        return self.folder / "bin/python"

    def install(self) -> str | None:
        """Install it, unless it is there; returns why that failed."""
        done = self.folder / ".installed"
        if done.exists():
            return None
        python, pip = (
            [sys.executable, "-m"],
            ["pip", "-q", "--disable-pip-version-check", "--python"],
        )
        made = [*python, "venv", "--clear", "--without-pip", str(self.folder)]
        subprocess.run(made, check=True)
        install = [*python, *pip, str(self.python), "install", *ALIKE, *self.packages]
        found = subprocess.run(install, capture_output=True, text=True)
        if found.returncode:
            return str(found.stderr.strip().splitlines()[-1])
        done.touch()
        return None

    def megabytes(self) -> int:
        """Return the size of its environment; the packages in `ALIKE` take some 250 MB of it."""
        # ksrv itself runs from the tree.
        folders = [self.folder, ROOT / "ksrv"] if self.name == "ksrv" else [self.folder]
        found = subprocess.run(["du", "-scm", *folders], capture_output=True, text=True, check=True)
        return int(found.stdout.splitlines()[-1].split()[0])

    def lines(self) -> int:
        """Return how many lines its user writes, without empty lines and comments."""
        text = (HERE / "apps" / self.app).read_text()
        return sum(
            bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines()
        )


def free_port() -> int:
    """Return a port that nobody listens on, below the ports that the system gives to clients."""
    while True:
        port = random.randrange(15000, 32000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _raw(workload: str, x: np.ndarray) -> Call:
    return calls.raw(workload, x, f"/{workload.lower()}")


def _base64(workload: str, x: np.ndarray) -> Call:
    return calls.base64_json(workload, x, f"/{workload.lower()}")


def _ksrv_rest(workload: str, x: np.ndarray) -> Call:
    model = workload.lower()
    if workload == "W6":
        return calls.predict(x, f"/v1/models/{model}:predict")
    if workload == "W7":
        return calls.generate(f"/v2/models/{model}/generate_stream")
    return calls.v2_binary(x, f"/v2/models/{model}/infer")


def _grpc(workload: str, x: np.ndarray) -> Call | None:
    return calls.grpc_call(x, workload.lower()) if workload != "W7" else None


def _kserve_rest(workload: str, x: np.ndarray) -> Call | None:
    if workload == "W6":
        return calls.predict(x, f"/v1/models/{workload.lower()}:predict")
    # Its REST decodes elements of BYTES as UTF-8, which pictures are not.
    return _ksrv_rest(workload, x) if workload not in ("W3", "W7") else None


def _mlserver_rest(workload: str, x: np.ndarray) -> Call | None:
    # Its REST reads JSON alone: no pictures, and 64 MiB would be some 300 MB of text.
    if workload in ("W3", "W4", "W7"):
        return None
    return calls.v2_json(x, f"/v2/models/{workload.lower()}/infer")


def _mlserver_grpc(workload: str, x: np.ndarray) -> Call | None:
    # It makes a Python list of each tensor, which takes longer than a round for 64 MiB.
    return _grpc(workload, x) if workload != "W4" else None


def _triton_rest(workload: str, x: np.ndarray) -> Call | None:
    path = f"/v2/models/{workload.lower()}/infer"
    if workload == "W6":
        return calls.v2_json(x, path)
    return calls.v2_binary(_triton_rows(workload, x), path) if workload != "W7" else None


def _triton_grpc(workload: str, x: np.ndarray) -> Call | None:
    return _grpc(workload, _triton_rows(workload, x))


def _triton_rows(workload: str, x: np.ndarray) -> np.ndarray:
    return x.reshape(8, 1) if workload == "W3" else x


def _torchserve_rest(workload: str, x: np.ndarray) -> Call:
    return calls.raw(workload, x, f"/predictions/{workload.lower()}")


TORCHSERVE = """
inference_address={scheme}://127.0.0.1:{http}
management_address=http://127.0.0.1:{grpc}
metrics_address=http://127.0.0.1:{third}
grpc_inference_port={fourth}
grpc_management_port={fifth}
model_store={folder}
load_models=all
disable_token_authorization=true
max_request_size=200000000
max_response_size=200000000
default_workers_per_model=1
default_response_timeout=120
private_key_file={key}
certificate_file={certificate}
"""


def _write_torchserve(peer: Peer, folder: Path, grpc: int) -> None:
    for workload in calls.WORKLOADS:
        config = folder / f"{workload}.yaml"
        config.write_text(
            "minWorkers: 1\nmaxWorkers: 1\nmaxBatchDelay: 1\n"
            f"batchSize: {8 if workload == 'W5' else 1}\n"
        )
        subprocess.run(
            [peer.folder / "bin/torch-model-archiver", "--model-name", workload.lower(), "--version", "1",
             "--handler", HERE / "apps" / peer.app, "--config-file", config, "--export-path", folder],
            check=True, capture_output=True,
        )  # fmt: skip


def _own_dependencies() -> tuple[str, ...]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return tuple(project["dependencies"])


PEERS = [
    Peer(
        "ksrv", "ksrv_app.py", _own_dependencies(), ("{python}", "{app}", "{http}", "{grpc}"), "/v2/health/ready",
        _ksrv_rest, "defaults; W3 and W5 batch, W5 has 2 instances", _grpc, tls=("{key}", "{certificate}"),
    ),
    Peer(
        "FastAPI", "fastapi_app.py", ("fastapi", "uvicorn[standard]"),
        ("{python}", "-m", "uvicorn", "fastapi_app:app", "--app-dir", "{apps}", "--port", "{http}",
         "--workers", "2", "--no-access-log", "--log-level", "warning"),
        "/ready", _raw, "uvicorn with uvloop and httptools, 2 workers, no access log",
        tls=("--ssl-keyfile", "{key}", "--ssl-certfile", "{certificate}"),
    ),
    Peer(
        "Falcon", "falcon_app.py", ("falcon", "gunicorn"),
        ("{python}", "-m", "gunicorn", "falcon_app:app", "--chdir", "{apps}", "--bind", "127.0.0.1:{http}",
         "--workers", "2", "--worker-class", "gthread", "--threads", "8", "--keep-alive", "75", "--log-level", "warning"),
        "/ready", _raw, "gunicorn, 2 workers with 8 threads, no access log",
        tls=("--keyfile", "{key}", "--certfile", "{certificate}"),
    ),
    Peer(
        "LitServe", "litserve_app.py", ("litserve",), ("{python}", "{app}", "{http}"), "/health", _base64,
        "a worker for each API, 2 API servers; tensors as base64 in JSON", tls=("{key}", "{certificate}"),
    ),
    Peer(
        "BentoML", "bentoml_app.py", ("bentoml", "fastapi"),
        ("{bin}/bentoml", "serve", "bentoml_app:Work", "--working-dir", "{apps}", "--port", "{http}", "--host", "127.0.0.1"),
        "/ready", _raw, "2 workers of the service, 1 of the network, which batches",
        tls=("--ssl-keyfile", "{key}", "--ssl-certfile", "{certificate}"),
    ),
    Peer(
        "MLServer", "mlserver_app.py", ("mlserver",), ("{python}", "{app}", "{http}", "{grpc}", "{third}"),
        "/v2/health/ready", _mlserver_rest, "no parallel workers: with 2 a tensor is pickled twice", _mlserver_grpc,
    ),
    Peer(
        "KServe", "kserve_app.py", ("kserve",),
        ("{python}", "{app}", "--http_port", "{http}", "--grpc_port", "{grpc}",
         "--grpc_max_send_message_length", "1073741824", "--grpc_max_receive_message_length", "1073741824"),
        "/v2/health/ready", _kserve_rest, "1 worker, no access log; it has no batching, and no TLS for gRPC", _grpc,
        tls=("--ssl_keyfile", "{key}", "--ssl_certfile", "{certificate}"), grpc_tls=False,
    ),
    Peer(
        "Ray Serve", "ray_app.py", ("ray[serve]",), ("{python}", "{app}", "{http}"), "/ready", _raw,
        "2 replicas behind the HTTP proxy",
    ),
    Peer(
        "Triton", "pytriton_app.py", ("nvidia-pytriton", "numpy<2"), ("{python}", "{app}", "{http}", "{grpc}", "{third}"),
        "/v2/models/w8/ready", _triton_rest, "PyTriton's Python backend, dynamic batching", _triton_grpc,
    ),
    Peer(
        "TorchServe", "torchserve_handler.py", ("torchserve", "torch==2.13.0", "torch-model-archiver", "captum", "pyyaml"),
        ("{bin}/torchserve", "--start", "--foreground", "--ts-config", "{folder}/config.properties", "--disable-token-auth"),
        "/ping", _torchserve_rest, "a worker for each model, W5 in batches of 8",
        tls=("https",), prepare=_write_torchserve,
    ),
]  # fmt: skip


@dataclass
class RunningServer:
    """A server whose processes are found by a mark in their environment, whoever has started them.

    Attributes:
        peer: Which server it is.
        certificate: The file of its certificate; None if it speaks cleartext.
        http: The port of HTTP.
        grpc: The port of gRPC.
        start_seconds: From the start of its process to its first ready answer.
    """

    peer: Peer
    certificate: str | None
    http: int = field(default_factory=free_port)
    grpc: int = field(default_factory=free_port)
    start_seconds: float = 0.0

    def start(self, models: Path, key: str | None = None) -> None:
        """Start it and wait until it is ready.

        Raises:
            RuntimeError: It ended, or is not ready after five minutes; says what it printed last.
        """
        self._mark = f"PEER_BENCH={uuid.uuid4().hex}"
        self._folder = Path(tempfile.mkdtemp(prefix="ksrv-peer-"))
        values = {
            "python": self.peer.python, "bin": self.peer.python.parent, "http": self.http, "grpc": self.grpc,
            "third": free_port(), "fourth": free_port(), "fifth": free_port(), "folder": self._folder,
            "app": HERE / "apps" / self.peer.app, "apps": HERE / "apps", "key": key, "certificate": self.certificate,
            "scheme": "https" if self.certificate else "http",
        }  # fmt: skip
        if self.peer.prepare:
            self.peer.prepare(self.peer, self._folder, self.grpc)
            text = TORCHSERVE if self.certificate else TORCHSERVE.split("private_key_file")[0]
            (self._folder / "config.properties").write_text(text.format(**values))
        command = [*self.peer.command, *(self.peer.tls if key and not self.peer.prepare else ())]
        name, _, value = self._mark.partition("=")
        path = os.pathsep.join([str(HERE), str(HERE / "apps")])
        variables = {
            name: value,
            "PYTHONPATH": path,
            "WORK_MODELS": str(models),
            "PYTHONUNBUFFERED": "1",
        }
        variables["PATH"] = f"{self.peer.python.parent}{os.pathsep}{os.environ['PATH']}"
        # PyTriton's stub links libpython, and would find that of the system, which may be older than its modules.
        variables["LD_LIBRARY_PATH"] = str(sysconfig.get_config_var("LIBDIR"))
        began = time.monotonic()
        with (self._folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [part.format(**values) for part in command], cwd=self._folder, stdout=output,
                stderr=output, env=os.environ | variables, start_new_session=True,
            )  # fmt: skip
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > began + 300:
                said = (self._folder / "output").read_text(errors="replace")[-1500:]
                self.stop()
                raise RuntimeError(f"{self.peer.name} does not start: {said}")
            time.sleep(0.02)
        self.start_seconds = time.monotonic() - began

    def _ready(self) -> bool:
        import ssl

        trust = None
        if self.certificate:
            trust = ssl._create_unverified_context()
        scheme = "https" if self.certificate else "http"
        try:
            address = f"{scheme}://127.0.0.1:{self.http}{self.peer.ready}"
            urllib.request.urlopen(address, timeout=5, context=trust).close()
        except (OSError, urllib.error.HTTPError):
            return False
        return True

    def processes(self) -> list[int]:
        """Return its processes."""
        found = []
        for entry in os.listdir("/proc"):
            with suppress(OSError):
                if (
                    entry.isdigit()
                    and self._mark.encode() in Path(f"/proc/{entry}/environ").read_bytes()
                ):
                    found.append(int(entry))
        return found

    def cpu_seconds(self) -> float:
        """Return user and system time of all its processes so far."""
        ticks = 0
        for pid in self.processes():
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / TICK

    def peak_megabytes(self) -> int:
        """Return the peaks of resident memory of its processes, added up."""
        kilobytes = 0
        for pid in self.processes():
            with suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    kilobytes += int(line.split()[1]) if line.startswith("VmHWM:") else 0
        return kilobytes // 1024

    def stop(self) -> None:
        """End all its processes."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
