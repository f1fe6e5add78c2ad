"""Frames of HTTP/2 without memory for them."""

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long


@pytest.mark.timeout(600)
def test_frame_without_memory_ends_its_connection():
    printed = run_program("sanitize", "http2/frame_without_memory.cpp")
    if "libnghttp2 is missing" in printed:
        pytest.skip(printed)
    assert printed == "the connection has ended\n"
