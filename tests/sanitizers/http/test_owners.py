"""Each owner of the HTTP server, in programs without a server."""

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("flavour", "program"),
    [("sanitize", "incoming_body"), ("sanitize", "owners"), ("thread", "owners")],
)
def test_owner_program_finds_no_fault(flavour, program):
    assert "0 faults" in run_program(flavour, f"http/{program}.cpp")
