"""The preferences of a client in its `Accept` and `Accept-Encoding` headers (RFC 9110 12.5)."""

import re
from collections.abc import Iterator
from functools import lru_cache

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


JSON_TYPE = "application/json"
BINARY_TYPE = "application/octet-stream"

_FILE_TYPE = re.compile(
    r"(?:audio|video|image)/(?!svg)[a-z0-9][a-z0-9.+-]*|application/(?:octet-stream|pdf|zip)"
)
"""Media types that a client may name for an output without a content type. Browsers run no scripts in such files."""


@lru_cache(maxsize=256)
def file_type(accept: str | None, content_type: str = "", prefers_file: bool = False) -> str:
    """Return the content type with which a client gets a file as the whole answer; "" if it gets JSON.

    Args:
        accept: The client's `Accept` header; "" accepts everything. None if the answer has another form.
        content_type: The content type of the file; "" if the client alone decides.
        prefers_file: Whether a client that accepts both alike gets the file.
    """
    if accept is None:
        return ""
    named = preferred(accept)
    if not content_type or named == BINARY_TYPE:
        return named if _FILE_TYPE.fullmatch(named) else ""
    file = _rank(accept, content_type.partition(";")[0].strip().lower())
    json = _rank(accept, JSON_TYPE)
    wins = file > json or (prefers_file and file == json)
    return content_type if wins and file[0] > 0 else ""


def _rank(accept: str, media_type: str) -> tuple[float, int, int]:
    """Return how much a client wants a media type: the quality, how exactly the header names the type, and how early.

    Of the entries that include the type, the most exact one counts (RFC 9110 12.5.1).
    """
    ranges = ("*/*", media_type.partition("/")[0] + "/*", media_type)
    found = [
        (ranges.index(name), quality, -place)
        for place, (name, quality) in enumerate(accepted(accept or "*/*"))
        if name in ranges
    ]
    exactness, quality, earliness = max(found, default=(0, 0.0, 0))
    return quality, exactness, earliness
