"""ksrv's gRPC server beside its limit and beside grpcio, in one run.

    python benchmarks/grpc/bench.py [--rounds 5] [--json FILE] [ROW ...]

`bare` is a single-threaded C server on libnghttp2 that validates nothing (`bare.c`); `native` and `grpcio` are
`ksrv serve` with `--grpc-server` native and grpcio; the handler returns its tensor (W1, W4) or ten values (W2). The
client is nghttp's h2load, which writes frames of 16 KiB, as Go's and Java's clients do, and many calls in one packet; in
the rows of `grpcio` it is grpcio, whose core writes frames as large as the server takes. All servers are up at once, and a round gives each in turn the same load. Figures are
CPU time of all the server's processes for a call, the median over the rounds, and the median of the ratios to `bare`
within a round. Before the load every server is asked once, and its answer is looked at. Only ratios mean anything.
"""

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "load"))
from grpc_load import METHOD, OPTIONS, processes_of, request_of
from servers import free_port, write_models

from ksrv.protocol.protobuf import message_class
from ksrv.testing import Server

HERE = Path(__file__).parent
SERVERS = ("bare", "native", "grpcio")


@dataclass(frozen=True)
class Row:
    """One load: calls of a workload, on so many connections with so many streams each."""

    workload: str
    connections: int
    streams: int
    calls: int
    client: str = "h2load"


ROWS = {
    "W1-16-streams": Row("W1", 1, 16, 20_000),
    "W1-1-stream": Row("W1", 1, 1, 6_000),
    "W1-16-connections": Row("W1", 16, 1, 20_000),
    "W2-8-streams": Row("W2", 1, 8, 800),
    "W4-1-stream": Row("W4", 1, 1, 8),
    "W1-16-grpcio": Row("W1", 1, 16, 3_000, "grpcio"),
    "W1-1-grpcio": Row("W1", 1, 1, 1_500, "grpcio"),
    "W2-8-grpcio": Row("W2", 1, 8, 200, "grpcio"),
}


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process and its descendants."""
    threads = (path for one in processes_of(pid) for path in Path(f"/proc/{one}/task").iterdir())
    return sum(int((path / "schedstat").read_text().split()[0]) for path in threads) / 1e9


def build(folder: Path) -> Path:
    """Compile the limit."""
    made = folder / "bare"
    subprocess.run(["cc", "-O2", HERE / "bare.c", "-lnghttp2", "-o", made], check=True)
    return made


def start_bare(program: Path, workload: str, stack: ExitStack) -> tuple[str, int]:
    port = free_port()
    process = subprocess.Popen([program, str(port), workload])
    stack.callback(process.wait)
    stack.callback(process.terminate)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            continue
        return f"127.0.0.1:{port}", process.pid


def ask(address: str, workload: str) -> None:
    """Make one call and look at its answer: h2load counts refusals as answers."""
    response = message_class("inference.ModelInferResponse")
    with grpc.insecure_channel(address, OPTIONS) as channel:
        found = response.FromString(channel.unary_unary(METHOD)(request_of(workload), timeout=60))
    assert found.outputs[0].name == "y"
    assert len(np.frombuffer(found.raw_output_contents[0], np.float32)) >= 10


def call_with_grpcio(address: str, row: Row) -> None:
    """Keep so many calls of one channel under way as the row has streams."""
    message, room = request_of(row.workload), threading.Semaphore(row.streams)
    with grpc.insecure_channel(address, OPTIONS) as channel:
        infer = channel.unary_unary(METHOD)
        calls = []
        for _ in range(row.calls):
            room.acquire()
            calls.append(infer.future(message, timeout=60))
            calls[-1].add_done_callback(lambda _: room.release())
        for call in calls:
            call.result()


def load(address: str, pid: int, row: Row, body: Path) -> float:
    """Give a server the load of a row; returns its CPU seconds for a call."""
    before = cpu_seconds(pid)
    if row.client == "grpcio":
        call_with_grpcio(address, row)
        return (cpu_seconds(pid) - before) / row.calls
    done = subprocess.run(
        ["h2load", "-n", str(row.calls), "-c", str(row.connections), "-m", str(row.streams),
         "-w", "30", "-W", "30", "-d", body, "-H", "content-type: application/grpc", "-H", "te: trailers",
         f"http://{address}{METHOD}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    used = cpu_seconds(pid) - before
    assert f"{row.calls} succeeded" in done.stdout, done.stdout
    return used / row.calls


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help="all, if none is named")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if shutil.which("h2load") is None:
        sys.exit(
            "make bench-grpc needs h2load (Debian: apt-get install nghttp2-client libnghttp2-dev)"
        )
    results = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        program = build(folder)
        write_models(folder / "models")
        ksrv = {
            name: stack.enter_context(
                Server(folder / "models", http="127.0.0.1:0", grpc_server=name)
            )
            for name in SERVERS[1:]
        }
        print(f"{'':20}" + "".join(f"{name:>12}" for name in SERVERS) + "   ratios to bare")
        for name in given.rows or ROWS:
            row = ROWS[name]
            message = request_of(row.workload)
            body = folder / f"{row.workload}.bin"
            body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
            with ExitStack() as one:
                targets = {"bare": start_bare(program, row.workload, one)}
                targets |= {key: (server.grpc, server.pid) for key, server in ksrv.items()}
                for address, _ in targets.values():
                    ask(address, row.workload)
                rounds = [
                    {key: load(*target, row, body) for key, target in targets.items()}
                    for _ in range(given.rounds)
                ]
            medians = {key: statistics.median(one[key] for one in rounds) for key in SERVERS}
            ratios = {
                key: statistics.median(one[key] / max(one["bare"], 1e-9) for one in rounds)
                for key in SERVERS[1:]
            }
            results[name] = {"cpu_seconds": medians, "ratios": ratios}
            shown = "".join(f"{medians[key] * 1e6:10.1f}us" for key in SERVERS)
            print(f"{name:20}{shown}   " + ", ".join(f"{k} {v:.2f}" for k, v in ratios.items()))
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
