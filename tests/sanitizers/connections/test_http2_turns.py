"""The turns of HTTP/2 connections under the sanitizer, in a program without Python."""

import re

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long

FLOOD = 40_000 * 9


def served_beside_floods() -> list[int]:
    """Return the bytes of two floods that waited when each of four calls was served."""
    printed = run_program("sanitize", "connections/http2_turns.cpp")
    if "libnghttp2 is missing" in printed:
        pytest.skip(printed)
    assert "4 calls served, floods read, 0 bytes are held" in printed
    return [int(one) for one in re.findall(r"\d+(?= )", printed)[:4]]


@pytest.mark.timeout(600)
def test_call_waits_for_one_turn_of_each_flood():
    waiting = served_beside_floods()
    assert waiting == sorted(waiting, reverse=True)
    assert len(set(waiting)) == 4
    assert FLOOD < waiting[0] < 2 * FLOOD
    assert waiting[3] > 0
