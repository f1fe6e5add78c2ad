"""The HTTP server's races, each held still in a program without Python."""

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flavour", ["sanitize", "thread"])
def test_http_server_has_no_races(flavour):
    assert "0 races" in run_program(flavour, "connections/http_server_races.cpp")
