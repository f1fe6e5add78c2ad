"""Servers that drain, close and stop while connections come, in a program without Python."""

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flavour", ["thread", "sanitize"])
def test_connections_opened_during_a_drain_get_goaway_or_close(flavour):
    assert "0 faults" in run_program(flavour, "connections/drains.cpp", "100")
