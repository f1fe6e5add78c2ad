"""Folders of the checkout that tests read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
NATIVE = ROOT / "native"
