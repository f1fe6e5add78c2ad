"""HTTP/2 is served with libnghttp2 alone: without it the tests of this folder are skipped."""

import pytest

from tests.support.missing_tools import need_http2


@pytest.fixture(autouse=True, scope="module")
def library() -> None:
    """Skip a file of tests on a machine without libnghttp2."""
    need_http2()
