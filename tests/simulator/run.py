"""Runs the simulator: many simulations of the native event loop, each with another seed. One of four has a model whose
handler runs in processes.

    python -m tests.simulator.run --first 1 --seeds 100000 --minutes 10

A seed that finds a fault is printed, and the run continues; `--first N --seeds 1` makes that simulation again, and
SIMULATOR_TRACE=1 before it prints what happens in it, step by step.
"""

import argparse
import base64
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.simulator import seeds
from tests.support.paths import ROOT

SOURCE = Path("tests/simulator/simulate.cpp")
ED25519_KEY = bytes.fromhex("302e020100300506032b657004220420")
"""The bytes before the 32 bytes of a private key in PKCS #8 (RFC 8410, 7)."""


def build(tree: Path = ROOT) -> Path:
    """Build the simulator of a tree, and return its program.

    Raises:
        RuntimeError: It does not compile.
    """
    command = [sys.executable, "tools/native_build.py", "sanitize", str(SOURCE), "--into", "build/programs/sanitize"]  # fmt: skip
    built = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        raise RuntimeError(built.stderr)
    return Path(built.stdout.strip())


def write_certificate(folder: Path) -> list[str]:
    """Write a key and its certificate into a folder, and return their paths.

    They are as long each time, and so are their signatures: a seed repeats the sizes of all that is sent over TLS. The key
    is not a secret, because everybody can make it.
    """
    key, chain = folder / "simulator.key", folder / "simulator.pem"
    made = base64.b64encode(ED25519_KEY + hashlib.sha256(b"ksrv's simulator").digest()).decode()
    key.write_text(f"-----BEGIN PRIVATE KEY-----\n{made}\n-----END PRIVATE KEY-----\n")
    command = ["openssl", "req", "-x509", "-key", key, "-out", chain, "-days", "36500", "-subj", "/CN=simulator", "-set_serial", "1"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return [str(key), str(chain)]


@contextmanager
def certificate() -> Iterator[list[str]]:
    """Yield the paths of the key and of its certificate, until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        yield write_certificate(Path(folder))


def main() -> int:
    """Run simulations as the command line says, and return 1 if one found a fault."""
    parser = argparse.ArgumentParser(description="Simulate the native event loop.")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--minutes", type=float, default=10, help="stop after this time")
    parser.add_argument("--jobs", type=int, default=1, help="processes, which share the seeds")
    parser.add_argument(
        "--full",
        action="store_true",
        help="a server at its limit of connections, or a full queue, in each",
    )
    given = parser.parse_args()
    program = build()
    with certificate() as files:
        command = [program, *files, *(["full"] if given.full else [])]
        if given.seeds == 1:
            return subprocess.run([*command, str(given.first), "1"], check=False).returncode
        last = given.first + given.seeds - 1
        limits = ["--jobs", str(given.jobs), "--minutes", str(given.minutes)]
        return seeds.main([str(given.first), str(last), *limits, *map(str, command)])


if __name__ == "__main__":
    sys.exit(main())
