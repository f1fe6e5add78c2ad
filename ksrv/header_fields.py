"""The names and values that a header field of HTTP can have (RFC 9110 5.1 and 5.5), and the names that a handler cannot set."""

import re

NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

RESERVED = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "date",
        "host",
        "inference-header-content-length",
        "keep-alive",
        "proxy-connection",
        "server",
        "server-timing",
        "te",
        "x-request-id",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that no handler can set, over any protocol: they frame the message (RFC 9110 7.6.1, RFC 9113 8.2.2) or are
the server's to say."""


def check_field(name: str, value: str) -> None:
    """Refuse a header that no answer can carry.

    Raises:
        ValueError: Either has a character that it must not have; the text names the first.
    """
    if not NAME.fullmatch(name):
        raise ValueError(
            f"the name of a header is {_shown(name)}; a name has letters, digits and "
            f"!#$%&'*+.^_`|~- only, and at least one"
        )
    begin = VALUE.match(value)
    end = 0 if begin is None else begin.end()
    if end < len(value):
        raise ValueError(
            f"the header {_shown(name)} has the character {value[end]!a} at {end}; a value has no line "
            f"break or other control character, and none above U+00FF"
        )


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 64 else text[:64] + "...")
