"""ksrv's gRPC server beside its limit and beside grpcio, in one run.

    python benchmarks/grpc/bench.py [--rounds 5] [--json FILE] [ROW ...]

Servers: `bare` is a single-threaded C server on libnghttp2 that validates nothing (`bare.c`); `native` and `grpcio` are
`ksrv serve` with `--grpc-server` native and grpcio. The handler returns its tensor (W1, W4) or ten values (W2).

Clients: nghttp's h2load, which writes frames of 16 KiB, as Go's and Java's clients do, and many calls in one packet. In
the rows of `grpcio` it is grpcio, whose core writes frames as large as the server takes. `each` is a C client
(`client.c`) that sends every call alone, with time between them. `batched` calls a model that joins its requests.
`stream` sends requests over one ModelStreamInfer, which the bare server does not have.

All servers are up at once, and each round gives each of them the same load in turn. Figures are CPU time of all
processes of a server for a call, the median over the rounds, and the median of the ratios to `bare` within a round. W4
adds the greatest peak of memory above idle, in payloads of 64 MiB: one is received and one is sent. Before the load
every server gets a call, whose answer is checked. Only ratios mean anything.
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
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "load"))
from grpc_load import METHOD, OPTIONS, SHAPES, processes_of, request_of
from servers import free_port, write_models

from ksrv.protocol.protobuf import message_class
from ksrv.testing import Server

HERE = Path(__file__).parent
SERVERS = ("bare", "native", "grpcio")
STREAM = METHOD.replace("ModelInfer", "ModelStreamInfer")


@dataclass(frozen=True)
class Row:
    """One load: calls of a workload, on so many connections with so many streams each.

    Attributes:
        model: The model that is called; "" for the workload's model.
    """

    workload: str
    connections: int
    streams: int
    calls: int
    client: str = "h2load"
    model: str = ""


ROWS = {
    "W1-16-streams": Row("W1", 1, 16, 20_000),
    "W1-16-each": Row("W1", 1, 16, 20_000, "each"),
    "W1-16-streams-batched": Row("W1", 1, 16, 20_000, model="batched"),
    "W1-1-stream": Row("W1", 1, 1, 6_000),
    "W1-16-connections": Row("W1", 16, 1, 20_000),
    "W2-8-streams": Row("W2", 1, 8, 800),
    "W4-1-stream": Row("W4", 1, 1, 8),
    "W1-16-grpcio": Row("W1", 1, 16, 3_000, "grpcio"),
    "W1-1-grpcio": Row("W1", 1, 1, 1_500, "grpcio"),
    "W2-8-grpcio": Row("W2", 1, 8, 200, "grpcio"),
    "W1-16-stream": Row("W1", 1, 16, 3_000, "stream"),
}
WITHOUT = {"stream": "bare", "each": "grpcio"}
"""The server that a client cannot ask, or does not."""

PAYLOAD = 64 << 20

CLIENT_US = 40
"""Microseconds that the client of `each` computes before a call. The bare server then takes some 8 us for a call, as with
a C++ client, and not 2 to 3 as with h2load."""


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process and its descendants."""
    threads = (
        path for process in processes_of(pid) for path in Path(f"/proc/{process}/task").iterdir()
    )
    return sum(int((path / "schedstat").read_text().split()[0]) for path in threads) / 1e9


def memory(pid: int, name: str) -> int:
    """Return VmRSS or VmHWM of a process and its descendants, in bytes."""
    found = 0
    for process in processes_of(pid):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        found += sum(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
    return found


def forget_peak(pid: int) -> None:
    for process in processes_of(pid):
        Path(f"/proc/{process}/clear_refs").write_text("5")


def build(folder: Path, name: str) -> Path:
    """Compile a program: "bare", the limit, or "client"."""
    made = folder / name
    subprocess.run(["cc", "-O2", HERE / f"{name}.c", "-lnghttp2", "-o", made], check=True)
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


def stream_requests(address: str, row: Row) -> None:
    """Send requests over one stream, and wait for answers while this many are open."""
    message, room = request_of(row.workload), threading.Semaphore(row.streams)

    def requests() -> Iterator[bytes]:
        for _ in range(row.calls):
            room.acquire()
            yield message

    answer = message_class("inference.ModelStreamInferResponse")
    with grpc.insecure_channel(address, OPTIONS) as channel:
        for got in channel.stream_stream(STREAM)(requests(), timeout=600):
            assert not answer.FromString(got).error_message
            room.release()


def call_one_by_one(address: str, row: Row, program: Path, body: Path) -> None:
    """Have the C client make the calls, each in a separate packet."""
    port = address.rpartition(":")[2]
    numbers = str(row.streams), str(row.calls)
    subprocess.run([program, port, *numbers, body, str(CLIENT_US)], check=True)


def rest_body(workload: str) -> tuple[bytes, int]:
    """Return a binary request of KServe v2, and the length of its JSON."""
    shape = SHAPES[workload]
    tensor = np.ones(shape, np.float32).tobytes()
    parameters = {"binary_data_size": len(tensor)}
    entry = {"name": "x", "datatype": "FP32", "shape": shape, "parameters": parameters}
    asked = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    header = json.dumps(asked, separators=(",", ":")).encode()
    return header + tensor, len(header)


def load(address: str, pid: int, row: Row, body: Path, fields: list[str], client: Path) -> float:
    """Give a server the load of a row; returns its CPU seconds for a call."""
    before = cpu_seconds(pid)
    if row.client == "each":
        call_one_by_one(address, row, client, body)
        return (cpu_seconds(pid) - before) / row.calls
    if row.client in CLIENTS:
        CLIENTS[row.client](address, row)
        return (cpu_seconds(pid) - before) / row.calls
    done = subprocess.run(
        ["h2load", "-n", str(row.calls), "-c", str(row.connections), "-m", str(row.streams),
         "-w", "30", "-W", "30", "-d", body, *(part for field in fields for part in ("-H", field)),
         f"http://{address}{METHOD}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    used = cpu_seconds(pid) - before
    assert f"{row.calls} 2xx" in done.stdout, done.stdout
    return used / row.calls


CLIENTS = {"grpcio": call_with_grpcio, "stream": stream_requests}


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
        program, client = build(folder, "bare"), build(folder, "client")
        write_models(folder / "models")
        ksrv = {
            name: stack.enter_context(
                Server(folder / "models", http="127.0.0.1:0", grpc_server=name)
            )
            for name in SERVERS[1:]
        }
        fresh = {key: memory(server.pid, "VmRSS") for key, server in ksrv.items()}
        print(f"{'':20}" + "".join(f"{name:>12}" for name in SERVERS) + "   ratios to bare")
        for name in given.rows or ROWS:
            row = ROWS[name]
            message = request_of(row.workload, row.model)
            body = folder / f"{name}.bin"
            fields = ["content-type: application/grpc", "te: trailers"]
            body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
            with ExitStack() as started:
                targets = {"bare": start_bare(program, row.workload, started)}
                idle = fresh | {"bare": memory(targets["bare"][1], "VmRSS")}
                targets |= {key: (server.grpc, server.pid) for key, server in ksrv.items()}
                for address, _ in targets.values():
                    ask(address, row.workload)
                targets.pop(WITHOUT.get(row.client, ""), None)
                for _, pid in targets.values():
                    forget_peak(pid)
                rounds = [
                    {
                        key: load(*target, row, body, fields, client)
                        for key, target in targets.items()
                    }
                    for _ in range(given.rounds)
                ]
                peaks = {
                    key: (memory(pid, "VmHWM") - idle[key]) / PAYLOAD
                    for key, (_, pid) in targets.items()
                }
            beside = next(iter(targets))
            if beside != "bare":
                beside = "grpcio"
            medians = {key: statistics.median(found[key] for found in rounds) for key in targets}
            ratios = {
                key: statistics.median(found[key] / max(found[beside], 1e-9) for found in rounds)
                for key in targets
                if key != beside
            }
            results[name] = {"cpu_seconds": medians, "beside": beside, "ratios": ratios}
            shown = "".join(
                f"{medians[key] * 1e6:10.1f}us" if key in medians else f"{'-':>12}"
                for key in SERVERS
            )
            print(
                f"{name:20}{shown}   " + ", ".join(f"{k} {v:.2f}" for k, v in ratios.items()),
                "" if beside == "bare" else f"of {beside}",
            )
            if row.workload == "W4":
                results[name]["peak_payloads"] = peaks
                print(
                    f"{'':20}" + "".join(f"{peaks[key]:10.2f}x " for key in SERVERS), "peak memory"
                )
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
