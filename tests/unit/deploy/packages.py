"""Packages that only tests of deploy/ need. Tests without them are skipped, but fail in CI."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


def need(package):
    """Return the folder of a package that `make test` installs, without importing it."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        _missing(f"the package {package}")
    return Path(found.origin).parent


def need_program(name):
    """Return a program that a package of the test extra installs beside Python."""
    here = Path(sys.executable).with_name(name)
    found = str(here) if here.is_file() else shutil.which(name)
    return found or _missing(f"the program {name}")


def _missing(what):
    text = f"{what} is missing; make test installs it"
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)
