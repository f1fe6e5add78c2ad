"""C++ programs over the native core, built with a sanitizer."""

import subprocess
import sys

from tests.support.paths import ROOT

BUILD = ROOT / "tools" / "native_build.py"
SOURCES = ROOT / "tests" / "sanitizers"


def run_program(flavour: str, name: str, *arguments: str) -> str:
    """Build a program of tests/sanitizers, unless it is there, and return what it printed.

    The test fails where a sanitizer found anything.
    """
    command = [
        sys.executable,
        BUILD,
        flavour,
        SOURCES / name,
        "--into",
        ROOT / "build" / "programs" / flavour,
    ]
    built = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert built.returncode == 0, built.stderr
    program = built.stdout.strip()
    ran = subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=500, check=False
    )
    assert ran.returncode == 0 and "WARNING" not in ran.stderr, ran.stdout + ran.stderr
    return ran.stdout
