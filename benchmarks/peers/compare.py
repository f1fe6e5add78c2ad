"""ksrv beside what people use: the same work, answers checked first, rounds interleaved.

    make bench-peers [ROUNDS=3] [ONLY='--servers ksrv FastAPI --workloads W1 --parts closed']

Each server is installed in a separate environment (`.venv-peers/`), started as its file in `apps/` says, and asked once in
every form that it reads; a server that answers wrongly is not timed. Parts:

closed  for each workload over REST and gRPC, cleartext and TLS: all servers are up, a round gives each in turn some seconds of
        load from as many clients as the workload has. Requests a second, and CPU time of all the server's processes for a
        request, are medians of the rounds.
open    W1, W3 and W5 over REST and gRPC at fixed rates: requests are due independently of the server, and latency counts from then. At
        half and at 80 % of what the slowest server did in the closed part, and of what the server itself did, for 2,000
        requests if these take at most --open-seconds, and for 10 s otherwise; then two
        seconds of 150 % and two of 50 %: answers within the former, refusals, and how long until latencies are again at most twice
        the latencies at 50 %.

The results go to benchmarks/results/peers.json, from which `page.py` writes docs/benchmarks.md. On two cores the servers
share the processors with the client, whose CPU time is printed as well. Only figures of one run are comparable.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "peers.json"
OPEN_CONNECTIONS = 64
OVERLOAD_SECONDS = 2
OPEN_REQUESTS = 2000
"""Requests at a fixed rate. Of fewer requests, a 99th percentile is one of the slowest few."""
LEAST_SECONDS = 4
SHORT_SECONDS = 10
"""How long a rate is held at least, and if `OPEN_REQUESTS` would take longer than `--open-seconds`."""


def build_client(folder: Path) -> Path:
    """Compile the load generator."""
    program = folder / "client"
    source = HERE / "client.cpp"
    subprocess.run(
        ["g++", "-O2", "-std=c++17", source, "-lssl", "-lcrypto", "-o", program], check=True
    )
    return program


def write_certificate(folder: Path) -> tuple[str, str]:
    """Make a key and a certificate for localhost; TorchServe reads RSA alone."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes",
         "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return str(key), str(certificate)


class Load:
    """Runs the client against servers.

    Args:
        program: The compiled client.
        folder: The folder for the files of its requests.
    """

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self._folder = program, folder

    def run(
        self, server: Any, workload: str, call: Any, *phases: str, clients: int
    ) -> list[dict[str, Any]]:
        """Load a server, closed for a phase in seconds, open for RATE:SECONDS.

        Returns:
            The output of `client.cpp` for each phase, and `cpu_s`, the server's CPU seconds over all phases.
        """
        file = self._folder / "request"
        file.write_bytes(call.file())
        port = server.grpc if call.is_grpc else server.http
        # The calls of one client of gRPC share a connection, as they do in its libraries.
        connections, streams = (1, clients) if call.is_grpc else (clients, 1)
        before = server.cpu_seconds()
        done = subprocess.run(
            [self._program, str(port), "grpc" if call.is_grpc else "http", "tls" if server.certificate else "plain",
             file, str(connections), str(streams), "open" if ":" in phases[0] else "closed", *phases],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{server.peer.name}, {workload}: {done.stderr.strip()}")
        used = server.cpu_seconds() - before
        return [json.loads(line) | {"cpu_s": used} for line in done.stdout.splitlines()]


def calls_of(server: Any, workload: str) -> dict[str, Any]:
    """Return a workload's calls of a server by protocol."""
    from calls import tensor

    found = {"REST": server.peer.rest(workload, tensor(workload))}
    if server.certificate is None or server.peer.grpc_tls:
        found["gRPC"] = server.peer.grpc(workload, tensor(workload))
    return {protocol: call for protocol, call in found.items() if call is not None}


def checked(server: Any, workload: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Ask a server once over each protocol; returns the calls that were answered rightly, and why others were not."""
    from calls import ask, check, tensor

    right, wrong = {}, {}
    for protocol, call in calls_of(server, workload).items():
        try:
            answer = ask(call, server.grpc if call.is_grpc else server.http, server.certificate)
            check(workload, tensor(workload), call.values(answer))
            right[protocol] = call
        except Exception as error:  # noqa: BLE001 - a client's error is the row's result
            wrong[protocol] = f"{type(error).__name__}: {str(error)[:300]}"
    return right, wrong


def bare_rows(
    stack: ExitStack, folder: Path, workload: str, transport: str, tls: Any
) -> list[dict[str, Any]]:
    """Start the bare C servers of a workload; returns their rows."""
    from limits import NAME, BareServer, bare_call

    if workload not in ("W1", "W2", "W4"):
        return []
    rows = []
    for protocol in ("REST",) if tls else ("REST", "gRPC"):
        server = BareServer(folder, workload, protocol, tls)
        stack.callback(server.stop)
        rows.append(
            {"server": NAME, "workload": workload, "transport": transport, "protocol": protocol,
             "call": bare_call(workload, protocol), "of": server, "rounds": []}
        )  # fmt: skip
    return rows


def loop_row(workload: str, given: Any) -> list[dict[str, Any]]:
    """Run W3, W5 and W6 without a server; returns the row."""
    from limits import NAME, bare_loop

    if workload not in ("W3", "W5", "W6"):
        return []
    found = [bare_loop(workload, given.seconds) for _ in range(given.rounds)]
    row: dict[str, Any] = {
        "server": NAME,
        "workload": workload,
        "transport": "cleartext",
        "protocol": "none",
    }
    row |= {key: statistics.median(row[key] for row in found) for key in found[0]}
    print(
        f"{workload} a bare loop: {row['requests_s']:,.1f} a second, {row['cpu_us']:,.1f} us CPU",
        flush=True,
    )
    return [row]


def closed_row(
    load: Load,
    servers: list[Any],
    workload: str,
    given: Any,
    transport: str,
    more: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Measure a workload on all servers that answer it; returns a result for each server and protocol."""
    from calls import CLIENTS

    rows: list[dict[str, Any]] = []
    for server in servers:
        right, wrong = checked(server, workload)
        begin = {"server": server.peer.name, "workload": workload, "transport": transport}
        rows += [begin | {"protocol": protocol, "failed": why} for protocol, why in wrong.items()]
        rows += [begin | {"protocol": protocol, "call": call, "of": server, "rounds": []}
                 for protocol, call in right.items()]  # fmt: skip
    rows += more
    for row in rows:
        if "failed" in row:
            show(row)
    timed = [row for row in rows if "call" in row]
    for turn in range(given.rounds + 1):  # the first round warms up
        for row in timed:
            if "failed" in row:
                continue
            try:
                seconds = str(given.seconds if turn else min(given.seconds, 0.5))
                found = load.run(
                    row["of"], workload, row["call"], seconds, clients=CLIENTS[workload]
                )[0]
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                row["failed"] = str(error)[-300:]
                continue
            if turn:
                row["rounds"].append(found)
    for row in timed:
        del row["call"], row["of"]
        for entry in row["rounds"]:
            del entry["worst_ms"]
        if row["rounds"] and "failed" not in row:
            row |= summary(row["rounds"])
        show(row)
    return rows


def summary(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """Return the medians of rounds."""
    good = [found for found in rounds if found["answered"]]
    if not good:
        return {"requests_s": 0.0}
    return {
        "requests_s": statistics.median(row["answered"] / row["seconds"] for row in good),
        "cpu_us": statistics.median(1e6 * row["cpu_s"] / row["answered"] for row in good),
        "client_cpu_us": statistics.median(
            1e6 * row["client_cpu_s"] / row["answered"] for row in good
        ),
        "p50_ms": statistics.median(row["p50_ms"] for row in good),
        "p99_ms": statistics.median(row["p99_ms"] for row in good),
        "errors": sum(row["errors"] for row in rounds),
    }


def show(row: dict[str, Any]) -> None:
    """Print a row."""
    name = f"{row['workload']} {row['transport']:9} {row['protocol']:5} {row['server']:11}"
    if "failed" in row:
        print(f"{name} FAILED {row['failed']}", flush=True)
    elif not row.get("requests_s"):
        print(f"{name} no answer within a round", flush=True)
    else:
        print(f"{name} {row['requests_s']:10,.1f} req/s {row['cpu_us']:12,.1f} us CPU  p50 {row['p50_ms']:8.2f} "
              f"p99 {row['p99_ms']:8.2f} ms  {row['errors']} errors", flush=True)  # fmt: skip


def open_rows(
    load: Load, servers: list[Any], workload: str, closed: list[dict[str, Any]], given: Any
) -> list[dict[str, Any]]:
    """Measure latencies at fixed rates in cleartext, over each protocol beside those who have it."""
    rows = []
    for protocol in ("REST", "gRPC"):
        capacity = {
            row["server"]: row["requests_s"]
            for row in closed
            if (row["workload"], row["protocol"], row["transport"]) == (workload, protocol, "cleartext")
            and row.get("requests_s")
        }  # fmt: skip
        for server in servers:
            if server.peer.name in capacity:
                begin = {"server": server.peer.name, "workload": workload, "protocol": protocol}
                rows += fixed_rates(load, server, begin, capacity, given)
    return rows


def fixed_rates(
    load: Load, server: Any, begin: dict[str, Any], capacity: dict[str, float], given: Any
) -> list[dict[str, Any]]:
    """Measure one server at fixed rates.

    Args:
        begin: The first cells of its rows: server, workload, protocol.
        capacity: The requests a second of each server over the protocol, this server included.
    """
    workload, own, slowest = begin["workload"], capacity[begin["server"]], min(capacity.values())
    call = calls_of(server, workload)[begin["protocol"]]
    name = f"{workload} {begin['protocol']:5} {begin['server']:11}"
    rows: list[dict[str, Any]] = []
    for of, share, rate in [("the slowest", 0.5, 0.5 * slowest), ("the slowest", 0.8, 0.8 * slowest),
                            ("own", 0.5, 0.5 * own), ("own", 0.8, 0.8 * own)]:  # fmt: skip
        row: dict[str, Any] = begin | {"of": of, "share": share, "rate": rate}
        phase = f"{rate:.2f}:{held_seconds(rate, given.open_seconds):.1f}"
        try:
            found = load.run(server, workload, call, phase, clients=OPEN_CONNECTIONS)
            row |= {
                key: found[0][key]
                for key in ("p50_ms", "p99_ms", "p999_ms", "sent", "answered", "errors")
            }
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            row["failed"] = str(error)[-300:]
        rows.append(row)
        shown = {key: row.get(key) for key in ("p50_ms", "p99_ms", "p999_ms", "errors", "failed")}
        print(f"{name} {rate:10,.1f}/s ({share:.0%} of {of})", shown, flush=True)
    rows.append(overload(load, server, begin, call, own, rows[-2].get("p99_ms", 0.0)))
    return rows


def held_seconds(rate: float, most: float) -> float:
    """Return how long a rate is held.

    Args:
        rate: Requests a second.
        most: The most seconds for `OPEN_REQUESTS`.
    """
    seconds = OPEN_REQUESTS / rate
    return max(seconds, LEAST_SECONDS) if seconds <= most else SHORT_SECONDS


def overload(
    load: Load, server: Any, begin: dict[str, Any], call: Any, own: float, usual_ms: float
) -> dict[str, Any]:
    """Ask for more than a server can do, then for half of that; returns goodput, refusals and recovery."""
    row: dict[str, Any] = begin | {"of": "own", "share": 1.5, "rate": 1.5 * own}
    workload = begin["workload"]
    phases = f"{1.5 * own:.2f}:{OVERLOAD_SECONDS}", f"{0.5 * own:.2f}:{OVERLOAD_SECONDS}"
    try:
        found = load.run(server, workload, call, *phases, clients=OPEN_CONNECTIONS)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return row | {"failed": str(error)[-300:]}
    slow = [
        index for index, worst in enumerate(found[1]["worst_ms"]) if worst > max(2 * usual_ms, 2.0)
    ]
    row |= {
        "goodput": found[0]["in_time"] / (OVERLOAD_SECONDS * own),
        "refused": found[0]["errors"] / max(found[0]["sent"], 1),
        "recovery_s": (slow[-1] + 1) / 10 if slow else 0.0,
        "p99_ms": found[0]["p99_ms"],
    }
    print(f"{workload} {begin['protocol']:5} {server.peer.name:11} 150 %: goodput {row['goodput']:.2f} of its capacity, {row['refused']:.1%} refused, "
          f"recovers in {row['recovery_s']:.1f} s", flush=True)  # fmt: skip
    return row


def run_transport(
    transport: str, given: Any, load: Load, folder: Path, results: dict[str, Any]
) -> None:
    """Start all servers that speak cleartext or TLS, and measure them."""
    from peers import PEERS, RunningServer

    key, certificate = write_certificate(folder) if transport == "TLS" else (None, None)
    servers = []
    with ExitStack() as stack:
        for peer in PEERS:
            if peer.name not in given.servers or (transport == "TLS" and not peer.tls):
                continue
            if why := peer.install():
                results["left_out"][peer.name] = why
                print(f"{peer.name} cannot be installed: {why}", flush=True)
                continue
            server = RunningServer(peer, certificate)
            try:
                server.start(folder / "models", key)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                results["left_out"][f"{peer.name}, {transport}"] = str(error)
                print(error, flush=True)
                continue
            stack.callback(server.stop)
            servers.append(server)
            # Its peak is measured again after the workloads.
            results["servers"].setdefault(peer.name, server_row(server))
            print(f"{peer.name} serves {transport} after {server.start_seconds:.1f} s", flush=True)
        for workload in given.workloads:
            tls = (key, certificate) if key else None
            with ExitStack() as bare:
                more = bare_rows(bare, folder, workload, transport, tls)
                rows = closed_row(load, servers, workload, given, transport, more)
            results["closed"] += rows
            if transport == "cleartext":
                results["closed"] += loop_row(workload, given)
            if (
                "open" in given.parts
                and transport == "cleartext"
                and workload in ("W1", "W3", "W5")
            ):
                results["open"] += open_rows(load, servers, workload, rows, given)
            write(results)
        if transport == "cleartext":
            results["servers"] |= {server.peer.name: server_row(server) for server in servers}


def server_row(server: Any) -> dict[str, Any]:
    """Return what a server takes beside requests."""
    peer = server.peer
    return {
        "start_s": server.start_seconds, "peak_mb": server.peak_megabytes(), "install_mb": peer.megabytes(),
        "lines": peer.lines(), "about": peer.about,
    }  # fmt: skip


def write(results: dict[str, Any]) -> None:
    """Store the results so far."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", nargs="+", help="all, if none is named")
    parser.add_argument("--workloads", nargs="+")
    parser.add_argument(
        "--transports", nargs="+", default=["cleartext", "TLS"], choices=["cleartext", "TLS"]
    )
    parser.add_argument(
        "--parts", nargs="+", default=["closed", "open"], choices=["closed", "open"]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of load in a round")
    parser.add_argument(
        "--open-seconds",
        type=float,
        default=45.0,
        help="the most for 2,000 requests at a fixed rate",
    )
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # servers are stopped
    began = time.time()
    with tempfile.TemporaryDirectory(prefix="ksrv-peers-") as made:
        folder = Path(made)
        (folder / "models").mkdir()
        os.environ["WORK_MODELS"] = str(folder / "models")
        from onnx_models import RESNET_18, write_onnx_models

        write_onnx_models(folder / "models", RESNET_18)
        from calls import WORKLOADS
        from peers import PEERS

        given.servers = given.servers or [peer.name for peer in PEERS]
        given.workloads = given.workloads or list(WORKLOADS)
        results: dict[str, Any] = {
            "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "date": time.strftime("%Y-%m-%d")},
            "rounds": given.rounds, "seconds": given.seconds, "open_seconds": given.open_seconds,
            "overload_seconds": OVERLOAD_SECONDS, "servers": {}, "closed": [], "open": [], "left_out": {},
        }  # fmt: skip
        load = Load(build_client(folder), folder)
        for transport in given.transports:
            run_transport(transport, given, load, folder, results)
        results["minutes"] = (time.time() - began) / 60
        write(results)
    print(f"{results['minutes']:.1f} minutes; {RESULTS}")


if __name__ == "__main__":
    main()
