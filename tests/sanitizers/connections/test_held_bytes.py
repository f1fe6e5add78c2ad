"""The memory of an HTTP/2 connection, in a program without Python."""

import re

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long

CALLS, ANSWER = 100, 4000
COPIED_AHEAD = 64 << 10
"""Bytes of small frames that a connection makes before its socket takes them."""


@pytest.fixture(scope="module")
def printed():
    text = run_program("sanitize", "connections/held_bytes.cpp")
    if "libnghttp2 is missing" in text:
        pytest.skip("libnghttp2 is missing")
    return {name: int(count) for name, count in re.findall(r"^(.*): (\d+)$", text, re.M)}


def test_unread_small_answers_are_few_and_counted(printed):
    held = printed["held for answers that are not taken"]
    assert COPIED_AHEAD / 2 < held < COPIED_AHEAD + 2 * ANSWER
    assert printed["held afterwards"] == 0
    assert printed["taken at last"] > CALLS * ANSWER
