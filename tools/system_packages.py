"""Installs the Debian packages that `make demo` and `make test` need and that this machine lacks.

    python3 tools/system_packages.py

Each package has a probe, so nothing happens on a machine that has the programs and libraries from elsewhere. Root, and
a user with passwordless sudo, get the missing packages by apt-get. For everybody else the command is printed, and the
exit status is 1. Only Python's standard library is used: this runs before anything is installed.
"""

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from linux_only import check_system

OLDEST_PYTHON = (3, 11)
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def has_program(*names: str) -> Callable[[], bool]:
    return lambda: any(shutil.which(name) for name in names)


def has_library(name: str) -> Callable[[], bool]:
    def loads() -> bool:
        try:
            ctypes.CDLL(name)
        except OSError:
            return False
        return True

    return loads


def has_pkg_config(package: str) -> Callable[[], bool]:
    return lambda: (
        shutil.which("pkg-config") is not None
        and subprocess.run(["pkg-config", "--exists", package], check=False).returncode == 0
    )


PACKAGES: dict[str, Callable[[], bool]] = {
    "g++": has_program(*os.environ.get("CXX", "g++").split()[:1]),
    f"{PYTHON}-dev": lambda: Path(sysconfig.get_paths()["include"], "Python.h").exists(),
    f"{PYTHON}-venv": lambda: importlib.util.find_spec("ensurepip") is not None,
    "pkg-config": has_program("pkg-config"),
    "libjpeg62-turbo-dev": has_pkg_config("libjpeg"),
    "libnghttp2-14": has_library("libnghttp2.so.14"),
    "curl": has_program("curl"),
    "git": has_program("git"),
    "openssl": has_program("openssl"),
}
"""Debian's packages that compile ksrv, let it serve at full speed and are called by tests, and how to find each."""


def apt_get() -> list[str] | None:
    """Return how this user runs apt-get without a password, or None."""
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return ["apt-get"]
    sudo = shutil.which("sudo")
    allowed = sudo and subprocess.run([sudo, "-n", "true"], stderr=subprocess.DEVNULL, check=False)
    return [str(sudo), "-n", "apt-get"] if allowed and allowed.returncode == 0 else None


def megabytes(packages: list[str]) -> int:
    """Return how much apt-get will download for packages."""
    command = ["apt-get", "install", "--print-uris", "-qq", "--no-install-recommends", *packages]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return sum(int(line.split()[2]) for line in printed.splitlines()) // 1_000_000


def install(command: list[str], packages: list[str]) -> int:
    """Install packages and return apt-get's exit status."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    log = subprocess.run(
        [*command, "update", "-qq"], env=environment, capture_output=True, text=True, check=False
    )
    if log.returncode == 0:
        print(f"apt-get install {' '.join(packages)}: {megabytes(packages)} MB", flush=True)
        options = ["-qq", "-y", "--no-install-recommends"]
        log = subprocess.run(
            [*command, "install", *options, *packages],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if log.returncode != 0:
        print(log.stdout, log.stderr, sep="", file=sys.stderr)
    return log.returncode


def main() -> int:
    """Install what is missing and return the exit status."""
    check_system()
    if sys.version_info < OLDEST_PYTHON:
        newest = ".".join(map(str, OLDEST_PYTHON))
        print(
            f"error: ksrv needs Python {newest} or later, and {sys.executable} is {PYTHON[6:]}. "
            f"Name another Python: make PYTHON=python{newest} ...",
            file=sys.stderr,
        )
        return 1
    missing = [package for package, is_there in PACKAGES.items() if not is_there()]
    if not missing:
        return 0
    command = apt_get()
    if command is not None:
        return install(command, missing)
    print(
        f"error: this machine lacks {', '.join(missing)} (Debian's names). Install them, then run make again:\n\n"
        f"    sudo apt-get update && sudo apt-get install {' '.join(missing)}\n",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
