"""The time that clients are given, over HTTP/1.1 and HTTP/2, by a clock that a program without Python moves."""

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long

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


@pytest.fixture(scope="module")
def printed():
    lines = run_program("sanitize", "connections/deadlines.cpp").splitlines()
    return dict(line.split(": ") for line in lines if ": " in line)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", ENDS)
def test_client_is_disconnected_at_its_deadline(printed, case):
    ends = ENDS[case]
    if case not in printed:
        pytest.skip("libnghttp2 is missing")
    if ends is None:
        assert printed[case] == "never"
    else:
        assert ends <= float(printed[case]) <= ends + STEP
