"""The seed of a run, which repeats its calls and its faults."""

import os
import random

import pytest


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> str:
    """The seed of one test; with SEED=random, as in `make test-faults`, each run has another seed."""
    given = os.environ.get("SEED") or "1"
    made = f"{given}:{request.node.name}"
    print(f"SEED={given}")  # shown by pytest where the test fails
    return made


@pytest.fixture
def choose(seed: str) -> random.Random:
    """The generator from which a test draws its decisions."""
    return random.Random(seed)
