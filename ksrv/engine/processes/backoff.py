"""Computes the pause before a handler process is started again, if processes end before they have served."""

import time

LONGEST_S = 30.0
SOUND_S = 10.0
"""A process that lived for this time counts as if it had served."""
_FIRST_S = 0.25


class Backoff:
    """Counts one instance's processes in a row that ended without having served.

    The first replacement is immediate; the pauses then double from a quarter of a second to half a
    minute. A process that was given a batch, or lived for `SOUND_S` seconds, ends the row: its
    handler can be loaded, and other requests must not wait because one request ended the process.
    """

    def __init__(self) -> None:
        self._ends = 0
        self._started = 0.0
        self._served = False

    def started(self) -> None:
        """Note that a process was started."""
        self._started = time.monotonic()
        self._served = False

    def served(self) -> None:
        """Note that the process was ready and is given a batch."""
        self._served = True

    def ended(self) -> None:
        """Note that the process ended, or never got ready."""
        sound = self._served or time.monotonic() - self._started >= SOUND_S
        self._ends = 1 if sound else self._ends + 1

    def pause(self) -> float:
        """Return how many seconds to wait before the next start."""
        if self._ends < 2:
            return 0.0
        return float(min(LONGEST_S, _FIRST_S * 2.0 ** min(self._ends - 2, 16)))
