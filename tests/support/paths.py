"""Folders of the checkout that tests read, and a copy of the sources of a wheel."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
NATIVE = ROOT / "native"


def copy_sources(target: Path) -> None:
    """Copy what a wheel is built from, without what was built."""
    built = shutil.ignore_patterns("*.so", "__pycache__")
    for name in ("native", "ksrv", "protos", "tools"):
        shutil.copytree(ROOT / name, target / name, ignore=built)
    files = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE")
    for name in files:
        shutil.copy(ROOT / name, target)
