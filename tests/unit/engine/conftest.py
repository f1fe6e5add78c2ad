"""Engines that are closed at the end of a test, and an event that its handlers wait for."""

import threading

import pytest

from tests.support.engine import engine_models


@pytest.fixture
def engine():
    """Make started engines. Ask for it before `gate`, which has to open before they are closed."""
    made = []

    def make(*sources, **settings):
        made.append(engine_models.engine(*sources, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def gate():
    event = threading.Event()
    yield event
    event.set()
