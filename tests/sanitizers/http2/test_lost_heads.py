"""Heads of calls that find no memory, in a program without Python."""

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long


@pytest.mark.timeout(600)
def test_head_without_memory_gets_no_too_large_error():
    printed = run_program("sanitize", "http2/lost_heads.cpp")
    if "libnghttp2 is missing" in printed:
        pytest.skip(printed)
    assert printed == "gRPC: to be sent again\n0 too large\n"
