"""The token bucket and the count of running requests, compared with a simple model of both."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksrv.engine.requests.rate_limits import KEYS, RateLimits
from ksrv.errors import TooManyRequests


class Clock:
    """A clock that the test controls."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


def admitted(limits):
    """Send a request. Return 0, or the seconds until it would be accepted."""
    try:
        limits.admit("m", "the model m")()
    except TooManyRequests as error:
        return error.retry_after
    return 0


@given(st.integers(1, 50), st.lists(st.integers(0, 300), max_size=60))
def test_a_rate_is_kept_over_any_second(rate, pauses_ms):
    clock = Clock()
    limits = RateLimits(rate, "rate_limit", 0, "max_concurrency", clock=clock)
    tokens, taken = float(rate), []
    for pause in pauses_ms:
        clock.now += pause * 1_000_000
        tokens = min(float(rate), tokens + pause / 1000 * rate)
        wait = admitted(limits)
        if wait:
            assert tokens < 1 + 1e-6
            assert tokens + wait * rate >= 1 - 1e-6
        else:
            assert tokens >= 1 - 1e-6
            tokens -= 1
            taken.append(clock.now)
    for at in taken:
        assert sum(at <= other < at + 10**9 for other in taken) <= 2 * rate


def test_ended_request_makes_room():
    limits = RateLimits(0, "rate_limit", 2, "max_concurrency")
    first, second = limits.admit("a", "a"), limits.admit("a", "a")
    with pytest.raises(TooManyRequests, match=r"limit 'max_concurrency' \(2 requests at a time\)"):
        limits.admit("a", "a")
    limits.admit("b", "b")  # another client
    first()
    limits.admit("a", "a")
    with pytest.raises(TooManyRequests):
        limits.admit("a", "a")
    second()


def test_idle_clients_use_no_memory():
    limits = RateLimits(1, "client_rate", 0, "client_concurrency")
    for number in range(KEYS + 100):
        limits.admit(str(number), "the client")()
    assert len(limits._calls) == KEYS
