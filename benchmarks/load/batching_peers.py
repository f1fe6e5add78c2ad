"""Batching through real servers: ksrv beside plain Falcon and FastAPI apps with a 20-line batcher.

    python benchmarks/load/batching_peers.py [--seconds 4] [--rounds 5]

The same ResNet-18 of seeded weights answers 16 clients that each send one 224x224 FP32 image at a
time over HTTP. All servers are up at once; a round gives each in turn a few seconds of load. Told
are images per second and images per CPU second of the server (medians), their ratio to the
strongest peer, and the spread of the rounds, without which no ratio means anything.
"""

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from engine_batching import CLIENTS, RESNET

from ksrv.testing import Server

PEERS = Path(__file__).parent / "peers"
IMAGE = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32).tobytes()
MODEL = """
handler: handler.py
inputs:
  - {name: x, datatype: FP32, shape: [-1, 3, 224, 224]}
batching: {max_batch_size: 8}
"""


@dataclass
class Contender:
    """One server under load."""

    name: str
    port: int
    pids: list[int]
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    per_cpu: list[float] = field(default_factory=list)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descendants(pid: int) -> list[int]:
    found = [pid]
    for line in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += descendants(int(line))
    return found


def cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit(f"a peer ended with status {process.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.1)
        finally:
            connection.close()
    raise SystemExit("a peer did not start")


def peer(stack: ExitStack, name: str, command: list[str], port: int) -> Contender:
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=PEERS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    wait_for(port, process)
    return Contender(name, port, descendants(process.pid), "/infer", IMAGE)


def ksrv(stack: ExitStack, folder: Path) -> Contender:
    model = folder / "resnet"
    model.mkdir()
    (model / "handler.py").write_text(RESNET)
    (model / "model.yaml").write_text(MODEL)
    server = stack.enter_context(Server(model, grpc="off"))
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "shape": [1, 3, 224, 224],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": len(IMAGE)},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    return Contender(
        "ksrv",
        int(server.http.rsplit(":", 1)[1]),
        descendants(server.process.pid),
        "/v2/models/resnet/infer",
        header + IMAGE,
        {"Inference-Header-Content-Length": str(len(header))},
    )


def load(contender: Contender, seconds: float) -> None:
    """Give one server load from 16 kept-alive connections, and note what it did."""
    done = [0] * CLIENTS
    stop = threading.Event()
    start = threading.Barrier(CLIENTS + 1)
    faults: list[str] = []

    def client(number: int) -> None:
        try:
            ask(number)
        except (OSError, http.client.HTTPException) as fault:
            faults.append(f"{contender.name}: {fault!r}")

    def ask(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", contender.port, timeout=60)
        start.wait()
        while not stop.is_set():
            connection.request("POST", contender.path, contender.body, contender.headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200 or len(content) < 4000:
                faults.append(f"{contender.name} answered {answer.status}: {content[:200]!r}")
                return
            done[number] += 1
        connection.close()

    threads = [threading.Thread(target=client, args=(n,)) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    start.wait()
    began, spent = time.perf_counter(), cpu_seconds(contender.pids)
    time.sleep(seconds)
    count = sum(done)
    taken, spent = time.perf_counter() - began, cpu_seconds(contender.pids) - spent
    stop.set()
    for thread in threads:
        thread.join()
    if faults:
        raise SystemExit(faults[0])
    contender.rates.append(count / taken)
    contender.per_cpu.append(count / max(spent, 1e-9))


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=4)
    arguments.add_argument("--rounds", type=int, default=5)
    chosen = arguments.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        falcon_port, fastapi_port = free_port(), free_port()
        contenders = [
            ksrv(stack, folder),
            peer(
                stack,
                "Falcon, gunicorn gthread",
                ["gunicorn", "-k", "gthread", "--threads", "16", "-b", f"127.0.0.1:{falcon_port}",
                 "--no-control-socket", "falcon_app:app"],
                falcon_port,
            ),
            peer(
                stack,
                "FastAPI, uvicorn",
                ["uvicorn", "--port", str(fastapi_port), "--log-level", "warning", "fastapi_app:app"],
                fastapi_port,
            ),
        ]  # fmt: skip
        for contender in contenders:
            load(contender, 1)
            contender.rates.clear()
            contender.per_cpu.clear()
        for _ in range(chosen.rounds):
            for contender in contenders:
                load(contender, chosen.seconds)
    best_rate = max(statistics.median(c.rates) for c in contenders[1:])
    best_cpu = max(statistics.median(c.per_cpu) for c in contenders[1:])
    print(f"{'server':<26}{'images/s':>10}{'ratio':>8}{'spread':>16}{'per CPU s':>11}{'ratio':>8}")
    for c in contenders:
        rate, cpu = statistics.median(c.rates), statistics.median(c.per_cpu)
        spread = f"{min(c.rates):.1f} to {max(c.rates):.1f}"
        print(
            f"{c.name:<26}{rate:>10.1f}{rate / best_rate:>8.2f}{spread:>16}"
            f"{cpu:>11.1f}{cpu / best_cpu:>8.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
