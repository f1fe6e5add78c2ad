"""The preferences of a client in its `Accept` and `Accept-Encoding` headers (RFC 9110 12.5)."""

import re
from collections.abc import Iterator

_QUALITY = re.compile(r";\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*(?:;|$)")


def accepted(header: str | None) -> Iterator[tuple[str, float]]:
    """Yield each entry of a header in lower case, with its quality."""
    for item in (header or "").lower().split(","):
        found = _QUALITY.search(item)
        yield item.partition(";")[0].strip(), float(found[1]) if found else 1.0


def preferred(header: str | None) -> str:
    """Return the first entry of the highest quality; "" if all have the quality 0."""
    best, name = 0.0, ""
    for entry, quality in accepted(header):
        if quality > best:
            best, name = quality, entry
    return name
