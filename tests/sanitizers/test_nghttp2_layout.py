"""The native core's declarations of libnghttp2 agree with the library's header, if it is installed."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
HEADER = Path("/usr/include/nghttp2/nghttp2.h")


@pytest.mark.skipif(not HEADER.exists(), reason="libnghttp2-dev is not installed")
def test_declarations_equal_the_header():
    command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{HERE.parent.parent / 'native'}"]
    done = subprocess.run(
        [*command, HERE / "nghttp2_layout.cpp"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
