"""ksrv's gRPC server under load, beside a plain grpcio server and beside grpcio alone.

    python benchmarks/load/grpc_load.py [--rounds 5] [--seconds 1.0] [--json FILE] [W1] [W2] [W4]

Three servers. `generated` is what one writes in sixty lines: grpcio's sync server, message classes,
and the handler called on the spot. `bare` is the same server with bytes in and constant bytes out:
the least that grpcio's Python server costs. `ksrv` is `ksrv serve` with everything that it is. The
handler returns the tensor itself (W1: FP32 [1,16]; W4: 64 MiB) or its first ten values (W2: FP32
[1,224,224,3]); ksrv's models are the models of the HTTP rows.

All servers are up at once, and a round gives each in turn the same load. Figures are CPU time of all
the server's processes for each answered call, the median over the rounds, and its ratio to
`generated`, with the least and greatest ratio within one round. W4 adds the greatest peak of memory
above idle over the payload, the first round's included. Only ratios mean anything.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from servers import write_models

from ksrv.protocol.protobuf import message_class
from ksrv.testing import Server

METHOD = "/inference.GRPCInferenceService/ModelInfer"
OPTIONS = [
    ("grpc.max_receive_message_length", 2**31 - 1),
    ("grpc.max_send_message_length", 2**31 - 1),
    ("grpc.so_reuseport", 0),
]
SHAPES = {"W1": (1, 16), "W2": (1, 224, 224, 3), "W4": (1, 16 * 1024 * 1024)}
STREAMS = {"W1": (1, 16), "W2": (1, 8), "W4": (1,)}
TARGETS = {"W1": 0.8, "W2": 0.9, "W4": 0.7}
"""Most CPU that ksrv may take, as a share of the generated classes'."""

PEAK_TARGET = 4.5
PEER = "generated"
SERVERS = (PEER, "bare", "ksrv")
W4_EXCHANGES = 12
CALL_SECONDS = 60


@dataclass
class Cost:
    """Costs of one server for one workload; times in seconds for each call."""

    cpu: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    peak: list[float] = field(default_factory=list)


# ---- servers ------------------------------------------------------------------------------------


def answer(array: np.ndarray) -> np.ndarray:
    return array if array.shape[1] != 224 else array.reshape(1, -1)[:, :10]


def request_of(workload: str, model: str = "") -> bytes:
    array = np.ones(SHAPES[workload], np.float32)
    name = model or workload.lower()
    made = message_class("inference.ModelInferRequest")(model_name=name)
    made.inputs.add(name="x", datatype="FP32", shape=array.shape)
    made.raw_input_contents.append(array.tobytes())
    encoded: bytes = made.SerializeToString()
    return encoded


def serve(kind: str) -> None:
    """Be one of the servers that are not ksrv."""
    import grpc

    request = message_class("inference.ModelInferRequest")
    response = message_class("inference.ModelInferResponse")

    def infer(message: Any, context: Any) -> Any:
        entry = message.inputs[0]
        array = np.frombuffer(message.raw_input_contents[0], np.float32).reshape(entry.shape)
        array = answer(array)
        made = response(model_name=message.model_name, id=message.id)
        made.outputs.add(name="y", datatype="FP32", shape=array.shape)
        made.raw_output_contents.append(array.tobytes())
        return made

    if kind == PEER:
        method = grpc.unary_unary_rpc_method_handler(
            infer, request.FromString, response.SerializeToString
        )
    else:
        constants = {
            len(sent): infer(request.FromString(sent), None).SerializeToString()
            for sent in map(request_of, SHAPES)
        }
        method = grpc.unary_unary_rpc_method_handler(lambda sent, context: constants[len(sent)])
    server = grpc.server(ThreadPoolExecutor(16), options=OPTIONS)
    service, name = METHOD[1:].split("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {name: method}),)
    )
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


@contextmanager
def other_server(kind: str) -> Iterator[tuple[int, int]]:
    """Run one of the servers that are not ksrv; yields its port and process."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", kind], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def ksrv_server() -> Iterator[tuple[int, int]]:
    """Run ksrv; yields its gRPC port and process."""
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        with Server(folder, http="127.0.0.1:0") as server:
            yield int(server.grpc.rpartition(":")[2]), server.pid


def processes_of(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [pid, *(found for child in children for found in processes_of(int(child)))]


def cpu_seconds(pid: int) -> float:
    total = 0
    for process in processes_of(pid):
        stat = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
        fields = stat.rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def resident(pid: int, key: str) -> int:
    """Return the largest `VmRSS` or `VmHWM` of a process and its descendants, in bytes."""
    sizes = []
    for process in processes_of(pid):
        for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(key + ":"):
                sizes.append(int(line.split()[1]) * 1024)
    return max(sizes)


def reset_peaks(pid: int) -> None:
    for process in processes_of(pid):
        Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")


# ---- load ---------------------------------------------------------------------------------------


def load(port: int, workload: str, streams: int, seconds: float) -> list[float]:
    """Call for some seconds, or W4 a dozen times; return the time of every call."""
    import grpc

    message = request_of(workload)
    times: list[float] = []
    faults: list[Exception] = []
    with grpc.insecure_channel(f"127.0.0.1:{port}", OPTIONS[:2]) as channel:
        infer = channel.unary_unary(METHOD)
        expected = len(infer(message, timeout=CALL_SECONDS))
        times.append(0.0)
        end = time.perf_counter() + seconds

        def call() -> None:
            began = time.perf_counter()
            size = len(infer(message, timeout=CALL_SECONDS))
            if size != expected:
                raise AssertionError(f"the answer has {size} bytes, not {expected}")
            times.append(time.perf_counter() - began)

        def client() -> None:
            try:
                while time.perf_counter() < end:
                    call()
            except Exception as fault:  # noqa: BLE001 - raised below, in the thread that is heard
                faults.append(fault)

        if workload == "W4":
            for _ in range(W4_EXCHANGES - 1):
                call()
            return times
        threads = [threading.Thread(target=client) for _ in range(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if faults:
        raise RuntimeError(f"{len(faults)} clients failed, the first with: {faults[0]}")
    return times


def measure(workloads: list[str], rounds: int, seconds: float) -> dict[str, dict[str, Cost]]:
    """Return the costs by row and server."""
    found: dict[str, dict[str, Cost]] = {}
    with ExitStack() as stack:
        context = multiprocessing.get_context("spawn")
        client = stack.enter_context(ProcessPoolExecutor(1, mp_context=context))
        servers = {kind: stack.enter_context(other_server(kind)) for kind in SERVERS[:-1]}
        servers["ksrv"] = stack.enter_context(ksrv_server())
        for workload in workloads:
            for streams in STREAMS[workload]:
                row = found[f"{workload} c{streams}"] = {kind: Cost() for kind in SERVERS}
                size = len(request_of(workload))
                for turn in range(rounds + 1):
                    for kind, (port, pid) in servers.items():
                        reset_peaks(pid)
                        idle = resident(pid, "VmRSS")
                        before = cpu_seconds(pid)
                        times = client.submit(load, port, workload, streams, seconds).result()
                        cost = row[kind]
                        if not turn:  # the first round warms up
                            # In later rounds a server begins with memory that it kept.
                            cost.peak.append((resident(pid, "VmHWM") - idle) / size)
                            continue
                        cost.cpu.append((cpu_seconds(pid) - before) / len(times))
                        cost.p50.append(statistics.median(times[2:]))
                        cost.peak.append((resident(pid, "VmHWM") - idle) / size)
    return found


def show(found: dict[str, dict[str, Cost]]) -> list[dict[str, Any]]:
    """Print the table; return its rows for other programs."""
    rows: list[dict[str, Any]] = []
    print("row      server      CPU/call    ratio   rounds         p50         peak     target")
    for name, row in found.items():
        workload = name.split()[0]
        for kind, cost in row.items():
            cpu, base = statistics.median(cost.cpu), statistics.median(row[PEER].cpu)
            within = [mine / other for mine, other in zip(cost.cpu, row[PEER].cpu, strict=True)]
            peak = max(cost.peak) if workload == "W4" else None
            line = (
                f"{name:<8} {kind:<10} {cpu * 1e6:9.1f} us  {cpu / base:5.2f}x  "
                f"{min(within):.2f}-{max(within):.2f}x  {statistics.median(cost.p50) * 1e6:9.1f} us"
                f"  {f'{peak:.1f}x' if peak is not None else '':>6}"
            )
            if kind == "ksrv":
                met = cpu / base <= TARGETS[workload]
                line += f"   <= {TARGETS[workload]}x CPU: {'ok' if met else 'MISSED'}"
                if peak is not None:
                    met = peak <= PEAK_TARGET
                    line += f", <= {PEAK_TARGET}x peak: {'ok' if met else 'MISSED'}"
            print(line)
            rows.append({"row": name, "server": kind, "cpu_ratio": cpu / base, **asdict(cost)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("workloads", nargs="*", default=list(SHAPES), metavar="W1|W2|W4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", choices=SERVERS[:-1], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    rows = show(measure(arguments.workloads, arguments.rounds, arguments.seconds))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
