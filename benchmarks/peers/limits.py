"""The least that the work can cost: bare C servers for the transport, bare loops for the computation.

The servers validate nothing and answer constants: `../load/bare.c` over HTTP/1.1, with and without OpenSSL, and
`../grpc/bare.c` on libnghttp2. The loops run W3, W5 and W6 without a request, on a thread for each processor.
"""

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import calls
from calls import Call
from peers import Peer, RunningServer, free_port
from work import OnnxModel, pictures

HERE = Path(__file__).parent
ANSWER_BYTES = {"W1": 64, "W2": 40, "W4": 64 << 20}
NAME = "the limit"


class BareServer(RunningServer):
    """A bare C server, in the place of a peer.

    Args:
        folder: The folder for its program.
        workload: W1, W2 or W4.
        protocol: "REST" or "gRPC".
        tls: The files of its key and its certificate; None for cleartext.
    """

    def __init__(
        self, folder: Path, workload: str, protocol: str, tls: tuple[str, str] | None
    ) -> None:
        self.certificate = tls[1] if tls else None
        self.http = self.grpc = free_port()
        self.peer = Peer(
            NAME,
            "",
            (),
            (),
            "",
            lambda workload, x: bare_call(workload, "REST"),
            "",
        )
        kind = "grpc" if protocol == "gRPC" else "load"
        program = folder / f"bare-{kind}{'-tls' if tls else ''}"
        if not program.exists():
            libraries = {
                "grpc": ["-lnghttp2"],
                "load": ["-DWITH_TLS", "-lssl", "-lcrypto"] if tls else [],
            }[kind]
            source = HERE.parent / kind / "bare.c"
            subprocess.run(["cc", "-O2", source, "-o", program, *libraries], check=True)
        more = [workload] if kind == "grpc" else [str(ANSWER_BYTES[workload]), *(tls or ())]
        if workload == "W4" and kind == "load" and not tls:
            more.append("echo")
        self._process = subprocess.Popen([program, str(self.http), *more])
        while True:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.http), 1).close()
                return

    def processes(self) -> list[int]:
        """Return its process."""
        return [self._process.pid]

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def bare_call(workload: str, protocol: str) -> Call:
    """Return the call that a bare server is sent."""
    if protocol == "gRPC":
        return calls.grpc_call(calls.tensor(workload), workload.lower())
    return calls.v2_binary(calls.tensor(workload), f"/v2/models/{workload.lower()}/infer")


def bare_loop(workload: str, seconds: float) -> dict[str, float]:
    """Return requests a second and CPU microseconds of each, of W3, W5 (in batches of 8) or W6 without a server."""
    x = calls.tensor(workload)
    rows = 8 if workload == "W5" else 1
    run: Callable[[], Any]
    if workload == "W3":
        encoded = list(x)

        def run() -> Any:
            return pictures(encoded)
    else:
        model = OnnxModel("network" if workload == "W5" else "forest")
        batch = x.repeat(rows, axis=0)

        def run() -> Any:
            return model.run(batch)

    counts: list[int] = []
    until = time.monotonic() + seconds

    def loop() -> None:
        count = 0
        while time.monotonic() < until:
            run()
            count += rows
        counts.append(count)

    before, began = time.process_time(), time.monotonic()
    threads = [threading.Thread(target=loop) for _ in os.sched_getaffinity(0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    return {
        "requests_s": sum(counts) / took,
        "cpu_us": 1e6 * (time.process_time() - before) / sum(counts),
    }
