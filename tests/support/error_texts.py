"""Checks of error texts for clients: bounded, printable, and silent about this machine."""

import re

LEAKS = re.compile(
    r"""
    (?<![\w.])/(?:tmp|home|root|usr|var|etc|proc|opt|dev|srv|run|mnt)\b   # paths of a machine
    | \b0x[0-9a-f]{6,}\b                                                  # addresses
    | \.(?:py|pyx|so|cpp|hpp)\b                                           # source files
    | \bTraceback\b | \bline\ \d+,\ in\b                                  # tracebacks
    | \bobject\ at\ 0x | <(?:class|function|module|ksrv|built-in)\b         # reprs
    | \bpid\b | \bprocess\ \d+                                            # processes
    | \b\d{1,3}(?:\.\d{1,3}){3}:\d+                                       # addresses of sockets
    """,
    re.VERBOSE | re.IGNORECASE,
)
QUOTED = 64
TEXT_BYTES = 1024


def check_text(text: str, *, marker: str = "") -> None:
    """Assert that a text may be shown to a client.

    Args:
        text: The error's text.
        marker: A character of which the client sent far more than 64; at most 64 may come back.
    """
    assert text.strip(), "an error without a text"
    assert len(text.encode()) <= TEXT_BYTES, text
    assert text.isprintable(), repr(text)
    found = LEAKS.search(text)
    assert found is None, f"{found[0]!r} in {text!r}"
    if marker:
        runs = re.findall(f"(?:{re.escape(marker)})+", text)
        assert sum(map(len, runs)) <= QUOTED * len(marker), text
