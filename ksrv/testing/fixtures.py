"""pytest's fixtures: `pytest_plugins = ["ksrv.testing.fixtures"]` in a conftest.py."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ksrv.testing.models import Model, load


@pytest.fixture
def load_model() -> Iterator[Callable[..., Model]]:
    """A function that loads models like `ksrv.testing.load`. The models are closed after the test."""
    opened: list[Model] = []

    def make(handler: Any, **options: Any) -> Model:
        opened.append(load(handler, **options))
        return opened[-1]

    yield make
    for model in opened:
        model.close()
