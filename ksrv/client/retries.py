"""Decides whether and when a call is made again after the server was busy."""

import random
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from ksrv.client.errors import Unavailable

FIRST_PAUSE = 0.1  # seconds
LONGEST_PAUSE = 5.0

_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)


def retry_after(text: str | None) -> float | None:
    """Return the seconds to wait by a `Retry-After` header, or None if it is malformed.

    The value is decimal seconds or a date (RFC 9110 10.2.3). Some servers also write fractions of a second.

    Args:
        text: The value, or None without the header.
    """
    if text is None:
        return None
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class Retries:
    """The policy for calls that found the server busy.

    Attributes:
        most: How often a call is made again; 0 for never.
    """

    most: int

    def pause(self, error: Unavailable, attempt: int, deadline: float) -> float | None:
        """Return the seconds to wait before the next attempt, or None if no further attempt is allowed.

        The pause is the server's `Retry-After`; without this header it doubles each time. Up to a quarter is added at
        random, so that clients that were refused together do not return together.

        Args:
            error: The failure of the last attempt.
            attempt: How many attempts were made before the last.
            deadline: When the call's timeout passes, in seconds of the monotonic clock.
        """
        if attempt >= self.most:
            return None
        pause = error.retry_after
        if pause is None:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt)
        pause *= 1 + random.random() / 4
        return pause if time.monotonic() + pause < deadline else None
