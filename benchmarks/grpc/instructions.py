"""The instructions that a call of W1 takes, by the library that runs them.

    python benchmarks/grpc/instructions.py [--calls 3000] [LOAD ...]

callgrind counts them; they hardly depend on other work of the machine. Under valgrind a program runs some sixty times
slower, so it gets a clock that does not depend on that (`counted_clock.c`). By the machine's clock ksrv would believe
that its handler is slow, hand each call to the model's thread, and send each answer alone. Needs valgrind,
h2load and cc.
"""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "load"))
from bench import HERE, build, rest_body
from grpc_load import METHOD, request_of
from servers import free_port, write_models

LOADS = {
    "the bare server, 16 streams": ("bare", "-c1", "-m16"),
    "gRPC, 16 streams": ("grpc", "-c1", "-m16"),
    "gRPC, one stream": ("grpc", "-c1", "-m1"),
    "REST over HTTP/1.1, 16 connections": ("http", "-c16", "--h1"),
}
"""For each load the server, and the arguments of h2load."""

PARTS = {
    "libnghttp2": r"libnghttp2",
    "libc, libstdc++": r"/(libc|libm|libstdc\+\+|libgcc_s|ld-linux[-\w]*)[-.\d]*\.so",
    "native core": r"/_core\.|/bare$",
    "Python, numpy": r"libpython|/python[\d.]*$|numpy|\.cpython-",
}
"""Patterns of the object files of each part; the first match counts. The counted clock belongs to no part."""

COST = re.compile(r"^[+\-*\d]\S* (\d+)")
NAMED = re.compile(r"^(c?ob)=\((\d+)\)(?: (.*))?$")


def wait_for(port: int) -> None:
    """Wait until somebody accepts connections."""
    while True:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.2)


def descendants(pid: int) -> list[int]:
    """Return a process and the processes that its threads have started."""
    found = [pid]
    with suppress(OSError):  # a process that has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += descendants(int(child))
    return found


def serving_process(started: int) -> int:
    """Return the process that serves: a worker of the started process, or the started process."""
    workers = Path(f"/proc/{started}/task/{started}/children").read_text().split()
    return int(workers[-1]) if workers else started


@contextmanager
def profiled(command: list[str], folder: Path, ports: list[int]) -> Iterator[int]:
    """Run a server under callgrind, which counts nothing yet; the serving process is yielded."""
    folder.mkdir()
    clock = folder / "counted_clock.so"
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", HERE / "counted_clock.c", "-o", clock], check=True
    )
    environment = os.environ | {"LD_PRELOAD": str(clock), "COUNTED_CLOCK": f"{folder}/clock"}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            ["valgrind", "--tool=callgrind", "--trace-children=yes", "--instr-atstart=no",
             f"--callgrind-out-file={folder}/counts.%p", *command],
            env=environment, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        for port in ports:
            wait_for(port)
        yield serving_process(process.pid)
    finally:  # at once: a drain would take minutes by the counted clock
        for child in descendants(process.pid):
            os.kill(child, signal.SIGKILL)
        process.wait()


def instructions(counts: Path) -> Counter[str]:
    """Return the instructions by object, out of a file of callgrind's."""
    names: dict[str, str] = {}
    found: Counter[str] = Counter()
    inside, of_call = "", False
    for line in counts.read_text().splitlines():
        if named := NAMED.match(line):
            kind, number, name = named.groups()
            names.setdefault(number, name)
            inside = names[number] if kind == "ob" else inside
        elif line.startswith("calls="):
            of_call = True  # the next line is what the callee takes, which is counted there
        elif cost := COST.match(line):
            if not of_call:
                found[inside] += int(cost[1])
            of_call = False
    return found


def count(pid: int, folder: Path, calls: int, options: list[str], address: str) -> dict[str, float]:
    """Make calls and count the second half; returns the instructions of a call by part."""

    def load() -> None:
        done = subprocess.run(
            ["h2load", "-n", str(calls), "-w", "30", "-W", "30", *options, address],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert f"{calls} 2xx" in done.stdout, done.stdout

    def control(*asked: str) -> None:
        subprocess.run(["callgrind_control", *asked, str(pid)], capture_output=True, check=True)

    load()
    control("--zero")
    control("--instr=on")
    load()
    control("--instr=off")
    control("--dump")
    made = max(folder.glob(f"counts.{pid}.*"), key=lambda path: int(path.suffix[1:]))
    found = dict.fromkeys(PARTS, 0.0)
    for name, number in instructions(made).items():
        part = next((part for part, of in PARTS.items() if re.search(of, name)), None)
        if part is not None:
            found[part] += number / calls
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loads", nargs="*", choices=[*LOADS, []], help="all, if none is named")
    parser.add_argument("--calls", type=int, default=3000)
    given = parser.parse_args()
    message = request_of("W1")
    rest, header = rest_body("W1")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_models(folder / "models")
        (folder / "call").write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
        (folder / "request").write_bytes(rest)
        grpc = [
            "-d",
            f"{folder}/call",
            "-H",
            "content-type: application/grpc",
            "-H",
            "te: trailers",
        ]
        http = ["-d", f"{folder}/request", "-H", f"inference-header-content-length: {header}"]
        bare_port, http_port, grpc_port = free_port(), free_port(), free_port()
        bare = [str(build(folder, "bare")), str(bare_port), "W1"]
        ksrv = [
            sys.executable, "-m", "ksrv", "serve", f"{folder}/models", "--http",
            f"127.0.0.1:{http_port}", "--grpc", f"127.0.0.1:{grpc_port}", "--max-connections", "64",
        ]  # fmt: skip
        bare_pid = stack.enter_context(profiled(bare, folder / "of-bare", [bare_port]))
        ksrv_pid = stack.enter_context(profiled(ksrv, folder / "of-ksrv", [http_port, grpc_port]))
        targets = {
            "bare": (bare_pid, "of-bare", grpc, f"http://127.0.0.1:{bare_port}{METHOD}"),
            "grpc": (ksrv_pid, "of-ksrv", grpc, f"http://127.0.0.1:{grpc_port}{METHOD}"),
            "http": (ksrv_pid, "of-ksrv", http, f"http://127.0.0.1:{http_port}/v2/models/w1/infer"),
        }
        print(f"{'':36}" + "".join(f"{part:>17}" for part in [*PARTS, "all"]))
        for name in given.loads or LOADS:
            where, *options = LOADS[name]
            pid, counts, body, address = targets[where]
            parts = count(pid, folder / counts, given.calls, [*options, *body], address)
            shown = [*parts.values(), sum(parts.values())]
            print(f"{name:36}" + "".join(f"{number:17,.0f}" for number in shown), flush=True)


if __name__ == "__main__":
    main()
