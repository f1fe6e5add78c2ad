"""Reading the small JSON documents of the management routes: bounded in bytes and in depth."""

import re
from collections.abc import Mapping
from typing import Any

from ksrv.errors import BodyTooLarge, InvalidRequest
from ksrv.limits import Limits, show_limit
from ksrv.protocol.error_texts import read_json

DOCUMENT_BYTES = 64 * 1024
"""Most bytes of such a document."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\Z)', re.DOTALL)
_BRACKET = re.compile(rb"[][{}]")


def document_too_large(size: int, most: int) -> BodyTooLarge:
    """Return the answer for a document of `size` bytes or more."""
    return BodyTooLarge(f"the body is {size} bytes long; this route takes at most {most} bytes")


def check_depth(text: bytes, limit: int) -> None:
    """Refuse JSON that is nested deeper than `limit`, before any parser recurses into it.

    Raises:
        InvalidRequest: A bracket is nested deeper.
    """
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", text)):
        depth += 1 if bracket in b"[{" else -1
        if depth > limit:
            raise InvalidRequest(
                f"the JSON is nested deeper than the {show_limit('json_depth', limit)}"
            )


def parse_document(body: memoryview, limits: Limits) -> Mapping[str, Any]:
    """Return the JSON object of a management call; an empty body is an empty object.

    Args:
        limits: The limits, with the greatest depth.

    Raises:
        BodyTooLarge: It is longer than such a document can be.
        InvalidRequest: It is not a JSON object, or nested too deeply.
    """
    if len(body) > DOCUMENT_BYTES:
        raise document_too_large(len(body), DOCUMENT_BYTES)
    text = bytes(body)
    if not text.strip():
        return {}
    check_depth(text, limits.json_depth)
    document = read_json(body)
    if not isinstance(document, dict):
        raise InvalidRequest("the body must be a JSON object")
    return document
