"""The seed of a run, which repeats its calls and its faults."""

import os
import random

import pytest


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> str:
    """The seed of one test; SEED=random, which `make test-faults` asks for, is another one in each run."""
    given = os.environ.get("SEED") or "1"
    made = f"{given}:{request.node.name}"
    print(f"SEED={given}")  # shown by pytest where the test fails
    return made


@pytest.fixture
def choose(seed: str) -> random.Random:
    """What a test draws its own decisions from."""
    return random.Random(seed)
