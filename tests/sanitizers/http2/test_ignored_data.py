"""Frames that libnghttp2 passes over, under the address sanitizer."""

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long


@pytest.mark.timeout(600)
def test_what_comes_behind_data_that_is_passed_over_is_not_read_into_memory_that_goes():
    printed = run_program("sanitize", "http2/ignored_data.cpp")
    if "libnghttp2 is missing" in printed:
        pytest.skip(printed)
    assert printed == "2 calls are served\n"
