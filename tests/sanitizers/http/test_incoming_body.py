"""How a body is received and counted, in a program without a server."""

import pytest

from tests.support.native.programs import run_program


@pytest.mark.timeout(600)
def test_a_body_tells_its_caller_what_to_do():
    assert "0 faults" in run_program("sanitize", "http/incoming_body.cpp")
