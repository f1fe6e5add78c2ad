"""A progress line on standard error, for long work. Nothing is shown if standard error is not a terminal."""

import sys
import time

CLEAR_LINE = "\r\x1b[K"

SPINNER = "|/-\\"


class Progress:
    """Shows one line, which each call of `show` replaces, and which is erased when the context ends.

    Attributes:
        shown: Whether standard error is a terminal.
    """

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()
        self._step = 0
        self._start = time.monotonic()

    def show(self, text: str) -> None:
        """Show a text in place of the previous text."""
        if self.shown:
            self._step += 1
            seconds = time.monotonic() - self._start
            mark = SPINNER[self._step % len(SPINNER)]
            line = f"{mark} {text} ({seconds:.0f} s)"
            sys.stderr.write(CLEAR_LINE + line[:79])
            sys.stderr.flush()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown:
            sys.stderr.write(CLEAR_LINE)
            sys.stderr.flush()
