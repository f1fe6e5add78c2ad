"""Limits the rate and the concurrency of requests, to a model or from a client.

A rate is a token bucket that holds the requests of one second. The error has the seconds after which a request is
accepted again. Each worker counts only the requests that it gets itself.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from ksrv.errors import TooManyRequests
from ksrv.limits import show_limit

KEYS = 4096
"""The most clients that are counted separately; a new client replaces the client that called longest ago."""

GiveBack: TypeAlias = Callable[..., None]
"""Ends the count of a request. Takes the request's handle, or nothing, so that it can be a done-callback."""


class _Calls:
    """The calls and tokens of one model or client."""

    __slots__ = ("filled_ns", "open", "tokens")

    def __init__(self, burst: float, now_ns: int) -> None:
        self.tokens = burst
        self.filled_ns = now_ns
        self.open = 0


class RateLimits:
    """The limits of a model, or of every client.

    Args:
        rate: Requests a second; 0 for any number.
        concurrency: Requests at a time; 0 for any number.
        clock: The monotonic clock in nanoseconds.
    """

    def __init__(
        self,
        rate: float,
        rate_name: str,
        concurrency: int,
        concurrency_name: str,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._rate = rate
        self._rate_name = rate_name
        self._concurrency = concurrency
        self._concurrency_name = concurrency_name
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: dict[str, _Calls] = {}

    @property
    def limited(self) -> bool:
        """Whether any limit is set."""
        return self._rate > 0 or self._concurrency > 0

    def admit(self, key: str, shown: str) -> GiveBack:
        """Count a request. Return a function that the caller calls once, when the request has ended.

        Args:
            key: The model or client.

        Raises:
            TooManyRequests: The model or client has reached its limit.
        """
        now = self._clock()
        with self._lock:
            calls = self._calls.pop(key, None) or _Calls(max(1.0, self._rate), now)
            self._calls[key] = calls  # moved to the end, as the latest caller
            if len(self._calls) > KEYS:
                self._forget_idle()
            self._check(calls, shown, now)
            calls.open += 1

        def give_back(_handle: object = None) -> None:
            with self._lock:
                calls.open -= 1

        return give_back

    def _check(self, calls: _Calls, shown: str, now: int) -> None:
        if self._concurrency and calls.open >= self._concurrency:
            limit = show_limit(self._concurrency_name, self._concurrency)
            raise TooManyRequests(
                f"{shown} has {calls.open} requests under way: {limit}; try again when one has ended",
                self._concurrency_name,
                1,
            )
        if not self._rate:
            return
        passed = (now - calls.filled_ns) / 1e9
        calls.tokens = min(max(1.0, self._rate), calls.tokens + passed * self._rate)
        calls.filled_ns = now
        if calls.tokens < 1:
            wait = math.ceil((1 - calls.tokens) / self._rate)
            raise TooManyRequests(
                f"{shown} has reached its rate of requests: "
                f"{show_limit(self._rate_name, self._rate)}; try again in {wait} s",
                self._rate_name,
                wait,
            )
        calls.tokens -= 1

    def _forget_idle(self) -> None:
        """Drop the key whose last request is the oldest, among keys without a request under way."""
        for key, calls in self._calls.items():
            if calls.open == 0:
                del self._calls[key]
                return
