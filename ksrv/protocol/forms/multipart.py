"""Splits a `multipart/form-data` body into its parts (RFC 7578, RFC 2046 5.1).

The whole body is in memory, so `read_multipart` reads it in a single pass: it searches for the next delimiter, reads a
bounded number of bytes of the part's head, and slices the content. The number of parts and the sizes of heads and
boundaries are checked before work is spent on them. A body that another parser could split differently is refused, so
that no part is lost without an error.

Falcon's reader, `multipart` and `python-multipart` copy each part or lose parts: with a bare LF in front of a
delimiter, all three add the next part to the content of the part before.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ksrv.errors import InvalidRequest, quote
from ksrv.request import Element

MULTIPART = "multipart/form-data"
MAX_PARTS = 1024
_MAX_HEAD_BYTES = 8 * 1024
_MAX_BOUNDARY_CHARACTERS = 70  # RFC 2046 5.1.1

MAX_FIELD_BYTES = 1024
"""The longest Content-Disposition or Content-Type of a part."""

_VIEW_BYTES = 64 * 1024
"""Contents of this size or more are not copied, but are views of the body."""
_AFTER_BOUNDARY = rb"(--)?[ \t]*(\r\n|\n|\r|\Z)"
_LINE_ENDS = (b"\r", b"\n")
_FIELDS = (b"content-disposition", b"content-type", b"content-transfer-encoding")
_PLAIN_ENCODINGS = (b"", b"binary", b"8bit", b"7bit")
"""Values of Content-Transfer-Encoding that leave the bytes as they are."""

# Neighbouring repetitions have no character in common, so that a failed match takes linear time.
_OPTION = re.compile(r'\s*;\s*(?:([^\s;="]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;"]*)))?', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\])')


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part of a form.

    Attributes:
        name: The name of the form's field.
        value: The content.
        content_type: The part's Content-Type as sent, or "".
        is_file: Whether its Content-Disposition has a filename.
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
        InvalidRequest: The body is not a well-formed form, or exceeds a limit.
    """
    if not boundary or len(boundary) > _MAX_BOUNDARY_CHARACTERS or not boundary.isascii():
        raise InvalidRequest(
            f"a multipart body needs a boundary of 1 to {_MAX_BOUNDARY_CHARACTERS} ASCII characters, "
            f"got {quote(boundary)}; curl -F and the form encoders of libraries write it into the Content-Type"
        )
    delimiters = _delimiters(body, b"--" + boundary.encode("ascii"))
    parts: list[FormPart] = []
    _, after, is_last = next(delimiters)
    while not is_last:
        if len(parts) == MAX_PARTS:
            raise InvalidRequest(f"the multipart body has more than {MAX_PARTS} parts")
        name, kind, is_file, start = _head(body, after, len(parts))
        end, after, is_last = next(delimiters)
        # `end` is the offset of the CRLF before the next delimiter. If the content is empty, the empty line of the head
        # is this CRLF, 2 bytes before `start`. A delimiter at a smaller offset is inside the head.
        if end < start - 2:
            raise _malformed_head(len(parts))
        parts.append(FormPart(name, as_element(body[start : max(start, end)]), kind, is_file))
    return parts


def media_type(content_type: str) -> str:
    """Return a content type without its options, in lower case.

    Args:
        content_type: As sent, or "".
    """
    return content_type.partition(";")[0].strip().lower()


def header_options(value: str) -> dict[str, str]:
    """Return the options of a header's value by lower-case name: {"name": "a"} for `form-data; name="a"`.

    Args:
        value: The value; the part before its first semicolon is ignored.

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
    """Return bytes of a body as an element: a view if they are `_VIEW_BYTES` or more, else a copy."""
    return view if len(view) >= _VIEW_BYTES else bytes(view)


def _delimiters(body: memoryview, opening: bytes) -> Iterator[tuple[int, int, bool]]:
    """Yield for each delimiter the offset of its line end, the offset after it, and whether it is the last."""
    literal = re.escape(opening)
    # The literal is first in the pattern, because re searches for a literal prefix at memory speed. The lookbehind then
    # checks that it begins a line.
    for found in re.finditer(literal + b"(?<![^\r\n]" + literal + b")" + _AFTER_BOUNDARY, body):
        start = found.start()
        before = bytes(body[max(start - 2, 0) : start])
        if before not in (b"", b"\r\n") or found[2] in _LINE_ENDS:
            raise InvalidRequest(
                f"the boundary at byte {start} of the multipart body has a line end of a single LF or CR; expected CRLF "
                f"before and after each boundary (RFC 2046 5.1.1)"
            )
        yield max(start - 2, 0), found.end(), found[1] is not None
    raise InvalidRequest(
        "the multipart body ends without its closing boundary; it ends with --BOUNDARY--, where BOUNDARY is that "
        "of the Content-Type"
    )


def _malformed_head(number: int) -> InvalidRequest:
    return InvalidRequest(
        f"the head of part {number} of the multipart body is malformed; expected lines NAME: VALUE that end with CRLF, "
        f"each name once, and an empty line before the content"
    )


def _head(body: memoryview, start: int, number: int) -> tuple[str, str, bool, int]:
    """Return a part's name and content type, whether it is a file, and the offset of its content."""
    # Read from the CRLF that ends the delimiter's line, so that a head without fields also ends with CRLF CRLF.
    head, end, _ = bytes(body[start - 2 : start + _MAX_HEAD_BYTES]).partition(b"\r\n\r\n")
    if not end:
        raise InvalidRequest(
            f"part {number} of the multipart body has no head that ends within {_MAX_HEAD_BYTES} bytes; expected header "
            f"fields and an empty line before the content"
        )
    fields: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n")[1:]:
        field, colon, value = line.partition(b":")
        field = field.lower()
        if (
            not (field and colon)
            or field != field.strip()
            or b"\r" in line
            or b"\n" in line
            or field in fields
        ):
            raise _malformed_head(number)
        if field in _FIELDS:
            fields[field] = value.strip()
    disposition, kind, encoding = (fields.get(name, b"") for name in _FIELDS)
    if encoding.lower() not in _PLAIN_ENCODINGS:
        raise InvalidRequest(
            f"part {number} of the multipart body has the Content-Transfer-Encoding {quote(_text(encoding))}; send the "
            f"bytes as they are, without this field (RFC 7578 4.7)"
        )
    for field, value in fields.items():
        if len(value) > MAX_FIELD_BYTES:
            raise InvalidRequest(
                f"part {number} of the multipart body has a {field.decode()} of {len(value)} bytes; "
                f"at most {MAX_FIELD_BYTES} are read"
            )
    options = header_options(_text(disposition))
    name = options.get("name")
    if not name:
        raise InvalidRequest(f"part {number} of the multipart body has no name")
    is_file = not options.keys().isdisjoint(("filename", "filename*"))
    return name, _text(kind), is_file, start + len(head) + 2


def _text(field: bytes) -> str:
    return field.decode("utf-8", "replace")
