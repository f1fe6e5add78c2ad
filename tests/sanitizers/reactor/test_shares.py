"""How protocols share the turns of the event loop and visits to Python, in a program without Python."""

import re

import pytest

from tests.support.native.programs import run_program

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

EVENTS = 16
"""Events of one epoll instance in a turn (native/reactor/event_loop.hpp)."""
SHARE_US, EVENT_US = 200, 100
"""A protocol's share of a turn, and of a visit to Python; the time that an event of the flood takes."""
SHARE_REQUESTS = 64
"""Requests of a protocol in a visit to Python."""


@pytest.fixture(scope="module")
def printed():
    text = run_program("sanitize", "reactor/shares.cpp")
    return {name: int(count) for name, count in re.findall(r"^(.*): (\d+)$", text, re.M)}


def number(printed, case):
    if case not in printed:
        pytest.skip("libnghttp2 is missing")
    return printed[case]


@pytest.mark.parametrize("flood", ["flood of the loop's epoll", "flood of the separate epoll"])
def test_event_of_one_protocol_waits_for_one_turn_of_the_other(printed, flood):
    assert printed[f"{flood}, events before the other protocol's"] < 2 * EVENTS


def test_events_after_a_share_of_time_are_late(printed):
    of_two_turns = 2 * (SHARE_US // EVENT_US + 1)
    assert printed["flood of the separate epoll, of these in time"] <= of_two_turns


@pytest.mark.parametrize(
    ("flood", "most"),
    [
        ("requests that take no time", SHARE_REQUESTS),
        ("requests of 100 us", SHARE_US // 100),
    ],
)
def test_flood_of_one_protocol_leaves_the_other_its_share(printed, flood, most):
    assert number(printed, f"{flood} before the call of the other protocol") <= most
    assert number(printed, f"{flood} before what the other protocol has sent is freed") <= most


def test_thread_that_runs_requests_is_not_stuck(printed):
    assert number(printed, "nanoseconds without a sign of life") <= 100_000


def test_idle_visit_to_python_is_not_repeated(printed):
    assert number(printed, "visits that found nothing to do") == 1
