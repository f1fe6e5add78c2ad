"""Listeners that the kernel has no memory to watch, in a program without Python."""

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long


def test_unwatched_listeners_are_watched_again():
    assert "watched again" in run_program("sanitize", "connections/listener_memory.cpp")
