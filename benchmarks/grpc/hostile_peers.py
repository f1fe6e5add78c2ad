"""Latency of a good client beside hostile peers of the same protocol, and of the other protocol.

    python benchmarks/grpc/hostile_peers.py [--calls 2000] [--rounds 1] [--pause 0.02] [--separate] [--client CLIENT] [ATTACK ...]

A good client sends W1 again and again over one connection, over plain TCP and over TLS: by ModelInfer of gRPC, and over
REST (HTTP/1.1). Meanwhile sixteen peers attack from a process of low priority. The table has the client's median and
99th percentile as ratios to the same client alone, measured before and after; `alone` is the ratio of these two 99th
percentiles, which shows how quiet the machine is. With several rounds each figure is a median over the rounds. A peer
that is disconnected connects again after a pause.

An attack, and a server's work for it, take processors from the good client, too. `elsewhere` is the 99th percentile
while the same attack is made on a second server on this machine, and `shared` is the ratio of the two: the cost of the
attack on the good client's server, compared with a machine that is as busy. The last line counts the 99th percentiles
above twice the client's alone, and those above twice `elsewhere`; the exit status is about the latter. `server` and
`peers` are the processors that the server and the attack used. With `--separate` the attack has the last processor for
itself, and the good client and the servers have the others.
"""

import argparse
import contextlib
import http.client
import math
import multiprocessing
import os
import resource
import selectors
import socket
import ssl
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import grpc

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "load"))
from bench import rest_body
from conditions import certificate
from grpc_load import METHOD, OPTIONS, cpu_seconds, request_of
from servers import write_models

from ksrv.testing import Server

GOAL = 2.0
"""The most that a 99th percentile may be of the same client's with nobody beside it, or beside an attack on another server."""

PEERS = 16
CROWD = 900
"""The connections of a crowd: of HTTP/1.1, each with a request under way, or of HTTP/2, each without a call."""
STREAMS = 128
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 2, 3, 4, 6, 8, 9,
)  # fmt: skip
END_STREAM, END_HEADERS = 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


def field(name: str, value: str) -> bytes:
    """A field of HPACK: literal, not indexed."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))


FIELDS = b"".join(
    field(*pair)
    for pair in {
        ":method": "POST",
        ":scheme": "http",
        ":path": METHOD,
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }.items()
)
NO_SETTINGS = frame(SETTINGS, 0, 0)
NO_WINDOW = frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0")


def head(stream: int, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, FIELDS)


def whole(stream: int, message: bytes) -> bytes:
    prefixed = b"\0" + len(message).to_bytes(4, "big") + message
    return head(stream) + frame(DATA, END_STREAM, stream, prefixed)


def odd(count: int) -> range:
    return range(1, 2 * count, 2)


def all_heads() -> bytes:
    return b"".join(map(head, odd(STREAMS)))


STORED = b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4_000
"""A field of 4,000 bytes for HPACK's table, which the byte 0xbe names from then on."""


def bomb(stream: int, times: int, more: bytes = b"") -> bytes:
    """A head that names the stored field so many times."""
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, FIELDS + more + b"\xbe" * times)


def bombs(times: int, every_s: float) -> "Attack":
    """Heads far above their limit. Later rounds reuse the streams, which costs a server less."""
    return lambda: (
        NO_SETTINGS + bomb(1, 0, STORED),
        b"".join(bomb(stream, times) for stream in odd(500)[1:]),
        every_s,
    )


Attack = Callable[[], tuple[bytes, bytes, float]]
"""First bytes of a peer, the bytes that it repeats, and the seconds between."""

ATTACKS: dict[str, Attack] = {
    "calls without a message": lambda: (NO_SETTINGS + all_heads(), b"", 1),
    "half-open peers": lambda: (PREFACE[:9], b"", 1),
    "connections, one by one": lambda: (frame(SETTINGS, 0, 0, b"x"), b"", 0),  # which ends them
    "half a head": lambda: (NO_SETTINGS + head(1, 0)[:30], b"", 1),
    "window 0": lambda: (
        NO_WINDOW + b"".join(whole(stream, request_of("W1")) for stream in odd(STREAMS)),
        b"",
        1,
    ),
    "slow readers": lambda: (
        frame(SETTINGS, 0, 0, b"\0\4\0\0\0\1")
        + b"".join(whole(stream, request_of("W1")) for stream in odd(STREAMS)),
        b"".join(frame(WINDOW_UPDATE, 0, stream, b"\0\0\0\1") for stream in odd(STREAMS)),
        0.1,
    ),
    "slow messages": lambda: (
        NO_SETTINGS + all_heads() + frame(DATA, 0, 1, b"\0\0\1\0\0"),
        frame(DATA, 0, 1, b"x"),
        0.05,
    ),
    "RST_STREAM": lambda: (
        NO_SETTINGS,
        b"".join(
            head(stream) + frame(RST_STREAM, 0, stream, b"\0\0\0\x08") for stream in odd(4000)
        ),
        0,
    ),
    "CONTINUATION": lambda: (
        NO_SETTINGS + head(1, 0),
        frame(CONTINUATION, 0, 1, field("a", "b")) * 500,
        0,
    ),
    "SETTINGS": lambda: (NO_SETTINGS, frame(SETTINGS, 0, 0, b"\0\4\0\1\0\0") * 500, 0),
    "PING": lambda: (NO_SETTINGS, frame(PING, 0, 0, bytes(8)) * 500, 0),
    "PRIORITY": lambda: (NO_SETTINGS, frame(PRIORITY, 0, 1, bytes(5)) * 500, 0),
    "empty DATA": lambda: (NO_SETTINGS + head(1), frame(DATA, 0, 1) * 500, 0),
    "header bombs": bombs(17, 0),
    "header bombs of 900 KB": bombs(900_000, 0),
    "frames that are ignored": lambda: (NO_SETTINGS, frame(0xAB, 0, 0, b"x") * 500, 0.001),
}


def keep_on(port: int, context: ssl.SSLContext | None, attack: Attack, pause: float) -> None:
    """Be one hostile peer, again and again."""
    first, again, between = attack()
    preface = b"" if first.startswith(PREFACE[:9]) else PREFACE
    while True:
        with contextlib.suppress(OSError):
            plain = socket.create_connection(("127.0.0.1", port), 10)
            with plain if context is None else context.wrap_socket(plain) as peer:
                peer.settimeout(5)
                peer.sendall(preface + first)
                while True:
                    if again:
                        peer.sendall(again)
                    elif not peer.recv(65536):
                        break
                    time.sleep(between)
        time.sleep(pause)


def keep_busy(port: int, ready: Event) -> None:
    """Be a crowd of HTTP/1.1: each connection sends its next request with its answer."""
    body, header = rest_body("W1")
    request = (
        f"POST /v2/models/w1/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        f"Inference-Header-Content-Length: {header}\r\n\r\n"
    ).encode() + body
    waiting = selectors.DefaultSelector()
    for _ in range(CROWD):
        peer = socket.create_connection(("127.0.0.1", port), 10)
        waiting.register(peer, selectors.EVENT_READ, peer)
        peer.sendall(request)
    ready.set()
    while True:
        for key, _ in waiting.select():
            peer = key.data
            with contextlib.suppress(OSError):
                if peer.recv(65536):
                    peer.sendall(request)
                    continue
            waiting.unregister(peer)


def keep_open(port: int, ready: Event) -> None:
    """Be a crowd of HTTP/2 that has made one call each, and makes no other."""
    peers = []
    for _ in range(CROWD):
        peer = socket.create_connection(("127.0.0.1", port), 10)
        peer.sendall(PREFACE + NO_SETTINGS + whole(1, request_of("W1")))
        peers.append(peer)
    ready.set()
    time.sleep(3600)


CROWDS: dict[str, tuple[Callable[[int, Event], None], str]] = {
    "busy HTTP/1.1": (keep_busy, "REST"),
    "idle HTTP/2": (keep_open, "gRPC"),
}
"""Function that a crowd runs, and the protocol of its port."""


def be_hostile(
    ports: dict[str, int],
    encrypted: bool,
    name: str,
    pause: float,
    processors: set[int],
    ready: Event,
) -> None:
    """The process of all hostile peers."""
    os.nice(10)
    os.sched_setaffinity(0, processors)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if name in CROWDS:
        crowd, protocol = CROWDS[name]
        crowd(ports[protocol], ready)
        return
    context = None
    if encrypted:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
    for _ in range(PEERS):
        arguments = (ports["gRPC"], context, ATTACKS[name], pause)
        threading.Thread(target=keep_on, args=arguments, daemon=True).start()
    ready.set()
    time.sleep(3600)


@contextlib.contextmanager
def attacked(
    ports: dict[str, int], encrypted: bool, name: str, pause: float, processors: set[int]
) -> Iterator[int]:
    """Yield the process of an attack, which runs meanwhile."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(
        target=be_hostile, args=(ports, encrypted, name, pause, processors, ready), daemon=True
    )
    process.start()
    ready.wait()
    time.sleep(0.5)
    try:
        assert process.pid is not None
        yield process.pid
    finally:
        process.terminate()
        process.join()
        time.sleep(0.5)


@contextlib.contextmanager
def processors_used(*pids: int) -> Iterator[list[float]]:
    """Yield a list that has, at the end, how many processors each process has used meanwhile."""
    used: list[float] = []
    began, before = time.monotonic(), [cpu_seconds(pid) for pid in pids]
    yield used
    took = time.monotonic() - began
    used.extend(
        (cpu_seconds(pid) - seconds) / took for pid, seconds in zip(pids, before, strict=True)
    )


Ask = Callable[[], object]
"""Makes one request of a good client, and waits for its answer."""


def grpc_client(address: str, chain: Path | None) -> Ask:
    if chain is None:
        channel = grpc.insecure_channel(address, OPTIONS)
    else:
        channel = grpc.secure_channel(
            address, grpc.ssl_channel_credentials(chain.read_bytes()), OPTIONS
        )
    infer, message = channel.unary_unary(METHOD), request_of("W1")
    return lambda: infer(message, timeout=60)


def rest_client(address: str, chain: Path | None) -> Ask:
    if chain is None:
        connection = http.client.HTTPConnection(address, timeout=60)
    else:
        context = ssl.create_default_context(cafile=str(chain))
        connection = http.client.HTTPSConnection(address, timeout=60, context=context)
    body, header = rest_body("W1")
    fields = {"Inference-Header-Content-Length": str(header)}

    def ask() -> None:
        connection.request("POST", "/v2/models/w1/infer", body, fields)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise OSError(f"status {answer.status}")

    return ask


CLIENTS = {"gRPC": grpc_client, "REST": rest_client}


def latencies(ask: Ask, count: int) -> tuple[float, float]:
    """Return the 50th and the 99th percentile of a good client's latency, in seconds.

    A call that is refused counts as one without an end.
    """
    took = []
    for _ in range(count):
        began = time.perf_counter()
        try:
            ask()
        except (grpc.RpcError, OSError, http.client.HTTPException):
            began = -math.inf
        took.append(time.perf_counter() - began)
    took.sort()
    return took[count // 2], took[count * 99 // 100]


class Round(NamedTuple):
    """One measurement of a good client beside an attack: ratios, and processors."""

    median: float
    p99: float
    elsewhere: float
    shared: float
    alone: float
    server: float
    peers: float


def ports_of(server: Server) -> dict[str, int]:
    """Return the port of each protocol."""
    addresses = {"gRPC": server.grpc, "REST": server.http}
    return {protocol: int(at.rpartition(":")[2]) for protocol, at in addresses.items()}


def measure(
    ask: Ask, servers: tuple[Server, Server], way: str, name: str, given: argparse.Namespace
) -> Round:
    """Measure a good client of the first server alone, beside an attack on each server, and alone again."""
    before = latencies(ask, given.calls)
    beside = []
    for server in servers:
        with (
            attacked(ports_of(server), way == "TLS", name, given.pause, given.hostile) as peers,
            processors_used(servers[0].pid, peers) as used,
        ):
            beside.append(latencies(ask, given.calls))
        if server is servers[0]:
            processors = used
    after = latencies(ask, given.calls)
    alone = [statistics.mean(pair) for pair in zip(before, after, strict=True)]
    (median, p99), (_, elsewhere) = (
        [value / its for value, its in zip(found, alone, strict=True)] for found in beside
    )
    quiet = max(before[1], after[1]) / min(before[1], after[1])
    return Round(median, p99, elsewhere, p99 / elsewhere, quiet, *processors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "attacks", nargs="*", choices=[*ATTACKS, *CROWDS, []], help="all, if none is named"
    )
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=1, help="measurements of each attack")
    parser.add_argument("--client", choices=CLIENTS, help="one good client, and not both")
    parser.add_argument("--way", choices=["plain", "TLS"], help="one way, and not both")
    parser.add_argument(
        "--pause", type=float, default=0.02, help="seconds before a peer comes again"
    )
    parser.add_argument(
        "--separate", action="store_true", help="the attack has the last processor for itself"
    )
    given = parser.parse_args()
    processors = given.hostile = os.sched_getaffinity(0)
    if given.separate:
        given.hostile = {max(processors)}
        os.sched_setaffinity(0, processors - given.hostile)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="ksrv-hostile-") as name:
        folder = Path(name)
        write_models(folder / "models")
        key, chain = certificate(folder)
        print(
            f"{'way':<6} {'client':<6} {'beside':<26} {'median':>8} {'p99':>8} {'elsewhere':>10} {'shared':>8} {'alone':>8} "
            f"{'server':>7} {'peers':>6}"
        )
        found: dict[str, Round] = {}
        for way in [given.way] if given.way else ["plain", "TLS"]:
            tls: dict[str, Any] = (
                {"tls_cert": str(chain), "tls_key": str(key)} if way == "TLS" else {}
            )
            with (
                Server(folder / "models", max_connections=2 * CROWD, **tls) as server,
                Server(folder / "models", max_connections=2 * CROWD, **tls) as other,
            ):
                for client in [given.client] if given.client else CLIENTS:
                    port = ports_of(server)[client]
                    ask = CLIENTS[client](f"localhost:{port}", chain if tls else None)
                    latencies(ask, given.calls // 4)
                    for attack in given.attacks or [*ATTACKS, *CROWDS]:
                        if tls and attack in CROWDS:
                            continue
                        rounds = [
                            measure(ask, (server, other), way, attack, given)
                            for _ in range(given.rounds)
                        ]
                        made = Round(*map(statistics.median, zip(*rounds, strict=True)))
                        found[f"{way}, {client}, {attack}"] = made
                        print(
                            f"{way:<6} {client:<6} {attack:<26} {made.median:7.2f}x {made.p99:7.2f}x "
                            f"{made.elsewhere:9.2f}x {made.shared:7.2f}x {made.alone:7.2f}x "
                            f"{made.server:7.2f} {made.peers:6.2f}",
                            flush=True,
                        )
    sys.exit(verdict(found))


def verdict(found: dict[str, Round]) -> int:
    """Print whether the goal is met; return the exit status.

    Args:
        found: The measurements, by what they are of.
    """
    alone = sum(made.p99 > GOAL for made in found.values())
    shared = sum(made.shared > GOAL for made in found.values())
    worst = max(found, key=lambda name: found[name].shared)
    print(
        f"goal {'missed' if shared else 'met'}: of {len(found)} 99th percentiles {alone} are above {GOAL:g} of the client alone, "
        f"and {shared} above {GOAL:g} of it beside the attack on another server; the worst of these is "
        f"{found[worst].shared:.2f} ({worst})"
    )
    return 1 if shared else 0


if __name__ == "__main__":
    main()
