"""Imports modules of tools/release in tests."""

import importlib
import sys

import pytest

from tests.support.paths import ROOT


@pytest.fixture
def tool(monkeypatch):
    """Imports a module of tools/release, whose names are theirs alone for the time of a test."""
    monkeypatch.syspath_prepend(str(ROOT / "tools/release"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(ROOT / "tools/release") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
