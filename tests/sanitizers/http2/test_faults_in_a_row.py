"""CVE-2026-27135 of libnghttp2 aborts no server, under the address sanitizer."""

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long


@pytest.mark.timeout(600)
def test_second_fault_on_a_connection_aborts_no_session():
    printed = run_program("sanitize", "http2/faults_in_a_row.cpp")
    if "libnghttp2 is missing" in printed:
        pytest.skip(printed)
    assert printed.startswith("27440 sessions end without an abort")
