"""Finds what a build takes from this machine, and the package that each file comes from."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Package(NamedTuple):
    version: str
    url: str


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compiler() -> list[str]:
    return os.environ.get("CXX", "g++").split()


def library(name: str) -> Path:
    """Return the path of a library that the compiler finds."""
    found = Path(run(*compiler(), f"-print-file-name={name}").strip())
    if not found.is_absolute():
        sys.exit(f"error: this machine has no {name}")
    return found.resolve()


def package_of(file: Path) -> Package | None:
    """Return the package of the system that a file is of."""
    from whichprovides import whichprovides

    for provided in whichprovides([str(file)]).values():
        return Package(provided.package_version, provided.purl)
    return None
