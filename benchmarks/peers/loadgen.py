"""MLPerf's LoadGen asks models through servers, beside a bare loop over the same models.

    python benchmarks/peers/loadgen.py [--systems ksrv-gRPC loop] [--models text] [--seconds 2]

Three scenarios: SingleStream (the next query when the last is answered: 90th percentile of latency), Offline (all samples at
once: samples a second) and Server (Poisson arrivals: the highest rate tried at which LoadGen calls the run valid, which means that
99 % of latencies are certainly within the bound). Server begins at 90 % of the system's Offline rate, and then lowers the rate. Each answer is
checked before anything is timed. LoadGen and its client share the processors with the server. The client is Python: sixteen threads, each with
one request at a time, over a connection of HTTP/1.1 each or over one connection of grpcio.

LoadGen's logs go to benchmarks/results/loadgen/, the figures to benchmarks/results/loadgen.json, from which `page.py` writes its rows.
"""

import argparse
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent.parent / "results"
SYSTEMS = (
    "ksrv-REST",
    "ksrv-gRPC",
    "FastAPI-REST",
    "LitServe-REST",
    "Triton-REST",
    "Triton-gRPC",
    "loop",
)
BOUND_MS = {"picture": 200, "text": 50, "tree": 10}
"""Of the Server scenario's 99th percentile."""
SHARES = (0.9, 0.75, 0.6, 0.45, 0.3)
"""Rates of the Server scenario, of the Offline rate, until one is valid."""
SERVER_QUERIES = 700
"""LoadGen wants 459 queries to believe in a 99th percentile, and 662 if one of them is late."""
LONGEST_SECONDS = 15
"""Of a run of the Server scenario: a slower system gets no valid run."""
SAMPLES = 64
CLIENTS = 16
LOOP_ROWS = 8

Sender = Callable[[list[int]], None]
"""Returns when the samples of these numbers are answered."""


class RestSender:
    """Asks over one connection of HTTP/1.1, which a server may close while it is idle."""

    LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

    def __init__(self, port: int, requests: list[bytes]) -> None:
        self._port, self._requests = port, requests
        self._connect()

    def _connect(self) -> None:
        self._connection = socket.create_connection(("127.0.0.1", self._port), timeout=60)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __call__(self, samples: list[int]) -> None:
        for sample in samples:
            try:
                self._ask(self._requests[sample])
            except ConnectionError:
                self._connect()
                self._ask(self._requests[sample])

    def _ask(self, request: bytes) -> None:
        self._connection.sendall(request)
        answer = self._receive()
        while (end := answer.find(b"\r\n\r\n")) < 0:
            answer += self._receive()
        length = self.LENGTH.search(answer[:end])
        if not answer.startswith(b"HTTP/1.1 200") or length is None:
            raise ValueError(f"the server answers {answer[:200]!r}")
        missing = end + 4 + int(length[1]) - len(answer)
        while missing > 0:
            missing -= len(self._receive())

    def _receive(self) -> bytes:
        if data := self._connection.recv(1 << 16):
            return data
        raise ConnectionError("the server has closed the connection")


def grpc_sender(channel: Any, path: str, messages: list[bytes]) -> Sender:
    """Return what asks over a channel of grpcio."""
    method = channel.unary_unary(path)

    def send(samples: list[int]) -> None:
        for sample in samples:
            method(messages[sample], timeout=60)

    return send


class Clients:
    """Threads that answer LoadGen's samples through senders, each with so many rows at a time."""

    def __init__(self, senders: list[Sender], rows: int) -> None:
        import mlperf_loadgen

        self._loadgen, self._rows = mlperf_loadgen, rows
        self._waiting: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self.failure: Exception | None = None
        self._threads = [threading.Thread(target=self._run, args=(sender,)) for sender in senders]
        for thread in self._threads:
            thread.start()

    def issue(self, samples: Any) -> None:
        """Take a query of LoadGen."""
        for sample in samples:
            self._waiting.put((sample.id, sample.index))

    def _run(self, send: Sender) -> None:
        while first := self._waiting.get():
            batch = [first]
            while len(batch) < self._rows and not self._waiting.empty():
                further = self._waiting.get()
                if further is None:
                    raise RuntimeError("the clients were closed before their last answer")
                batch.append(further)
            try:
                if self.failure is None:
                    send([index for _, index in batch])
            except Exception as error:  # noqa: BLE001 - LoadGen waits until each sample is complete
                self.failure = error
            responses = [self._loadgen.QuerySampleResponse(number, 0, 0) for number, _ in batch]
            self._loadgen.QuerySamplesComplete(responses)

    def close(self) -> None:
        """End the threads."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()


@dataclass
class System:
    """A way to a model.

    Attributes:
        name: Of SYSTEMS.
        model: Of `calls.LOADGEN`.
        connect: Makes its senders.
        rows: How many samples a sender takes at a time.
    """

    name: str
    model: str
    connect: Callable[[], list[Sender]]
    rows: int

    def run(self, scenario: str, label: str, **settings: Any) -> dict[str, Any]:
        """Run LoadGen once; returns the entries of its detailed log.

        Raises:
            RuntimeError: A sample was not answered.
        """
        import mlperf_loadgen as loadgen

        asked = loadgen.TestSettings()
        asked.scenario = getattr(loadgen.TestScenario, scenario)
        asked.mode = loadgen.TestMode.PerformanceOnly
        for name, value in settings.items():
            setattr(asked, name, value)
        folder = RESULTS / "loadgen" / f"{self.model}-{self.name}-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        output = loadgen.LogOutputSettings()
        output.outdir, output.copy_summary_to_stdout = str(folder), False
        log = loadgen.LogSettings()
        log.log_output, log.enable_trace = output, False
        clients = Clients(self.connect(), self.rows)
        system = loadgen.ConstructSUT(clients.issue, lambda: None)
        library = loadgen.ConstructQSL(SAMPLES, SAMPLES, lambda _: None, lambda _: None)
        loadgen.StartTestWithLogSettings(system, library, asked, log)
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(system)
        clients.close()
        if clients.failure:
            raise RuntimeError(f"{type(clients.failure).__name__}: {clients.failure}")
        lines = (folder / "mlperf_log_detail.txt").read_text().splitlines()
        entries = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
        return {entry["key"]: entry["value"] for entry in entries}

    def measure(self, seconds: float) -> dict[str, Any]:
        """Return what the three scenarios say."""
        least = {"min_duration_ms": round(1000 * seconds)}
        warm = self.run(
            "Offline", "warm-up", min_duration_ms=1, min_query_count=1, offline_expected_qps=2e5
        )
        rate = warm["result_samples_per_second"]
        single = self.run("SingleStream", "single", min_query_count=SAMPLES, **least)
        for _ in range(3):  # it is invalid if the rate was expected too low, and the run too short
            offline = self.run(
                "Offline", "offline", min_query_count=1, offline_expected_qps=1.5 * rate, **least
            )
            rate = offline["result_samples_per_second"]
            if offline["result_validity"] == "VALID":
                break
        else:
            raise RuntimeError("no Offline run was long enough to be valid")
        row = {
            "single_p90_ms": single["result_90.00_percentile_latency_ns"] / 1e6,
            "offline_s": rate,
            "server_s": 0.0,
        }
        for share in SHARES:
            found = self.run(
                "Server", f"server-{share:.0%}", min_query_count=SERVER_QUERIES, server_target_qps=share * rate,
                server_target_latency_ns=BOUND_MS[self.model] * 1_000_000,
                max_duration_ms=1000 * LONGEST_SECONDS, **least,
            )  # fmt: skip
            if found["result_validity"] == "VALID":
                row["server_s"] = found["result_completed_samples_per_sec"]
                break
        return row


def inputs_of(model: str) -> list[np.ndarray]:
    """Return LoadGen's samples of a model."""
    from calls import LOADGEN, tensor

    return [tensor(LOADGEN[model], seed) for seed in range(SAMPLES)]


def served(name: str, server: Any, model: str) -> System:
    """Return the way to a model through a server, whose answers are right.

    Raises:
        ValueError: An answer is wrong.
    """
    import grpc
    from calls import LOADGEN, ask, check

    workload, protocol = LOADGEN[model], name.partition("-")[2]
    make = server.peer.grpc if protocol == "gRPC" else server.peer.rest
    inputs = inputs_of(model)
    made = [make(workload, x) for x in inputs]
    port = server.grpc if protocol == "gRPC" else server.http
    for x, call in zip(inputs, made, strict=True):
        check(workload, x, call.values(ask(call, port, None)))

    def connect() -> list[Sender]:
        if protocol == "REST":
            requests = [call.file() for call in made]
            return [RestSender(port, requests) for _ in range(CLIENTS)]
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        return [grpc_sender(channel, made[0].path, [call.body[5:] for call in made])] * CLIENTS

    return System(name, model, connect, rows=1)


def loop(model: str) -> System:
    """Return a loop over the model: one thread takes up to eight of the waiting samples."""
    from calls import LOADGEN
    from work import OnnxModel, padded

    name = {"W5": "network", "W6": "forest", "W8": "text"}[LOADGEN[model]]
    network, inputs = OnnxModel(name, threads=2), inputs_of(model)

    def send(samples: list[int]) -> None:
        rows = [inputs[sample] for sample in samples]
        if name == "text":
            network.run(*padded(rows))
        else:
            network.run(np.concatenate(rows))

    return System("loop", model, lambda: [send], LOOP_ROWS)


def rows_of(peer_name: str, given: argparse.Namespace, models: Path) -> list[dict[str, Any]]:
    """Measure all systems of one server, or the loop; returns a row for each system and model."""
    from peers import PEERS, RunningServer

    names = [name for name in given.systems if name.partition("-")[0] == peer_name]
    server = None
    if peer_name != "loop":
        peer = next(peer for peer in PEERS if peer.name == peer_name)
        server = RunningServer(peer, None)
        try:
            if why := peer.install():
                raise RuntimeError(f"{peer_name} cannot be installed: {why}")
            server.start(models)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            return [{"system": name, "model": model, "failed": str(error)[-300:]}
                    for name in names for model in given.models]  # fmt: skip
    try:
        return [
            measured(name, model, server, given.seconds) for name in names for model in given.models
        ]
    finally:
        if server:
            server.stop()


def measured(name: str, model: str, server: Any, seconds: float) -> dict[str, Any]:
    """Measure a system with a model; returns its row."""
    row: dict[str, Any] = {"system": name, "model": model}
    try:
        system = served(name, server, model) if server else loop(model)
        row |= system.measure(seconds)
    except Exception as error:  # noqa: BLE001 - a client's error is the row's result
        row["failed"] = f"{type(error).__name__}: {error}"[:300]
    print(row, flush=True)
    return row


def main() -> None:
    """Run LoadGen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--models", nargs="+", default=list(BOUND_MS), choices=list(BOUND_MS))
    parser.add_argument("--seconds", type=float, default=2.0, help="of a run, at least")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # servers are stopped
    began = time.time()
    results: dict[str, Any] = {"bound_ms": BOUND_MS, "rows": []}
    with tempfile.TemporaryDirectory(prefix="ksrv-loadgen-") as made:
        os.environ["WORK_MODELS"] = made
        from onnx_models import NARROW_RESNET_50, write_onnx_models

        write_onnx_models(Path(made), NARROW_RESNET_50)
        for peer_name in dict.fromkeys(name.partition("-")[0] for name in given.systems):
            results["rows"] += rows_of(peer_name, given, Path(made))
            results["minutes"] = (time.time() - began) / 60
            (RESULTS / "loadgen.json").write_text(json.dumps(results, indent=1) + "\n")
    print(f"{results['minutes']:.1f} minutes; {RESULTS / 'loadgen.json'}")


if __name__ == "__main__":
    main()
