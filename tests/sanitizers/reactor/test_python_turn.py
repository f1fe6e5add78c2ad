"""How protocols share visits to Python, in programs without Python."""

import re

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long

SHARE_REQUESTS, SHARE_US = 64, 200
"""Limits of a protocol in a round (native/reactor/event_loop.hpp)."""


@pytest.fixture(scope="module")
def printed():
    text = run_program("sanitize", "reactor/protocol_shares.cpp")
    if "libnghttp2 is missing" in text:
        pytest.skip("libnghttp2 is missing")
    return dict(re.findall(r"^(.*): (\d+)$", text, re.M))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("flood", "most"),
    [
        ("requests that take no time", SHARE_REQUESTS),
        ("requests of 100 us", SHARE_US // 100),
    ],
)
def test_flood_of_one_protocol_leaves_the_other_its_share(printed, flood, most):
    assert int(printed[f"{flood} before the call of the other protocol"]) <= most
    assert int(printed[f"{flood} before what the other protocol has sent is freed"]) <= most


@pytest.mark.timeout(600)
def test_thread_that_runs_requests_is_not_stuck(printed):
    assert int(printed["nanoseconds without a sign of life"]) <= 100_000


@pytest.mark.timeout(600)
def test_idle_visit_to_python_is_not_repeated(printed):
    assert printed["visits that found nothing to do"] == "1"
