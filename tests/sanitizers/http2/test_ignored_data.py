"""Frames that libnghttp2 passes over, under the address sanitizer."""

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long


@pytest.mark.timeout(600)
def test_bytes_after_ignored_data_are_not_written_into_freed_memory():
    printed = run_program("sanitize", "http2/ignored_data.cpp")
    if "libnghttp2 is missing" in printed:
        pytest.skip(printed)
    assert printed == "2 calls are served\n"
