"""A fixture that forgets the modules of TorchServe's handlers."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def ts_modules(monkeypatch: Any) -> Iterator[Any]:
    """Forget what a handler has imported in this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name in ("own_handler", "own_envelope", "net", "layers") or name.partition(".")[0] in (
            "ts",
            "torchvision",
        ):
            del sys.modules[name]
