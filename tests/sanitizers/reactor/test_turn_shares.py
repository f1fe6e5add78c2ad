"""How protocols share the turns of the event loop, in a program without Python."""

import re

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long

EVENTS = 16
"""Events of one epoll instance in a turn (native/reactor/event_loop.hpp)."""
SHARE_US, EVENT_US = 200, 100
"""A protocol's share of a turn, and the time that an event of the flood takes."""


@pytest.fixture(scope="module")
def printed():
    text = run_program("sanitize", "reactor/turn_shares.cpp")
    return {name: int(count) for name, count in re.findall(r"^(.*): (\d+)$", text, re.M)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flood", ["flood of the loop's epoll", "flood of the epoll apart"])
def test_event_of_one_protocol_waits_for_one_turn_of_the_other(printed, flood):
    assert printed[f"{flood}, events before the other protocol's"] < 2 * EVENTS


@pytest.mark.timeout(600)
def test_events_after_a_share_of_time_are_late(printed):
    of_two_turns = 2 * (SHARE_US // EVENT_US + 1)
    assert printed["flood of the epoll apart, of these in time"] <= of_two_turns
