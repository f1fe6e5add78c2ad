"""Count the instructions of one request on ksrv's core paths, and compare them with the stored counts.

    make guard             # fails if a path takes 3 % more instructions than benchmarks/guard/baseline.json says
    make guard-baseline    # writes that file again

callgrind counts them, in user space, in the worker and in its handler processes. The counts do not depend on other
work of the machine: the server's clock advances when it is read (`benchmarks/grpc/counted_clock.c`), and the only client
sends a request when all threads of the server sleep. Chance (which thread wakes first) can only add instructions, so a
path's figure is the least of several windows, and a path above its tolerance is counted again, by another server.

Counts depend on the compiler, the C library, Python and numpy: the file names theirs, and nothing is compared on a
machine that has others.
"""

import argparse
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "load"))
sys.path.insert(0, str(Path(__file__).parent.parent / "grpc"))
from bench import rest_body
from comparison import TOLERANCE, worse
from connections import Connection, Http1Connection, Http2Connection
from grpc_load import METHOD, request_of
from instructions import descendants, instructions, profiled
from servers import free_port

BASELINE = Path(__file__).parent / "baseline.json"
WITHOUT_PIDFD = """
import os

_ends = []


def pidfd_open(pid, flags=0):
    reading, writing = os.pipe()
    _ends.append(writing)
    return reading


os.pidfd_open = pidfd_open
"""
"""sitecustomize.py of the server: valgrind 3.19 knows no pidfd_open. No handler process dies while it is counted."""

WINDOWS = 15
"""How often a path is counted; its figure is the least count. Windows are short, so that some are free of chance."""

HANDLER = """
from ksrv import BaseHandler


class Answer(BaseHandler):
    def inference(self, x):
        return {"y": x if x.ndim == 2 else x.reshape(len(x), -1)[:, :10]}


class Words(BaseHandler):
    def inference(self, x):
        for index in range(1024):
            yield f"word{index} "
"""
MODEL = """
handler: handler.py:{handler}
timeout_ms: 3600000
inputs: [{{name: x, datatype: FP32, shape: [{inputs}]}}]
outputs: [{{name: y, datatype: {outputs}}}]
executor: {executor}
"""
MODELS = {
    "w1": ("-1, 16", "FP32, shape: [-1, 16]", "inline", "Answer"),
    "w1-process": ("-1, 16", "FP32, shape: [-1, 16]", "process", "Answer"),
    "w2": ("-1, 224, 224, 3", "FP32, shape: [-1, 10]", "inline", "Answer"),
    "words": ("-1, 16", "BYTES, shape: [-1]", "inline", "Words"),
}

BINARY, BINARY_HEADER = rest_body("W1")
LARGE, LARGE_HEADER = rest_body("W2")
JSON = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16}]}
).encode()
INSTANCES = json.dumps({"instances": [[1.0] * 16]}).encode()


def jpegs() -> tuple[bytes, int]:
    """Return a request of four JPEGs of 320x240 (quality 90, 4:2:0), and the length of its JSON."""
    y, x = np.mgrid[0:240, 0:320]
    planes = [128 + 100 * np.sin(x / (7 + i)) * np.cos(y / (5 + i)) for i in range(3)]
    noise = np.random.default_rng(0).normal(0, 8, (240, 320, 3))
    picture = (np.stack(planes, -1) + noise).clip(0, 255).astype(np.uint8)
    image = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()
    raw = 4 * (len(image).to_bytes(4, "little") + image)
    size = {"binary_data_size": len(raw)}
    entry = {"name": "x", "shape": [4], "datatype": "BYTES", "parameters": size}
    asked = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    header = json.dumps(asked).encode()
    return header + raw, len(header)


@dataclass(frozen=True)
class CorePath:
    """A request whose instructions are counted.

    Attributes:
        connect: Makes a connection that sends it, of the ports of HTTP and gRPC.
        warming: How many are sent before any is counted: a batch is run on the thread that received it once an instance has
            earned the credit for it, by 2,000 short runs.
        requests: How many of them a window has.
        answer: Bytes that each answer contains.
        parts: How many parts each answer has; the figure is that of one.
    """

    connect: Callable[[int, int], Connection]
    warming: int = 2200
    requests: int = 20
    answer: bytes = np.ones(16, np.float32).tobytes()
    parts: int = 1


def _rest(
    model: str, body: bytes, header: int, path: str = "/v2/models/{}/infer"
) -> Callable[[int, int], Connection]:
    fields = [("inference-header-content-length", str(header))] if header else []
    fields += [("accept", "text/event-stream")] if model == "words" else []
    path = path.format(model)
    return lambda http, grpc: Http1Connection(http, path, fields, body)


def _grpc(http: int, grpc: int) -> Connection:
    message = request_of("W1")
    fields = [("content-type", "application/grpc"), ("te", "trailers")]
    return Http2Connection(grpc, METHOD, fields, b"\0" + len(message).to_bytes(4, "big") + message)


PATHS = {
    "REST over HTTP/1.1": CorePath(_rest("w1", BINARY, BINARY_HEADER)),
    "JSON": CorePath(
        _rest("w1", JSON, 0), answer=b"1.0,1.0"
    ),
    "instances": CorePath(
        _rest("w1", INSTANCES, 0, "/v1/models/{}:predict"), answer=b"1.0,1.0"
    ),
    "602 KB over REST": CorePath(
        _rest("w2", LARGE, LARGE_HEADER), answer=b'"shape":[1,10]'
    ),
    "gRPC": CorePath(_grpc),
    "handler process": CorePath(_rest("w1-process", BINARY, BINARY_HEADER)),
    "streamed word": CorePath(
        _rest("words", JSON, 0), warming=20, requests=2, answer=b'["word1023 "]', parts=1024
    ),
    "four JPEGs": CorePath(
        _rest("w2", *jpegs()), warming=4, requests=2, answer=b'"shape":[4,10]'
    ),
}  # fmt: skip


def toolchain() -> dict[str, str]:
    """Return the versions of what the counts depend on beside ksrv itself."""
    compiler = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True)
    with suppress(OSError):
        vectors = "avx2" if "avx2" in Path("/proc/cpuinfo").read_text() else "no avx2"
    return {
        "machine": f"{platform.machine()}, {vectors}",
        "g++": compiler.stdout.strip(),
        "C library": " ".join(platform.libc_ver()),
        "Python": platform.python_version(),
        "numpy": np.__version__,
        "OpenCV": cv2.__version__,
    }


class Sleepers:
    """Tells when no thread of some processes runs."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._files: dict[str, int] = {}

    def wait(self) -> None:
        """Return once every thread sleeps."""
        while not all(self._sleeps(pid, task) for pid in self._pids for task in tasks_of(pid)):
            time.sleep(0.0002)

    def _sleeps(self, pid: int, task: str) -> bool:
        if task not in self._files:
            self._files[task] = os.open(f"/proc/{pid}/task/{task}/stat", os.O_RDONLY)
        try:
            found = os.pread(self._files[task], 512, 0)
        except ProcessLookupError:  # a thread that has ended
            os.close(self._files.pop(task))
            return True
        return found.rpartition(b") ")[2][:1] == b"S"


def tasks_of(pid: int) -> list[str]:
    """Return the threads of a process."""
    return os.listdir(f"/proc/{pid}/task")


class Counted:
    """ksrv under callgrind, which counts what its worker and its handler processes run."""

    def __init__(self, folder: Path, worker: int, http: int, grpc: int) -> None:
        self._folder = folder
        self._pids = descendants(worker)
        self._sleepers = Sleepers(self._pids)
        self.ports = http, grpc

    def control(self, asked: str) -> None:
        """Have callgrind of each process do something."""
        running = [
            subprocess.Popen(
                ["callgrind_control", asked, str(pid)],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for pid in self._pids
        ]  # fmt: skip
        if sum(process.wait() for process in running):
            raise RuntimeError(f"callgrind_control {asked} failed")

    def count(self, path: CorePath, connection: Connection) -> float:
        """Return the instructions of one request of a window."""
        self.control("--zero")
        for _ in range(path.requests):
            self._ask(path, connection)
        self.control("--dump")
        return sum(map(self._written, self._pids)) / path.requests / path.parts

    def _ask(self, path: CorePath, connection: Connection) -> None:
        self._sleepers.wait()
        if path.answer not in (answer := connection.ask()):
            raise RuntimeError(f"the server answered {answer[:500]!r}")

    def _written(self, pid: int) -> int:
        dumps = self._folder.glob(f"counts.{pid}.*")
        latest = max(dumps, key=lambda dump: int(dump.suffix[1:]))
        return sum(instructions(latest).values())

    def least(self, path: CorePath) -> float:
        """Return the least instructions of one request in several windows."""
        connection = path.connect(*self.ports)
        for _ in range(path.warming):
            connection.ask()
        found = min(self.count(path, connection) for _ in range(WINDOWS))
        connection.socket.close()
        return found


def wait_until_ready(port: int, output: Path) -> None:
    """Wait until every model is loaded.

    Raises:
        RuntimeError: That took over two minutes; says what the server wrote last.
    """
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=60).close()
            return
        time.sleep(0.2)
    raise RuntimeError(f"ksrv does not become ready under valgrind: {output.read_text()[-2000:]}")


def let_no_wait_end(clock: Path) -> None:
    """Have waits with a time limit take for ever from now on.

    One that ended during a run would move the clock on to its end: the run would seem long, and its instance would lose
    the credit for which it runs batches on the thread that received them.
    """
    with clock.open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("=q", 1_000_000))


@contextmanager
def counted_server() -> Iterator[Counted]:
    """Run ksrv under callgrind with the models of the core paths."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name, (inputs, outputs, executor, handler) in MODELS.items():
            (folder / "models" / name).mkdir(parents=True)
            text = MODEL.format(inputs=inputs, outputs=outputs, executor=executor, handler=handler)
            (folder / "models" / name / "model.yaml").write_text(text)
            (folder / "models" / name / "handler.py").write_text(HANDLER)
        ports = free_port(), free_port()
        command = [
            sys.executable, "-m", "ksrv", "serve", f"{folder}/models",
            "--http", f"127.0.0.1:{ports[0]}", "--grpc", f"127.0.0.1:{ports[1]}",
        ]  # fmt: skip
        (folder / "sitecustomize.py").write_text(WITHOUT_PIDFD)
        os.environ["PYTHONPATH"] = str(folder)
        with profiled(command, folder / "counts", list(ports)) as worker:
            wait_until_ready(ports[0], folder / "counts" / "output")
            let_no_wait_end(folder / "counts" / "clock")
            server = Counted(folder / "counts", worker, *ports)
            server.control("--instr=on")
            yield server


def count_paths(names: Sequence[str], before: dict[str, int]) -> dict[str, int]:
    """Return the instructions of a request by path, and print them beside those before."""
    found = {}
    with counted_server() as server:
        for name in names:
            found[name] = round(server.least(PATHS[name]))
            change = f"  {found[name] / before[name] - 1:+.1%}" if name in before else ""
            print(f"{name:20}{found[name]:14,} instructions a request{change}", flush=True)
    return found


def main() -> int:
    """Print each path's instructions, and compare or write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("paths", nargs="*", choices=[*PATHS, []], help="all, if none is named")
    parser.add_argument("--write", action="store_true", help="store the counts as the baseline")
    given = parser.parse_args()
    if not shutil.which("valgrind"):
        print("make guard needs valgrind (Debian: apt-get install valgrind)")
        return 1
    here = toolchain()
    stored = json.loads(BASELINE.read_text()) if BASELINE.exists() else {"toolchain": {}}
    differs = [name for name in here if here[name] != stored["toolchain"].get(name)]
    if differs and not given.write:
        for name in differs:
            print(
                f"{name}: the baseline was counted with {stored['toolchain'].get(name)}, here is {here[name]}"
            )
        print("nothing is compared: make guard-baseline writes counts of this machine")
        return 0
    before = stored.get("instructions", {})
    names = given.paths or list(PATHS)
    if given.write:
        kept = before if not differs else {}
        written = kept | count_paths(names, before)
        BASELINE.write_text(
            json.dumps({"toolchain": here, "instructions": written}, indent=2) + "\n"
        )
        return 0
    slower = worse(lambda asked: count_paths(asked, before), names, before)
    for name in slower:
        print(
            f"{name} takes over {TOLERANCE:.0%} more instructions than its baseline: find the cause "
            "(benchmarks/grpc/instructions.py counts by library), or run make guard-baseline and say why"
        )
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
