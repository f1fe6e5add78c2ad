"""When a call that found the server busy is made again."""

import random
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from ksrv.client.errors import Unavailable

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0

_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)


def retry_after(text: str | None) -> float | None:
    """Return the seconds that a `Retry-After` asks to wait, or None where it says nothing that can be.

    It holds decimal seconds or a date (RFC 9110 10.2.3). Servers write fractions as well.

    Args:
        text: Its value, or None without one.
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
    """How often, and after which pause.

    Attributes:
        most: How often a call is made again; 0 never.
    """

    most: int

    def pause(self, error: Unavailable, attempt: int, deadline: float) -> float | None:
        """Return the seconds to wait before the next attempt, or None if no further attempt is allowed.

        The pause is the server's `Retry-After`, or doubles each time; up to a quarter
        is added at random so that clients which were refused together do not come back together.

        Args:
            error: Why the last attempt failed.
            attempt: How many were made before it.
            deadline: When the call's timeout passes, in seconds of the monotonic clock.
        """
        if attempt >= self.most:
            return None
        pause = error.retry_after
        if pause is None:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt)
        pause *= 1 + random.random() / 4
        return pause if time.monotonic() + pause < deadline else None
