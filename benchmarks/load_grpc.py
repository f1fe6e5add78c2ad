"""ksrv's gRPC door under load, beside a plain grpcio server with generated classes.

Usage:
    python benchmarks/load_grpc.py [--rounds 5] [--seconds 1.0] [--json FILE]

Both servers run the same handler: the tensor itself (W1: FP32 [1,16]; W4: 64 MiB) or its first ten
values (W2: FP32 [1,224,224,3]). ksrv does it with everything that it is: `ksrv serve`, its engine,
its checks. The plain server is what one writes in sixty lines: a sync server, message classes, and
the handler called on the spot. A round gives each server in turn the same load; figures are CPU time
of all the server's processes for each answered request, the median over the rounds.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from grpc_servers import METHOD, OPTIONS, load

from ksrv.protocol.messages import message_class
from ksrv.testing import Server

HANDLER = """
from ksrv import BaseHandler


class Model(BaseHandler):
    def inference(self, x):
        return {"y": x if x.shape[1] != 224 else x.reshape(1, -1)[:, :10]}
"""
SHAPES = {"W1": (1, 16), "W2": (1, 224, 224, 3), "W4": (1, 16 * 1024 * 1024)}
SERVERS = ("plain", "ksrv")
W4_EXCHANGES = 12
Row = dict[str, dict[str, float]]


def serve_plain() -> None:
    import grpc

    request = message_class("inference.ModelInferRequest")
    response = message_class("inference.ModelInferResponse")

    def infer(message: Any, context: Any) -> Any:
        entry = message.inputs[0]
        array = np.frombuffer(message.raw_input_contents[0], np.float32).reshape(entry.shape)
        if array.shape[1] == 224:
            array = array.reshape(1, -1)[:, :10]
        made = response(model_name="m", id=message.id)
        made.outputs.add(name="y", datatype="FP32", shape=array.shape)
        made.raw_output_contents.append(array.tobytes())
        return made

    method = grpc.unary_unary_rpc_method_handler(
        infer, request.FromString, response.SerializeToString
    )
    server = grpc.server(ThreadPoolExecutor(16), options=OPTIONS)
    service, name = METHOD[1:].split("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {name: method}),)
    )
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


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


def resident(pid: int, field: str) -> int:
    """Return the largest `VmRSS` or `VmHWM` of a process and its descendants, in bytes."""
    sizes = []
    for process in processes_of(pid):
        for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(field + ":"):
                sizes.append(int(line.split()[1]) * 1024)
    return max(sizes)


def reset_peaks(pid: int) -> None:
    for process in processes_of(pid):
        Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")


def request_of(workload: str) -> bytes:
    array = np.ones(SHAPES[workload], np.float32)
    made = message_class("inference.ModelInferRequest")(model_name="m")
    made.inputs.add(name="x", datatype="FP32", shape=array.shape)
    made.raw_input_contents.append(array.tobytes())
    encoded: bytes = made.SerializeToString()
    return encoded


def exchange(port: int, message: bytes, out: Any) -> None:
    """Send W4 a dozen times and report the median time of the last ten."""
    import grpc

    times = []
    with grpc.insecure_channel(f"127.0.0.1:{port}", OPTIONS[:2]) as channel:
        infer = channel.unary_unary(METHOD)
        for _ in range(W4_EXCHANGES):
            start = time.perf_counter()
            infer(message)
            times.append(time.perf_counter() - start)
    out.put(statistics.median(times[2:]))


def small(name: str, servers: dict[str, tuple[int, int]], rounds: int, seconds: float) -> Row:
    """Measure W1 or W2 at several numbers of concurrent calls."""
    import grpc

    context = multiprocessing.get_context("spawn")
    message = request_of(name)
    sizes = {}
    for kind, (port, _) in servers.items():
        with grpc.insecure_channel(f"127.0.0.1:{port}", OPTIONS[:2]) as channel:
            sizes[kind] = len(channel.unary_unary(METHOD)(message))
    row: Row = {}
    for streams in (1, 16 if name == "W1" else 8):
        samples: dict[str, list[tuple[float, float]]] = {kind: [] for kind in servers}
        for turn in range(rounds + 1):
            for kind, (port, pid) in servers.items():
                before = cpu_seconds(pid)
                out = context.Queue()
                client = context.Process(
                    target=load, args=(port, message, sizes[kind], streams, seconds, out)
                )
                client.start()
                count, median = out.get()
                client.join()
                if turn:  # the first round warms up
                    spent = (cpu_seconds(pid) - before) / count
                    samples[kind].append((spent * 1e6, median * 1e6))
        for kind, pairs in samples.items():
            cpu = [pair[0] for pair in pairs]
            row.setdefault(kind, {})[f"{name} c{streams} cpu_us"] = statistics.median(cpu)
            row[kind][f"{name} c{streams} cpu_spread"] = max(cpu) / min(cpu)
            row[kind][f"{name} c{streams} p50_us"] = statistics.median(pair[1] for pair in pairs)
    return row


def large(servers: dict[str, tuple[int, int]], rounds: int) -> Row:
    """Measure W4: time, CPU and peak memory above idle over the payload."""
    context = multiprocessing.get_context("spawn")
    message = request_of("W4")
    samples: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in servers}
    for _ in range(rounds):
        for kind, (port, pid) in servers.items():
            reset_peaks(pid)
            idle = resident(pid, "VmRSS")
            before = cpu_seconds(pid)
            out = context.Queue()
            client = context.Process(target=exchange, args=(port, message, out))
            client.start()
            median = out.get()
            client.join()
            peak = resident(pid, "VmHWM") - idle
            cpu = (cpu_seconds(pid) - before) / W4_EXCHANGES
            samples[kind].append((cpu * 1e6, median * 1e6, peak / len(message)))
    return {
        kind: {
            "W4 c1 cpu_us": statistics.median(cpu for cpu, _, _ in found),
            "W4 c1 p50_us": statistics.median(p50 for _, p50, _ in found),
            "W4 c1 peak_over_payload": max(peak for _, _, peak in found),
        }
        for kind, found in samples.items()
    }


def measure(rounds: int, seconds: float) -> Row:
    plain = subprocess.Popen(
        [sys.executable, __file__, "--serve-plain"], stdout=subprocess.PIPE, text=True
    )
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "m"
        model.mkdir()
        (model / "handler.py").write_text(HANDLER, encoding="utf-8")
        (model / "model.yaml").write_text("handler: handler.py\nwarmup: false\n", encoding="utf-8")
        try:
            assert plain.stdout is not None
            port = int(plain.stdout.readline())
            with Server(folder, http="127.0.0.1:0") as server:
                servers = {
                    "plain": (port, plain.pid),
                    "ksrv": (int(server.grpc.rpartition(":")[2]), server.pid),
                }
                found: Row = {kind: {} for kind in servers}
                parts = [
                    small("W1", servers, rounds, seconds),
                    small("W2", servers, rounds, seconds),
                ]
                parts.append(large(servers, max(1, rounds // 2)))
                for part in parts:
                    for kind, figures in part.items():
                        found[kind] |= figures
        finally:
            plain.terminate()
            plain.wait()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json")
    parser.add_argument("--serve-plain", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_plain:
        serve_plain()
        return
    found = measure(arguments.rounds, arguments.seconds)
    print(f"{'':28} {'plain':>10} {'ksrv':>10} {'ratio':>7}")
    for key, base in found["plain"].items():
        value = found["ksrv"][key]
        ratio = f"{value / base:7.2f}" if "spread" not in key else ""
        print(f"{key:28} {base:10.1f} {value:10.1f} {ratio}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
