"""The parts of a `multipart/form-data` body.

Strategy: the body lies in one block already, so it is read in a single pass: one search for each
delimiter, one bounded look at each part's head, and a part's content is a slice. Numbers of parts, heads
and boundaries are bounded before they cost anything.
"""

import re
from dataclasses import dataclass

from ksrv.errors import InvalidRequest, quote
from ksrv.request import Element

MULTIPART = "multipart/form-data"
PARTS = 1024
PART_HEAD = 8 * 1024
BOUNDARY = 70
"""The longest boundary that MIME allows."""

FIELD = 1024
"""Bytes of a part's disposition, or of its content type."""

_VIEWED = 64 * 1024
_AFTER_DELIMITER = re.compile(rb"(--)?[ \t]*(\r\n|\Z)")
_END_OF_HEAD = re.compile(rb"\r\n\r\n")
# Possessive, so that no text is looked at twice, whatever it holds.
_OPTION = re.compile(
    r"\s*+;\s*+"
    r'(?:([^\s;="]++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"|([^;"]*+)))?+',
    re.DOTALL,
)
_ESCAPED = re.compile(r'\\(["\\])')


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part of a form.

    Attributes:
        name: The name of its field.
        value: Its bytes.
        content_type: As sent, or "".
        is_file: Whether it came with a file's name.
    """

    name: str
    value: Element
    content_type: str
    is_file: bool


def read_multipart(body: memoryview, boundary: str) -> list[FormPart]:
    """Return the parts in their order.

    Args:
        body: The received bytes.
        boundary: The text between the parts, from the content type.

    Raises:
        InvalidRequest: The body is not such a form, or beyond a bound.
    """
    if not boundary or len(boundary) > BOUNDARY or not boundary.isascii():
        raise InvalidRequest(
            f"a multipart body needs a boundary of 1 to {BOUNDARY} ASCII characters, got "
            f"{quote(boundary)}; curl -F and the form encoders of libraries write it into the Content-Type"
        )
    opening = b"--" + boundary.encode("ascii")
    delimiter = re.compile(re.escape(b"\r\n" + opening))
    parts: list[FormPart] = []
    after = _first_delimiter(body, opening, delimiter)
    while not after[1]:
        if len(parts) == PARTS:
            raise InvalidRequest(f"the multipart body has more than {PARTS} parts")
        name, kind, is_file, start = _head(body, after[0], len(parts))
        # The content may be empty, and its delimiter then begins with the head's last line end.
        end, after = _next_delimiter(body, start - 2, delimiter)
        content = body[start : max(start, end)]
        parts.append(FormPart(name, as_element(content), kind, is_file))
    return parts


def media_type(content_type: str) -> str:
    """Return a content type without its options, in lower case.

    Args:
        content_type: As sent, or "".
    """
    return content_type.partition(";")[0].strip().lower()


def header_options(value: str) -> dict[str, str]:
    """Return the options of a header's value, names in lower case: `form-data; name="a"`.

    Args:
        value: The value; what stands before its first semicolon is not looked at.

    Raises:
        InvalidRequest: An option is not written as `name=token` or `name="text"`.
    """
    options: dict[str, str] = {}
    value = value.rstrip()
    at = value.find(";")
    while 0 <= at < len(value):
        found = _OPTION.match(value, at)
        if found is None:
            raise InvalidRequest(
                f"the header value {quote(value)} is malformed at character {at}; each option is "
                f'written as ; name=token or ; name="text"'
            )
        name, text, token = found.groups()
        if name is not None:
            options[name.lower()] = token.strip() if text is None else _ESCAPED.sub(r"\1", text)
        at = found.end()
    return options


def as_element(view: memoryview) -> Element:
    """Return bytes of a body as an element: a view where a copy would cost."""
    return view if len(view) >= _VIEWED else bytes(view)


def _first_delimiter(
    body: memoryview, opening: bytes, delimiter: re.Pattern[bytes]
) -> tuple[int, bool]:
    """Return where the first part begins, and whether there is none."""
    if bytes(body[: len(opening)]) == opening:
        found = _AFTER_DELIMITER.match(body, len(opening))
        if found is not None:
            return found.end(), found[1] is not None
    return _next_delimiter(body, 0, delimiter)[1]


def _next_delimiter(
    body: memoryview, start: int, delimiter: re.Pattern[bytes]
) -> tuple[int, tuple[int, bool]]:
    """Return where the next delimiter begins, where it ends, and whether it is the last."""
    while True:
        found = delimiter.search(body, start)
        if found is None:
            raise InvalidRequest(
                "the multipart body ends without its closing boundary; it ends with --BOUNDARY--, where BOUNDARY is that "
                "of the Content-Type"
            )
        rest = _AFTER_DELIMITER.match(body, found.end())
        if rest is not None:
            return found.start(), (rest.end(), rest[1] is not None)
        start = found.end()


def _head(body: memoryview, start: int, number: int) -> tuple[str, str, bool, int]:
    """Return a part's name and content type, whether it is a file, and where its content begins."""
    # A head without fields ends with the line end that the delimiter brought along.
    found = _END_OF_HEAD.search(body, start - 2, start + PART_HEAD)
    if found is None:
        raise InvalidRequest(
            f"part {number} of the multipart body has no head that ends within {PART_HEAD} bytes; expected header fields "
            f"and an empty line before the content"
        )
    name, kind, is_file = None, "", False
    for line in bytes(body[start : found.start()]).split(b"\r\n"):
        field, _, value = line.partition(b":")
        field = field.strip().lower()
        if field not in (b"content-disposition", b"content-type"):
            continue
        if len(value) > FIELD:
            raise InvalidRequest(
                f"part {number} of the multipart body has a {field.decode()} of {len(value)} bytes; "
                f"at most {FIELD} are read"
            )
        text = value.strip().decode("utf-8", "replace")
        match field:
            case b"content-disposition":
                options = header_options(text)
                name = options.get("name")
                is_file = not options.keys().isdisjoint(("filename", "filename*"))
            case b"content-type":
                kind = text
    if not name:
        raise InvalidRequest(f"part {number} of the multipart body has no name")
    return name, kind, is_file, found.end()
