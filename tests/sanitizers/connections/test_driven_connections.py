"""Connections of HTTP/1.1 and gRPC by a clock that a program without Python moves."""

import pytest

from tests.support.native.programs import run_program

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

HEAD, GRACE, IDLE, LINGER, UNSEEN, DRAINS = 10, 10, 75, 2, 0.5, 2
"""Seconds: for a head or the first message of a call; before a rate is asked for; between messages; after a refusal; for received bytes
that wait without an event; between messages while the server drains."""
STEP = 0.3
"""Seconds by which the sweep may be late, with the time for the answer."""
ENDS = {
    "no byte": HEAD,
    "half a head": HEAD + LINGER,
    "a head byte by byte": HEAD + LINGER,
    "a body that stops": GRACE + LINGER,
    "a body byte by byte": GRACE + LINGER,
    "a body at half of the rate": GRACE / (1 - 2000 / 4096) + LINGER,
    "an answer over HTTP/1.1 that is not taken": GRACE,
    "an answer at half of the rate": GRACE,
    "an answer at the rate": None,
    "a request after an answer that is not taken": UNSEEN,  # is served
    "a connection that is kept open": IDLE,
    "a connection whose owner sets its timer as the server drains": DRAINS,
    "no message": HEAD,
    "half a message": HEAD,
    "no message with a timeout of 1 s": 1,
    "half a message with a timeout of 1 s": 1,
    "half a message beside answers that are taken late": HEAD + 2,  # with the next answer but one
    "an answer that is not taken": GRACE,
    "no call": HEAD,
}
CALLS, ANSWER = 100, 4000
COPIED_AHEAD = 64 << 10
"""Bytes of small frames that a connection makes before its socket takes them."""
RETRY_BYTES = 200
"""A status that names the time to retry has more bytes."""


@pytest.fixture(scope="module")
def printed():
    lines = run_program("sanitize", "connections/driven_connections.cpp").splitlines()
    return dict(line.split(": ") for line in lines)


def number(printed, case):
    if printed.get("libnghttp2 is missing"):
        pytest.skip("libnghttp2 is missing")
    return float(printed[case])


@pytest.mark.parametrize("case", ENDS)
def test_client_is_disconnected_at_its_deadline(printed, case):
    if ENDS[case] is None:
        assert printed[case] == "never"
    else:
        assert ENDS[case] <= number(printed, case) <= ENDS[case] + STEP


def test_unread_small_answers_are_few_and_counted(printed):
    held = number(printed, "held for answers that are not taken")
    assert COPIED_AHEAD / 2 < held < COPIED_AHEAD + 2 * ANSWER
    assert number(printed, "held afterwards") == 0
    assert number(printed, "taken at last") > CALLS * ANSWER


def test_frame_without_memory_ends_its_connection(printed):
    assert number(printed, "open connections after a frame without memory") == 0


def test_bytes_after_ignored_data_are_not_written_into_freed_memory(printed):
    assert number(printed, "calls served around ignored data") == 2


def test_head_without_memory_gets_no_too_large_error(printed):
    assert number(printed, "bytes of the answer to a head without memory") > RETRY_BYTES
    assert number(printed, "heads without memory that count as too large") == 0
