"""HTTP load: CPU per request of ksrv beside a bare C server, in interleaved rounds.

    python benchmarks/load/run.py [--rounds 3] [--seconds 1] [--heads minimal|client] [ROW ...]

All servers of a row are up at once; a round gives each its turn, and medians are compared. Rows:
w1, w1-batched, w2-c1, w2-c1-constant (a handler that does nothing), w2-c8 (wrk must be installed), w4,
hog, slow. Only ratios mean anything.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from servers import HERE, LoadedServer, bare, ksrv, write_models

NATIVE = "ksrv.server.worker:KsrvWorker"
READY = "/v2/health/ready"
WRK_ROWS = {
    # name: model, shape, bytes in, bytes out, connections
    "w1": ("w1", "1,16", 64, 64, 16),
    "w1-batched": ("batched", "1,16", 64, 64, 16),
    "w2-c1": ("w2", "1,224,224,3", 602_112, 40, 1),
    "w2-c1-constant": ("w2-constant", "1,224,224,3", 602_112, 40, 1),
    "w2-c8": ("w2", "1,224,224,3", 602_112, 40, 8),
}


class Load(NamedTuple):
    """Cost of a request: CPU seconds, the part in user space, and latency by percentile."""

    cost: float
    user: float
    latency: dict[str, str]


def wrk(
    server: LoadedServer, row: tuple[str, str, int, int, int], seconds: int, heads: str
) -> Load:
    """Load a server from so many connections."""
    model, shape, nbytes, _, connections = row
    environment = os.environ | {
        "MODEL": model, "SHAPE": shape, "BYTES": str(nbytes), "HEADS": heads,
    }  # fmt: skip
    before = server.user_and_system_seconds()
    out = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency",
         "-s", str(HERE / "infer.lua"), f"http://127.0.0.1:{server.port}/"],
        env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    spent = [now - then for now, then in zip(server.user_and_system_seconds(), before, strict=True)]
    if "Non-2xx" in out or "Socket errors" in out:
        raise RuntimeError(f"{server.name}: {out}")
    counted = re.search(r"(\d+) requests in", out)
    assert counted, out
    requests = int(counted[1])
    latency = dict(re.findall(r"(50|99)%\s+(\S+)", out))
    return Load(sum(spent) / requests, spent[0] / requests, latency)


def run_wrk_row(name: str, models: Path, options: argparse.Namespace) -> None:
    row = WRK_ROWS[name]
    http_server = ksrv(models, NATIVE, "native")
    servers = [bare(row[3]), http_server, ksrv(models, "gthread", "gthread")]
    loads: dict[str, list[Load]] = {}
    try:
        for server in servers:
            server.start(None if server.name == "bare C" else READY)
            wrk(server, row, 1, options.heads)  # warm
        if name.startswith("w2"):
            # As long in user space for each request as the HTTP server, which runs Python and the handler
            # there: what the HTTP server costs beyond this server is its transport.
            user = (
                wrk(http_server, row, 2, options.heads).user
                - wrk(servers[0], row, 2, options.heads).user
            )
            servers.append(bare(row[3], busy_ns=round(user * 1e9)))
            servers[-1].start(None)
        for _ in range(options.rounds):
            for server in servers:
                load = wrk(server, row, options.seconds, options.heads)
                loads.setdefault(server.name, []).append(load)
    finally:
        for server in servers:
            server.stop()
    floor = statistics.median(load.cost for load in loads["bare C"])
    for server in servers:
        of_it = [load.cost for load in loads[server.name]]
        user = statistics.median(load.user for load in loads[server.name])
        middle = statistics.median(of_it)
        latency = loads[server.name][-1].latency
        print(
            f"{name:<11} {server.name:<8} {middle * 1e6:8.1f} us CPU/request  {middle / floor:6.2f}x"
            f"  spread {min(of_it) / floor:.2f}-{max(of_it) / floor:.2f}x  user {user * 1e6:.1f} us"
            f"  p50 {latency.get('50', '-')}  p99 {latency.get('99', '-')}"
        )


# ---- exchanges from Python ----------------------------------------------------------------------


def message(model: str, shape: str, payload: bytes) -> bytes:
    entry = {
        "name": "x",
        "datatype": "FP32",
        "shape": json.loads(f"[{shape}]"),
        "parameters": {"binary_data_size": len(payload)},
    }
    document = {"inputs": [entry], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    text = json.dumps(document).encode()
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n"
        f"Inference-Header-Content-Length: {len(text)}\r\n"
        f"Content-Length: {len(text) + len(payload)}\r\n\r\n"
    )
    return head.encode() + text + payload


def exchange(client: socket.socket, data: bytes, room: bytearray, expected: int = 200) -> float:
    """Send a message, receive its answer and return the seconds; another status is not a result."""
    began = time.perf_counter()
    sender = threading.Thread(target=client.sendall, args=(data,)) if len(data) > 1 << 20 else None
    if sender is None:
        client.sendall(data)
    else:
        sender.start()
    view = memoryview(room)
    got = client.recv_into(view)
    while (end := room.find(b"\r\n\r\n", 0, got)) < 0:
        if (count := client.recv_into(view[got:])) == 0:
            raise RuntimeError("the server closed the connection")
        got += count
    announced = re.search(rb"(?i)\r\ncontent-length: (\d+)", bytes(room[:end]))
    assert announced
    length = int(announced[1])
    while got < end + 4 + length:
        count = client.recv_into(view[got:])
        if count == 0:
            raise RuntimeError("the server closed the connection")
        got += count
    if sender is not None:
        sender.join()
    taken = time.perf_counter() - began
    if int(room[9:12]) != expected:
        raise RuntimeError(f"the server answered {bytes(room[: min(got, 500)])!r}")
    return taken


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def run_w4(models: Path, options: argparse.Namespace) -> None:
    """64 MiB in and out on one connection: time, CPU, and peak memory above idle."""
    payload = bytes(64 << 20)
    data = message("w4", "1,16777216", payload)
    servers = [bare(len(payload), echo=True), ksrv(models, NATIVE, "native")]
    times: dict[str, list[float]] = {server.name: [] for server in servers}
    spent: dict[str, list[float]] = {server.name: [] for server in servers}
    peaks: dict[str, float] = {}
    room = bytearray(65 << 20)
    for server in servers:
        server.start(None if server.name == "bare C" else READY)
    try:
        clients = {}
        for server in servers:
            idle = server.memory("VmRSS")
            server.reset_peak()
            clients[server.name] = client = socket.create_connection(("127.0.0.1", server.port))
            for _ in range(2):
                exchange(client, data, room)
            peaks[server.name] = (server.memory("VmHWM") - idle) / len(payload)
        for _ in range(4 * options.rounds):
            for server in servers:
                before = server.cpu_seconds()
                times[server.name].append(exchange(clients[server.name], data, room))
                spent[server.name].append(server.cpu_seconds() - before)
    finally:
        for server in servers:
            server.stop()
    floor, least = statistics.median(times["bare C"]), statistics.mean(spent["bare C"])
    for server in servers:
        middle = statistics.median(times[server.name])
        cpu = statistics.mean(spent[server.name])  # the kernel counts in ticks of 10 ms
        print(
            f"{'w4':<11} {server.name:<8} {middle * 1e3:8.1f} ms  {middle / floor:6.2f}x"
            f"  {cpu * 1e3:.0f} ms CPU  {cpu / least:.2f}x"
            f"  peak above idle {peaks[server.name]:.2f}x of the payload"
        )


def median(client: socket.socket, request: bytes, expected: int = 200) -> float:
    room = bytearray(1 << 16)
    return statistics.median(exchange(client, request, room, expected) for _ in range(2000))


HOG = """
import threading, time
from ksrv import BaseHandler


def hog():
    while True:
        sum(range(1000))


class Hog(BaseHandler):
    def inference(self, x):
        if x[0, 0] > 0:
            threading.Thread(target=hog, daemon=True).start()
        elif x[0, 0] < 0:
            time.sleep(3600)
        return {"y": x}
"""


def run_hog(models: Path, options: argparse.Namespace) -> None:
    """The median of health and of queue-full answers, idle and beside a thread that hogs the GIL."""
    folder = models.parent / "hog" / "hog"
    folder.mkdir(parents=True)
    text = "handler: handler.py\nqueue_size: 1\ntimeout_ms: 3600000\nwarmup: false\n"
    text += "inputs: [{name: x, datatype: FP32, shape: [-1, 1]}]\n"
    text += "outputs: [{name: y, datatype: FP32, shape: [-1, 1]}]\n"
    (folder / "model.yaml").write_text(text)
    (folder / "handler.py").write_text(HOG)
    server = ksrv(folder.parent, NATIVE, "native")
    server.start(READY)
    try:
        time.sleep(1)
        address = ("127.0.0.1", server.port)
        health = f"GET {READY} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        full = message("hog", "1,1", bytes(4))
        starts = message("hog", "1,1", b"\0\0\x80\x3f")
        sleeps = message("hog", "1,1", b"\0\0\x80\xbf")
        with socket.create_connection(address) as client:
            idle = median(client, health)
            exchange(client, starts, bytearray(1 << 16))
            busy = median(client, health)
            print(
                f"{'hog':<11} health   idle {idle * 1e6:.0f} us, busy {busy * 1e6:.0f} us: {busy / idle:.2f}x"
            )
            blocked = [socket.create_connection(address) for _ in range(2)]
            for waiting in blocked:
                waiting.sendall(sleeps)
                time.sleep(1)
            turned = median(client, full, 503)
            print(
                f"{'hog':<11} full     busy {turned * 1e6:.0f} us: {turned / idle:.2f}x of idle health"
            )
    finally:
        server.kill()


CROWD = """
import socket, sys, time
address = ("127.0.0.1", int(sys.argv[1]))
start = sys.stdin.buffer.read(1000)
held = [socket.create_connection(address) for _ in range(1500)]
for client in held[:500]:
    client.sendall(start)
print("there", flush=True)
turn = 0
while True:
    time.sleep(0.05)
    for client in held[turn:500:10]:
        try:
            client.sendall(bytes(64))
        except OSError:
            pass
    turn = (turn + 1) % 10
"""


def run_slow(models: Path, options: argparse.Namespace) -> None:
    """A good client's p99 beside 500 slow uploads and 1,000 idle connections of another process."""
    server = ksrv(models, NATIVE, "native")
    server.start(READY)
    request = message("w1", "1,16", bytes(64))
    health = f"GET {READY} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    room = bytearray(1 << 16)

    def good() -> tuple[float, float]:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            spent = [exchange(client, request, room) for _ in range(3000)]
            exchange(client, health, room)
        return percentile(spent, 0.5), percentile(spent, 0.99)

    crowd = None
    try:
        alone = [good() for _ in range(options.rounds)]
        crowd = subprocess.Popen(
            [sys.executable, "-c", CROWD, str(server.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert crowd.stdin is not None
        assert crowd.stdout is not None
        crowd.stdin.write(message("w2", "1,224,224,3", bytes(602_112))[:1000])
        crowd.stdin.close()
        crowd.stdout.readline()
        crowded = [good() for _ in range(options.rounds)]
    finally:
        if crowd is not None:
            crowd.kill()
            crowd.wait()
        server.stop()
    p99 = [statistics.median(run[1] for run in runs) for runs in (alone, crowded)]
    p50 = [statistics.median(run[0] for run in runs) for runs in (alone, crowded)]
    print(
        f"{'slow':<11} alone p50 {p50[0] * 1e6:.0f} p99 {p99[0] * 1e6:.0f} us; beside 500 slow and "
        f"1,000 idle p50 {p50[1] * 1e6:.0f} p99 {p99[1] * 1e6:.0f} us: {p99[1] / p99[0]:.2f}x"
    )


OTHER_ROWS: dict[str, Callable[[Path, argparse.Namespace], None]] = {
    "w4": run_w4,
    "hog": run_hog,
    "slow": run_slow,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("rows", nargs="*", default=[*WRK_ROWS, *OTHER_ROWS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--heads", choices=("minimal", "client"), default="minimal")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ksrv-load-") as folder:
        models = Path(folder) / "models"
        write_models(models)
        for name in options.rows:
            if name in WRK_ROWS:
                run_wrk_row(name, models, options)
            else:
                OTHER_ROWS[name](models, options)


if __name__ == "__main__":
    main()
